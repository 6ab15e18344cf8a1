// SPDX-License-Identifier: Apache-2.0
#include "anabranch/trace.h"

#include <algorithm>

#include "handles.h"

namespace ab = anabranch;

namespace {

// None where memory runs out: a trace may lose events.
std::vector<ab::TraceEvent> events_of(const AnabranchTrace* trace) noexcept {
  try {
    return trace->trace.collect();
  } catch (...) {
    return {};
  }
}

}  // namespace

AnabranchTrace* anabranch_trace_new(size_t capacity) {
  return ab::bridge::guard([&] { return new AnabranchTrace(capacity); });
}

void anabranch_trace_free(AnabranchTrace* trace) { delete trace; }

void anabranch_trace_attach(AnabranchRecording* recording, AnabranchTrace* trace) {
  ab::attach_trace(recording->recording, trace ? &trace->trace : nullptr);
}

void anabranch_trace_clear(AnabranchTrace* trace) { trace->trace.clear(); }

uint64_t anabranch_trace_dropped(const AnabranchTrace* trace) { return trace->trace.dropped(); }

size_t anabranch_trace_count(const AnabranchTrace* trace) { return events_of(trace).size(); }

size_t anabranch_trace_events(const AnabranchTrace* trace, AnabranchTraceEvent* out, size_t room) {
  const auto events = events_of(trace);
  const size_t count = std::min(events.size(), room);
  std::transform(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(count), out,
                 [](const ab::TraceEvent& event) -> AnabranchTraceEvent {
                   return {static_cast<int32_t>(event.kind),
                           event.lane,
                           event.step,
                           event.other,
                           event.begin_ns,
                           event.end_ns};
                 });
  return count;
}

const char* anabranch_trace_chrome_json(const AnabranchTrace* trace, const AnabranchPlan* plan) {
  return ab::bridge::guard(
      [&] { return ab::bridge::keep(ab::dump_chrome_json(plan->plan, trace->trace.collect())); });
}

const char* anabranch_trace_dump(const AnabranchTrace* trace, const AnabranchPlan* plan) {
  return ab::bridge::guard(
      [&] { return ab::bridge::keep(ab::dump_trace(plan->plan, trace->trace.collect())); });
}

const char* anabranch_plan_json(const AnabranchPlan* plan) {
  return ab::bridge::guard([&] { return ab::bridge::keep(ab::dump_plan_json(plan->plan)); });
}
