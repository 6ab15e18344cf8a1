// SPDX-License-Identifier: Apache-2.0
#include "launch/host_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

namespace anabranch::host {
namespace {

constexpr std::uint64_t kMaxDelayNs = 200'000;

std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

// A well mixed number (splitmix64).
std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Gives the caller's thread its part of the threads that libraries inside regions may use.
class ThreadShare {
 public:
  ThreadShare(const ThreadControl& control, std::uint32_t lanes) noexcept : control_(control) {
    if (!control.get_openmp) return;
    before_ = control.get_openmp();
    each_ = std::max(1, before_ / static_cast<int>(lanes));
    if (control.set_openmp) control.set_openmp(each_);
    if (control.set_mkl_local) mkl_before_ = control.set_mkl_local(each_);
  }
  ~ThreadShare() {
    if (each_ == 0) return;
    if (control_.set_openmp) control_.set_openmp(before_);
    if (control_.set_mkl_local) control_.set_mkl_local(mkl_before_);
  }
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;

  int each() const noexcept { return each_; }

 private:
  const ThreadControl& control_;
  int before_ = 0;
  int mkl_before_ = 0;
  int each_ = 0;  // 0: nothing was changed
};

void note_failure(Failure& failure, std::uint32_t position, std::int32_t code) noexcept {
  failure.position = position;
  failure.code = code;
}

void note_exception(Failure& failure, std::uint32_t position, const char* what) noexcept {
  failure.position = position;
  failure.threw = true;
  std::strncpy(failure.text.data(), what, failure.text.size() - 1);
}

class Run {
 public:
  explicit Run(HostRecording& recording) noexcept
      : recording_(recording),
        options_(recording.device().options()),
        addresses_(recording.addresses().data()),
        waits_(recording.waits().data()),
        ring_(recording.event_ring()),
        observed_(ring_ || options_.delays_seed),
        points_before_(recording.take_points()) {}

  void on_team(const Team& team, unsigned threads) noexcept;
  void on_crew(Crew& crew) noexcept;
  void on_this_thread() noexcept;
  Status status();

 private:
  static void run_worker(void* self, std::uint32_t worker) noexcept {
    Run& run = *static_cast<Run*>(self);
    run.run_lane(worker + 1, run.recording_.lane(worker + 1).actions);
  }
  static void run_member(void* self) { static_cast<Run*>(self)->run_phase_as_member(); }
  void run_phase_as_member() noexcept;
  void run_in_order(const Phase& phase) noexcept;
  void run_lane(std::uint32_t lane, std::span<const Action> actions) noexcept;
  template <bool kObserved>
  void run_actions(std::uint32_t lane, std::span<const Action> actions) noexcept;
  void wait_for(const Action& action) noexcept;
  void wait_and_write(std::uint32_t lane, const Action& action) noexcept;
  void run_action(const Action& action, Failure& failure) noexcept;
  void run_observed(std::uint32_t lane, const Action& action, Failure& failure) noexcept;
  void call(const Action& action, Failure& failure) noexcept;
  void stop_after(std::uint32_t position) noexcept;

