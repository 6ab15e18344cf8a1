// SPDX-License-Identifier: Apache-2.0
#include "anabranch/trace.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "anabranch/device.h"
#include "anabranch/launch.h"
#include "trace/example_events.h"

namespace anabranch {
namespace {

// A recording of the example plan whose regions do nothing, and memory for its slots.
class Traced {
 public:
  explicit Traced(std::uint32_t lanes) : recording_(make(lanes)) {}
  const Recording& recording() const { return recording_; }
  std::array<Binding, 2> bindings() { return {{{x_, sizeof x_}, {y_, sizeof y_}}}; }
  void launch_once() {
    const Result<Ticket> ticket = launch(recording_, bindings());
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
  }

 private:
  static Recording make(std::uint32_t lanes) {
    const Region nothing{[](void*, const RegionCall*) { return 0; }, nullptr};
    HostOptions options;
    options.max_lanes = lanes;
    return *record(example_plan(), Device::host(options),
                   {{"up", nothing}, {"down", nothing}, {"join", nothing}});
  }

  Recording recording_;
  alignas(64) std::byte x_[64] = {};
  alignas(64) std::byte y_[64] = {};
};

TEST(Trace, HoldsALaunchAndEveryStepOnceALaunch) {
  for (const std::uint32_t lanes : {1u, 2u}) {
    Traced traced(lanes);
    Trace trace;
    attach_trace(traced.recording(), &trace);
    for (int i = 0; i < 3; ++i) traced.launch_once();
    std::map<std::uint32_t, int> steps;
    int launches = 0;
    for (const TraceEvent& event : trace.collect()) {
      if (event.kind == EventKind::kStep) ++steps[event.step];
      if (event.kind == EventKind::kLaunch) ++launches;
    }
    EXPECT_EQ(launches, 3) << lanes << " lanes";
    EXPECT_EQ(steps, (std::map<std::uint32_t, int>{{0, 3}, {1, 3}, {2, 3}})) << lanes << " lanes";
    EXPECT_EQ(trace.dropped(), 0u);
  }
}

TEST(Trace, BecomesATimelineThatNamesEveryStep) {
  Traced traced(2);
  const Recording& recording = traced.recording();
  const std::array<Binding, 2> bindings = traced.bindings();
  Trace trace;
  attach_trace(recording, &trace);
  const Result<Ticket> ticket = launch(recording, bindings);
  attach_trace(recording, nullptr);
  const std::string json = dump_chrome_json(recording.plan(), trace.collect());
  ASSERT_TRUE(ticket.ok());
  for (const char* name : {"\"up\"", "\"down\"", "\"join\"", "\"launch\"", "\"ambient\""}) {
    EXPECT_NE(json.find(name), std::string::npos) << name << json;
  }
}

TEST(Trace, TellsTimesThatKeepEveryWaitOfThePlan) {
  Traced traced(2);
  Trace trace;
  attach_trace(traced.recording(), &trace);
  for (int i = 0; i < 200; ++i) {
    trace.clear();
    traced.launch_once();
    std::map<std::uint32_t, TraceEvent> steps;
    TraceEvent whole{};
    for (const TraceEvent& event : trace.collect()) {
      EXPECT_LE(event.begin_ns, event.end_ns);
      if (event.kind == EventKind::kStep) steps[event.step] = event;
      if (event.kind == EventKind::kLaunch) whole = event;
    }
    ASSERT_EQ(steps.size(), 3u);
    for (const Wait& wait : traced.recording().plan().waits()) {
      EXPECT_LE(steps[index_of(wait.on)].end_ns, steps[index_of(wait.step)].begin_ns);
    }
    for (const auto& [number, step] : steps) {
      EXPECT_LE(whole.begin_ns, step.begin_ns) << number;
      EXPECT_LE(step.end_ns, whole.end_ns) << number;
    }
  }
}

TEST(Trace, WritesNothingOnceItIsTakenOff) {
  Traced traced(2);
  Trace trace;
  attach_trace(traced.recording(), &trace);
  attach_trace(traced.recording(), nullptr);
  traced.launch_once();
  EXPECT_TRUE(trace.collect().empty());
}

TEST(Trace, DropsTheNewestEventsWhenFullAndCountsThem) {
  Trace trace(3);
  for (std::uint32_t i = 0; i < 5; ++i) trace.write({EventKind::kStep, 0, i, 0, i, i});
  const std::vector<TraceEvent> events = trace.collect();
  ASSERT_EQ(events.size(), 3u);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(events[i].step, i);
  EXPECT_EQ(trace.dropped(), 2u);
  trace.clear();
  EXPECT_EQ(trace.collect().size(), 0u);
  EXPECT_EQ(trace.dropped(), 0u);
}

TEST(Trace, LosesNoEventOfSeveralThreads) {
  constexpr std::uint32_t kThreads = 4, kEvents = 5000;
  Trace trace(kThreads * kEvents - 7);
  std::vector<std::thread> threads;
  for (std::uint32_t lane = 0; lane < kThreads; ++lane) {
    threads.emplace_back([&trace, lane] {
      for (std::uint32_t i = 0; i < kEvents; ++i) {
        trace.write({EventKind::kStep, lane, i, lane, i, i + lane});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<TraceEvent> events = trace.collect();
  EXPECT_EQ(events.size(), kThreads * kEvents - 7);
  EXPECT_EQ(trace.dropped(), 7u);
  std::map<std::uint32_t, std::uint32_t> next;  // by lane
  for (const TraceEvent& event : events) {
    EXPECT_EQ(event.step, next[event.lane]++);  // a thread's events stay in its order, whole
    EXPECT_EQ(event.other, event.lane);
    EXPECT_EQ(event.end_ns, event.begin_ns + event.lane);
  }
}

}  // namespace
}  // namespace anabranch
