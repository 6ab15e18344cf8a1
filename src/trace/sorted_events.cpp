// SPDX-License-Identifier: Apache-2.0
#include "trace/sorted_events.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>

namespace anabranch {
namespace {

constexpr std::size_t kNone = ~std::size_t{0};

}  // namespace

std::vector<TraceEvent> sort_events(const Plan& plan, std::vector<TraceEvent> events) {
  const std::size_t step_count = plan.program().steps().size();
  std::erase_if(events, [=](const TraceEvent& event) {
    return event.kind == EventKind::kStep && event.step >= step_count;
  });
  std::sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return std::tie(a.begin_ns, b.end_ns, a.kind, a.step, a.other) <
           std::tie(b.begin_ns, a.end_ns, b.kind, b.step, b.other);
  });
  return events;
}

std::vector<WaitPair> find_wait_pairs(const Plan& plan, const std::vector<TraceEvent>& sorted) {
  // waits() goes by the order's positions, so the waits of one step lie together.
  std::vector<std::size_t> first_wait(plan.program().steps().size(), kNone);
  for (std::size_t i = plan.waits().size(); i-- > 0;)
    first_wait[index_of(plan.waits()[i].step)] = i;

  std::vector<std::size_t> latest(first_wait.size(), kNone);
  std::vector<WaitPair> pairs;
  for (std::size_t at = 0; at < sorted.size(); ++at) {
    const TraceEvent& event = sorted[at];
    if (event.kind == EventKind::kLaunch) std::fill(latest.begin(), latest.end(), kNone);
    if (event.kind != EventKind::kStep) continue;
    latest[event.step] = at;
    for (std::size_t i = first_wait[event.step]; i < plan.waits().size(); ++i) {
      const Wait& wait = plan.waits()[i];
      if (index_of(wait.step) != event.step) break;
      const std::size_t on = latest[index_of(wait.on)];
      if (on != kNone) pairs.push_back({.step = at, .on = on});
    }
  }
  return pairs;
}

}  // namespace anabranch