  HostRecording& recording_;
  const DeviceOptions& options_;
  void* const* const addresses_;
  const LaneWait* const waits_;
  EventRing* const ring_;
  const bool observed_;
  std::uint32_t points_before_;
  const Phase* phase_ = nullptr;  // that the team runs
  // Steps behind it in the plan are skipped.
  alignas(kLinePair) std::atomic<std::uint32_t> failed_{kNoPosition};
};

void Run::on_team(const Team& team, unsigned threads) noexcept {
  for (const Phase& phase : recording_.phases()) {
    if (phase.one_lane) {
      run_in_order(phase);
    } else {
      phase_ = &phase;
      team.run(run_member, this, threads, 0);
    }
  }
}

void Run::run_phase_as_member() noexcept {
  const Team& team = options_.threads.team;
  const auto index = static_cast<std::uint32_t>(team.index());
  if (static_cast<std::uint32_t>(team.size()) < recording_.lane_count()) {
    if (index == 0) run_in_order(*phase_);  // within another team, or out of threads
  } else if (index < recording_.lane_count()) {
    // Libraries would find out by themselves that a team is at work, for each call anew.
    const ThreadControl& control = options_.threads;
    const int mkl_before = control.set_mkl_local ? control.set_mkl_local(1) : 0;
    if (control.set_openmp) control.set_openmp(1);  // holds until this member leaves the team
    run_lane(index, recording_.actions(*phase_, index));
    if (control.set_mkl_local) control.set_mkl_local(mkl_before);
  }
}

void Run::on_crew(Crew& crew) noexcept {
  const ThreadShare share(options_.threads, recording_.lane_count());
  crew.start({run_worker, this, share.each()}, recording_.lane_count() - 1);
  run_lane(0, recording_.lane(0).actions);
  crew.wait();
}

void Run::on_this_thread() noexcept {
  run_in_order({0, static_cast<std::uint32_t>(recording_.serial_order().size())});
}

void Run::run_in_order(const Phase& phase) noexcept {
  for (const Action* action :
       recording_.serial_order().subspan(phase.begin, phase.end - phase.begin)) {
    if (observed_) {
      run_observed(0, *action, recording_.lane(0).failure);
    } else {
      run_action(*action, recording_.lane(0).failure);
    }
    if (action->point != 0) {
      recording_.lane(action->lane).gate.publish(points_before_ + action->point);
    }
  }
}

void Run::run_lane(std::uint32_t lane, std::span<const Action> actions) noexcept {
  observed_ ? run_actions<true>(lane, actions) : run_actions<false>(lane, actions);
}

template <bool kObserved>
void Run::run_actions(std::uint32_t lane_index, std::span<const Action> actions) noexcept {
  HostLane& lane = recording_.lane(lane_index);
  for (const Action& action : actions) {
    if constexpr (kObserved) {
      wait_and_write(lane_index, action);
      run_observed(lane_index, action, lane.failure);
    } else {
      wait_for(action);
      run_action(action, lane.failure);
    }
    if (action.point != 0) lane.gate.publish(points_before_ + action.point);
  }
}

void Run::wait_for(const Action& action) noexcept {
  for (std::uint32_t i = 0; i < action.wait_count; ++i) {
    const LaneWait& wait = waits_[action.first_wait + i];
    recording_.lane(wait.lane).gate.wait(points_before_ + wait.point, options_.spin_ns);
  }
}

void Run::wait_and_write(std::uint32_t lane, const Action& action) noexcept {
  if (!ring_) return wait_for(action);
  for (std::uint32_t i = 0; i < action.wait_count; ++i) {
    const LaneWait& wait = waits_[action.first_wait + i];
    const std::uint64_t begin = now_ns();
    recording_.lane(wait.lane).gate.wait(points_before_ + wait.point, options_.spin_ns);
    ring_->write(
        {EventKind::kWait, lane, index_of(action.step), index_of(wait.on), begin, now_ns()});
  }
}

void Run::run_action(const Action& action, Failure& failure) noexcept {
  if (action.region.function && action.position < failed_.load(std::memory_order_relaxed)) {
    call(action, failure);
  }
}

void Run::run_observed(std::uint32_t lane, const Action& action, Failure& failure) noexcept {
  if (action.position >= failed_.load(std::memory_order_relaxed)) return;
  if (options_.delays_seed) {
    const std::uint64_t delay_ns = mix(*options_.delays_seed ^ mix(action.position)) % kMaxDelayNs;
    std::this_thread::sleep_for(std::chrono::nanoseconds(delay_ns));
  }
  const std::uint64_t begin = ring_ ? now_ns() : 0;
  if (action.region.function) call(action, failure);
  if (ring_) ring_->write({EventKind::kStep, lane, index_of(action.step), 0, begin, now_ns()});
}

void Run::call(const Action& action, Failure& failure) noexcept {
  failure.text[0] = '\0';
  const RegionCall region_call{addresses_ + action.first_address, action.address_count,
                               failure.text.data(),
                               static_cast<std::uint32_t>(failure.text.size())};
  try {
    const std::int32_t code = action.region.function(action.region.context, &region_call);
    if (code == 0) [[likely]]
      return;
    note_failure(failure, action.position, code);
  } catch (const std::exception& exception) {
    note_exception(failure, action.position, exception.what());
  } catch (...) {
    note_exception(failure, action.position, "an exception that is no std::exception");
  }
  stop_after(action.position);
}

void Run::stop_after(std::uint32_t position) noexcept {
  std::uint32_t first = failed_.load(std::memory_order_relaxed);
  while (position < first &&
         !failed_.compare_exchange_weak(first, position, std::memory_order_relaxed)) {
  }
}

std::string describe(const Failure& failure) {
  const std::string text(failure.text.data(), strnlen(failure.text.data(), failure.text.size()));
  if (failure.threw) return fmt::format("threw: {}", text);
  return fmt::format("answered {}{}{}", failure.code, text.empty() ? "" : ": ", text);
}

// Leaves the lanes as if nothing had failed.
Status Run::status() {
  if (failed_.load(std::memory_order_relaxed) == kNoPosition) return {};
  const Failure* first = &recording_.lane(0).failure;
  for (std::uint32_t lane = 1; lane < recording_.lane_count(); ++lane) {
    const Failure& failure = recording_.lane(lane).failure;
    if (failure.position < first->position) first = &failure;
  }
  const StepId id = recording_.plan().order()[first->position];
  const Step& step = recording_.plan().program().step(id);
  const std::string source =
      step.source.empty() ? "" : fmt::format(" ({})", printable_text(step.source));
  Status failed(StatusCode::kStepFailed,
                fmt::format("launch: step {} '{}'{} {}. Steps after it did not all run; the "
                            "recording can be launched again.",
                            index_of(id), printable_text(step.name), source, describe(*first)));
  for (std::uint32_t lane = 0; lane < recording_.lane_count(); ++lane) {
    recording_.lane(lane).failure = {};
  }
  return failed;
}

// How many threads of the team run the lanes; 0: a crew should.
unsigned team_threads(const HostRecording& recording) noexcept {
  const ThreadControl& control = recording.device().options().threads;
  if (!control.team.run || !control.get_openmp || recording.device().is_forked()) return 0;
  const auto threads = static_cast<unsigned>(control.get_openmp());
  // All of them, also those without a lane: a smaller team would send threads away for good.
  return threads < 2 * recording.lane_count() ? std::max(threads, recording.lane_count()) : 0;
}

}  // namespace

Status run(HostRecording& recording) {
  Run run(recording);
  EventRing* const ring = recording.event_ring();
  const std::uint64_t begin = ring ? now_ns() : 0;
  if (recording.lane_count() == 1) {
    run.on_this_thread();
  } else if (const unsigned threads = team_threads(recording)) {
    run.on_team(recording.device().options().threads.team, threads);
  } else {
    const CrewLease crew = recording.device().lease(recording.lane_count() - 1);
    crew ? run.on_crew(*crew) : run.on_this_thread();
  }
  if (ring) ring->write({EventKind::kLaunch, 0, 0, 0, begin, now_ns()});
  return run.status();
}

}  // namespace anabranch::host
