// SPDX-License-Identifier: Apache-2.0
#include "plan/user_order.h"

namespace anabranch {
namespace {

constexpr std::uint32_t kCallersLane = 0;
constexpr std::uint32_t kAmbientLane = 1;

}  // namespace

UserOrder::UserOrder(const Program& program)
    : program_(program),
      step_count_(static_cast<std::uint32_t>(program.steps().size())),
      lane_count_(kAmbientLane + 1),
      records_(program.events().size()) {
  for (const StreamOrigin origin : program.origins()) {
    const bool placed = origin == StreamOrigin::kPlaced;
    lane_of_stream_.push_back(placed ? kAmbientLane : lane_count_++);
  }
  for (const Step& step : program.steps()) {
    lanes_.push_back(is_callers(program, step) ? kCallersLane
                                               : lane_of_stream_[index_of(step.stream)]);
  }
  lanes_.insert(lanes_.end(), {kAmbientLane, kAmbientLane});  // entry, exit
  last_.resize(lane_count_);
}

std::span<const StepId> UserOrder::next(StepId id) {
  found_.clear();
  const std::uint32_t own = lane(id);
  if (own != kCallersLane && last_[kCallersLane]) found_.push_back(*last_[kCallersLane]);
  if (index_of(id) < step_count_) {
    const Step& step = program_.step(id);
    if (step.kind == StepKind::kSynchronize) {
      const std::optional<StepId> end = last_[lane_of_stream_[index_of(step.stream)]];
      if (end) found_.push_back(*end);
    } else if (step.kind == StepKind::kWaitEvent) {
      const std::optional<StepId> record = records_[index_of(step.event)];
      if (record) found_.push_back(*record);
    } else if (step.kind == StepKind::kRecordEvent) {
      records_[index_of(step.event)] = id;
    }
  }
  last_[own] = id;
  return found_;
}

}  // namespace anabranch
