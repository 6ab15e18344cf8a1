// SPDX-License-Identifier: Apache-2.0
#include "record/host/lane_schedule.h"

#include <algorithm>
#include <functional>

namespace anabranch::host {
namespace {

// How far, as one past a position, each lane is known to have come.
using Clock = std::vector<std::uint32_t>;

void join(Clock& clock, const Clock& other) {
  for (std::size_t lane = 0; lane < clock.size(); ++lane) {
    clock[lane] = std::max(clock[lane], other[lane]);
  }
}

class LaneScheduler {
 public:
  LaneScheduler(const Plan& plan, const LaneAssignment& lanes);
  LaneSchedule run();

 private:
  void keep_needed_waits(std::uint32_t position);
  void number_points();
  void note_overlap(std::uint32_t position);
  void find_phases();

  const Plan& plan_;
  LaneSchedule schedule_;
  std::vector<std::uint32_t> position_;               // by step
  std::vector<std::uint32_t> first_wait_;             // by position, into the plan's waits
  std::vector<Clock> clock_;                          // by lane, as of its latest step
  std::vector<Clock> clock_at_;                       // by position; empty where none waits
  std::vector<bool> awaited_;                         // by position, from another lane
  std::vector<std::uint32_t> waits_of_;               // positions one step waits for
  std::vector<std::vector<std::uint32_t>> steps_of_;  // positions by lane
  std::vector<std::int32_t> overlaps_;  // by position p, summed up: pairs that run across p - 1 | p
};

LaneScheduler::LaneScheduler(const Plan& plan, const LaneAssignment& lanes)
    : plan_(plan),
      position_(plan.order().size()),
      clock_(lanes.lane_count, Clock(lanes.lane_count)),
      clock_at_(plan.order().size()),
      awaited_(plan.order().size()),
      steps_of_(lanes.lane_count),
      overlaps_(plan.order().size() + 1) {
  std::uint32_t wait = 0;
  for (const StepId id : plan.order()) {
    position_[index_of(id)] = static_cast<std::uint32_t>(schedule_.lane.size());
    const std::uint32_t lane = lanes.lane_of_stream[index_of(plan.program().step(id).stream)];
    schedule_.lane.push_back(lane);
    first_wait_.push_back(wait);
    for (; wait < plan.waits().size() && plan.waits()[wait].step == id; ++wait) {
      const std::uint32_t on = position_[index_of(plan.waits()[wait].on)];
      if (schedule_.lane[on] != lane) awaited_[on] = true;
    }
  }
  first_wait_.push_back(wait);
}

LaneSchedule LaneScheduler::run() {
  const auto count = static_cast<std::uint32_t>(position_.size());
  for (std::uint32_t p = 0; p < count; ++p) {
    schedule_.first_wait.push_back(static_cast<std::uint32_t>(schedule_.waits.size()));
    keep_needed_waits(p);
    note_overlap(p);
    steps_of_[schedule_.lane[p]].push_back(p);
    Clock& clock = clock_[schedule_.lane[p]];
    clock[schedule_.lane[p]] = p + 1;
    if (awaited_[p]) clock_at_[p] = clock;
  }
  schedule_.first_wait.push_back(static_cast<std::uint32_t>(schedule_.waits.size()));
  number_points();
  find_phases();
  return std::move(schedule_);
}

// Latest first: a step may imply earlier ones, never later ones.
void LaneScheduler::keep_needed_waits(std::uint32_t position) {
  waits_of_.clear();
  for (std::uint32_t w = first_wait_[position]; w < first_wait_[position + 1]; ++w) {
    waits_of_.push_back(position_[index_of(plan_.waits()[w].on)]);
  }
  std::sort(waits_of_.begin(), waits_of_.end(), std::greater<>());
  Clock& clock = clock_[schedule_.lane[position]];
  for (const std::uint32_t on : waits_of_) {
    const std::uint32_t lane = schedule_.lane[on];
    if (lane == schedule_.lane[position] || clock[lane] > on) continue;
    join(clock, clock_at_[on]);
    // The point is set once it is known which steps are still waited for.
    schedule_.waits.push_back({lane, 0, plan_.order()[on]});
  }
}

void LaneScheduler::number_points() {
  schedule_.point.assign(position_.size(), 0);
  for (const LaneWait& wait : schedule_.waits) schedule_.point[position_[index_of(wait.on)]] = 1;
  std::vector<std::uint32_t> reached(clock_.size());
  for (std::size_t p = 0; p < position_.size(); ++p) {
    if (schedule_.point[p] != 0) schedule_.point[p] = ++reached[schedule_.lane[p]];
  }
  for (LaneWait& wait : schedule_.waits) {
    wait.point = schedule_.point[position_[index_of(wait.on)]];
  }
  schedule_.most_points = *std::max_element(reached.begin(), reached.end());
}

// The first step of each lane that this one does not come after may run beside it: no phase ends
// between the two.
void LaneScheduler::note_overlap(std::uint32_t position) {
  const Clock& clock = clock_[schedule_.lane[position]];
  for (std::size_t lane = 0; lane < clock.size(); ++lane) {
    if (lane == schedule_.lane[position]) continue;
    const auto& steps = steps_of_[lane];
    const auto beside = std::lower_bound(steps.begin(), steps.end(), clock[lane]);
    if (beside == steps.end()) continue;
    ++overlaps_[*beside + 1];
    --overlaps_[position + 1];
  }
}

void LaneScheduler::find_phases() {
  const auto count = static_cast<std::uint32_t>(position_.size());
  std::int32_t across = 0;
  for (std::uint32_t p = 0; p < count; ++p) {
    across += overlaps_[p];
    const bool one_lane = across == 0 && across + overlaps_[p + 1] == 0;
    auto& phases = schedule_.phases;
    const bool joins = !phases.empty() && (across != 0 || (phases.back().one_lane && one_lane));
    if (!joins) phases.push_back({p, p, one_lane});
    phases.back().end = p + 1;
  }
}

}  // namespace

LaneSchedule make_lane_schedule(const Plan& plan, const LaneAssignment& lanes) {
  return LaneScheduler(plan, lanes).run();
}

}  // namespace anabranch::host
