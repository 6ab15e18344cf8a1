// SPDX-License-Identifier: Apache-2.0
// The order that the user's own record_event, wait_event and synchronize steps ask for.
#include <algorithm>
#include <optional>

#include "plan/check_order.h"

namespace anabranch::check {
namespace {

constexpr BufferId kNone = kNoBuffer;

bool is_sync(const Step& step) {
  return step.kind == StepKind::kRecordEvent || step.kind == StepKind::kWaitEvent ||
         step.kind == StepKind::kSynchronize;
}

// A record and a synchronize come after all earlier work of their stream, a wait after the latest
// record of its event.
void demand_before_syncs(Demands& demands) {
  const Clocks& clocks = demands.clocks;
  std::vector<std::optional<StepId>> last(clocks.lane_count());  // in the plan's order of the lane
  std::vector<std::optional<StepId>> records(demands.program.events().size());
  for (std::uint32_t i = 0; i < demands.program.steps().size(); ++i) {
    const StepId id{i};
    const Step& step = demands.program.step(id);
    std::optional<StepId>& latest = last[clocks.lane(id)];
    if (step.kind == StepKind::kWaitEvent) {
      const std::optional<StepId> record = records[index_of(step.event)];
      if (record) demands.demand(*record, id, kNone, kNone);
    } else if (is_sync(step) && latest) {
      demands.demand(*latest, id, kNone, kNone);
    }
    if (step.kind == StepKind::kRecordEvent) records[index_of(step.event)] = id;
    if (!latest || clocks.place(id) > clocks.place(*latest)) latest = id;
  }
}

// Later work of its stream comes after a wait, later work of every stream after a synchronize.
void demand_after_syncs(Demands& demands) {
  const Clocks& clocks = demands.clocks;
  std::vector<std::optional<StepId>> first(clocks.lane_count());  // of the steps after step i
  for (std::size_t i = demands.program.steps().size(); i-- > 0;) {
    const StepId id{static_cast<std::uint32_t>(i)};
    const StepKind kind = demands.program.step(id).kind;
    std::optional<StepId>& own = first[clocks.lane(id)];
    if (kind == StepKind::kSynchronize) {
      for (const std::optional<StepId>& later : first) {
        if (later) demands.demand(id, *later, kNone, kNone);
      }
    } else if (kind == StepKind::kWaitEvent && own) {
      demands.demand(id, *own, kNone, kNone);
    }
    if (!own || clocks.place(id) < clocks.place(*own)) own = id;
  }
}

}  // namespace

void demand_sync_order(Demands& demands) {
  const std::span<const Step> steps = demands.program.steps();
  if (std::none_of(steps.begin(), steps.end(), is_sync)) return;
  demand_before_syncs(demands);
  demand_after_syncs(demands);
}

}  // namespace anabranch::check
