// SPDX-License-Identifier: Apache-2.0
#include "record/host/lane_assignment.h"

#include <algorithm>
#include <optional>
#include <span>

namespace anabranch::host {
namespace {

constexpr std::uint32_t kNoLane = ~0u;
// What a step costs whatever it does, in bytes moved.
constexpr std::uint64_t kStepLoad = 4096;

std::uint64_t bytes_in(const View& view) {
  std::uint64_t bytes = view.item_bytes;
  for (const Dim& dim : view.dims) bytes *= dim.size;
  return bytes;
}

std::uint64_t load_of(const Step& step) {
  if (step.kind == StepKind::kRecordEvent || step.kind == StepKind::kWaitEvent ||
      step.kind == StepKind::kSynchronize) {
    return 0;
  }
  std::uint64_t load = kStepLoad;
  for (const Access& access : step.accesses) load += bytes_in(access.view);
  return load;
}

// The plan by positions in its order.
class Assigner {
 public:
  explicit Assigner(const Plan& plan);
  LaneAssignment run(std::uint32_t max_lanes);

 private:
  std::optional<std::uint32_t> next_of(const std::vector<bool>& candidates) const;
  void give(std::uint32_t stream, std::uint32_t lane);
  void fill_lane(std::uint32_t lane);
  std::vector<bool> streams_in_order_with(std::uint32_t lane) const;
  std::uint32_t count_before(std::uint32_t lane, std::vector<std::uint32_t>& before) const;
  std::vector<std::uint32_t> count_after(std::uint32_t lane, std::uint32_t lane_steps) const;
  bool is_on(std::uint32_t lane, std::size_t position) const {
    return lane_of_stream_[stream_[position]] == lane;
  }

  std::vector<std::uint32_t> stream_;       // by position
  std::vector<std::uint32_t> first_wait_;   // by position, into wait_on_
  std::vector<std::uint32_t> wait_on_;      // positions
  std::span<const std::int32_t> priority_;  // by stream
  std::vector<std::uint64_t> stream_load_;
  std::vector<std::uint64_t> lane_load_;
  std::vector<std::uint32_t> lane_of_stream_;
};

Assigner::Assigner(const Plan& plan) : priority_(plan.program().priorities()) {
  const Program& program = plan.program();
  stream_load_.resize(program.streams().size());
  lane_of_stream_.assign(program.streams().size(), kNoLane);
  std::vector<std::uint32_t> position(program.steps().size());
  auto wait = plan.waits().begin();
  for (const StepId id : plan.order()) {
    const Step& step = program.step(id);
    position[index_of(id)] = static_cast<std::uint32_t>(stream_.size());
    stream_.push_back(index_of(step.stream));
    stream_load_[index_of(step.stream)] += load_of(step);
    first_wait_.push_back(static_cast<std::uint32_t>(wait_on_.size()));
    for (; wait != plan.waits().end() && wait->step == id; ++wait) {
      wait_on_.push_back(position[index_of(wait->on)]);
    }
  }
  first_wait_.push_back(static_cast<std::uint32_t>(wait_on_.size()));
}

LaneAssignment Assigner::run(std::uint32_t max_lanes) {
  std::vector<bool> any(stream_load_.size(), true);
  give(index_of(kAmbient), 0);
  if (max_lanes > 1) fill_lane(0);
  for (std::uint32_t lane = 1; lane < max_lanes; ++lane) {
    const std::optional<std::uint32_t> stream = next_of(any);
    if (!stream) break;
    give(*stream, lane);
    fill_lane(lane);
  }
  while (const std::optional<std::uint32_t> stream = next_of(any)) {
    const auto least = std::min_element(lane_load_.begin(), lane_load_.end());
    give(*stream, static_cast<std::uint32_t>(least - lane_load_.begin()));
  }
  return {static_cast<std::uint32_t>(lane_load_.size()), std::move(lane_of_stream_)};
}

// Of the candidates that have no lane the most urgent one, and of those the heaviest.
std::optional<std::uint32_t> Assigner::next_of(const std::vector<bool>& candidates) const {
  std::optional<std::uint32_t> best;
  for (std::uint32_t s = 0; s < stream_load_.size(); ++s) {
    if (!candidates[s] || lane_of_stream_[s] != kNoLane) continue;
    if (!best || priority_[s] < priority_[*best] ||
        (priority_[s] == priority_[*best] && stream_load_[s] > stream_load_[*best])) {
      best = s;
    }
  }
  return best;
}

void Assigner::give(std::uint32_t stream, std::uint32_t lane) {
  if (lane == lane_load_.size()) lane_load_.push_back(0);
  lane_of_stream_[stream] = lane;
  lane_load_[lane] += stream_load_[stream];
}

void Assigner::fill_lane(std::uint32_t lane) {
  while (const std::optional<std::uint32_t> stream = next_of(streams_in_order_with(lane))) {
    give(*stream, lane);
  }
}

// A step is in order with a lane if the first lane step after it follows the last one before it.
std::vector<bool> Assigner::streams_in_order_with(std::uint32_t lane) const {
  std::vector<std::uint32_t> before(stream_.size());
  const std::uint32_t lane_steps = count_before(lane, before);
  const std::vector<std::uint32_t> after = count_after(lane, lane_steps);
  std::vector<bool> in_order(stream_load_.size(), true);
  for (std::size_t p = 0; p < stream_.size(); ++p) {
    if (before[p] != after[p]) in_order[stream_[p]] = false;
  }
  return in_order;
}

// before[p]: how many of the lane's steps have ended when step p starts. Answers the lane's length.
std::uint32_t Assigner::count_before(std::uint32_t lane, std::vector<std::uint32_t>& before) const {
  std::vector<std::uint32_t> known(stream_load_.size());  // after the latest step of each stream
  std::vector<std::uint32_t> ended(stream_.size());       // after each step
  std::uint32_t lane_steps = 0;
  for (std::size_t p = 0; p < stream_.size(); ++p) {
    std::uint32_t count = known[stream_[p]];
    for (std::uint32_t w = first_wait_[p]; w < first_wait_[p + 1]; ++w) {
      count = std::max(count, ended[wait_on_[w]]);
    }
    before[p] = count;
    ended[p] = known[stream_[p]] = is_on(lane, p) ? ++lane_steps : count;
  }
  return lane_steps;
}

// By position: the number, counted from 0, of the first lane step that starts only after the step.
std::vector<std::uint32_t> Assigner::count_after(std::uint32_t lane,
                                                 std::uint32_t lane_steps) const {
  std::vector<std::uint32_t> after(stream_.size(), lane_steps);
  std::vector<std::uint32_t> known(stream_load_.size(), lane_steps);
  for (std::size_t p = stream_.size(); p-- > 0;) {
    after[p] = std::min(after[p], known[stream_[p]]);
    const std::uint32_t started = is_on(lane, p) ? --lane_steps : after[p];
    known[stream_[p]] = started;
    for (std::uint32_t w = first_wait_[p]; w < first_wait_[p + 1]; ++w) {
      after[wait_on_[w]] = std::min(after[wait_on_[w]], started);
    }
  }
  return after;
}

}  // namespace

LaneAssignment assign_lanes(const Plan& plan, std::uint32_t max_lanes) {
  return Assigner(plan).run(max_lanes);
}

}  // namespace anabranch::host
