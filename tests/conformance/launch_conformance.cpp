// SPDX-License-Identifier: Apache-2.0
// What launch.h and record.h promise, on every device.
#include <atomic>
#include <thread>

#include "devices.h"

namespace anabranch::testing {

INSTANTIATE_TEST_SUITE_P(Every, Conformance, ::testing::ValuesIn(device_cases()),
                         [](const auto& device) { return device.param.name; });

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// `width` chains of `length` steps on a stream each, forked from and joined to the ambient one.
struct Fan {
  Fan() = default;
  explicit Fan(std::uint32_t width, std::uint32_t length) {
    for (std::uint32_t s = 0; s < width; ++s) {
      const StreamId stream = builder.add_stream("side " + std::to_string(s));
      BufferId last = x;
      for (std::uint32_t i = 0; i < length; ++i) last = add(stream, {last});
      ends.push_back(last);
    }
    const BufferId y = builder.add_buffer({"y", Role::kOutput, 8, 8});
    add_step(kAmbient, y, ends);
  }
  BufferId add(StreamId stream, const std::vector<BufferId>& from) {
    const BufferId to = builder.add_buffer({"t", Role::kTemporary, 8, 8});
    add_step(stream, to, from);
    return to;
  }
  void add_step(StreamId stream, BufferId to, const std::vector<BufferId>& from) {
    Step step{.stream = stream, .name = "step " + std::to_string(steps), .source = "fan.py:1"};
    step.accesses = {builder.write(to)};
    for (const BufferId buffer : from) step.accesses.push_back(builder.read(buffer));
    builder.add_step(step);
    ++steps;
  }
  // Each step writes one more than the sum of what it reads; `special` runs in its place.
  Regions regions(std::uint32_t special = ~0u, Regions::Function function = {}) const {
    Regions result;
    for (std::uint32_t i = 0; i < steps; ++i) {
      result.add("step " + std::to_string(i), i == special ? function : add_up);
    }
    return result;
  }
  static std::int32_t add_up(const RegionCall& call) {
    std::uint64_t sum = 1;
    for (std::uint32_t i = 1; i < call.buffer_count; ++i) {
      sum += *static_cast<const std::uint64_t*>(call.buffers[i]);
    }
    *static_cast<std::uint64_t*>(call.buffers[0]) = sum;
    return 0;
  }

  ProgramBuilder builder;
  std::uint32_t steps = 0;
  BufferId x = builder.add_buffer({"x", Role::kInput, 8, 8});
  std::vector<BufferId> ends;
};

// y = x + 2 over two streams of the user's, with the syncs that order it or with none that do.
Fan on_user_streams(bool has_syncs) {
  Fan fan;
  const StreamId a = fan.builder.add_stream("A", StreamOrigin::kUserSynchronised);
  const StreamId b = fan.builder.add_stream("B", StreamOrigin::kUserSynchronised);
  const EventId ready = fan.builder.add_event("ready");
  fan.builder.wait_event(a, fan.builder.add_event("never recorded"));
  if (has_syncs) fan.builder.synchronize_device();
  const BufferId h = fan.add(a, {fan.x});
  fan.builder.record_event(a, ready);
  if (has_syncs) fan.builder.synchronize_event(b, ready);
  fan.add_step(b, fan.builder.add_buffer({"y", Role::kOutput, 8, 8}), {h});
  fan.builder.record_event(kAmbient, ready);
  fan.builder.wait_event(a, ready);  // a stream that ends with a wait
  return fan;
}

TEST_P(Conformance, AnEmptyProgramRecordsAndLaunches) {
  const Plan plan = plan_of(ProgramBuilder());
  const Recording recording = must(record(plan, make_device(), {}));
  const Ticket ticket = must(launch(recording, {}));
  EXPECT_TRUE(ticket.wait().ok());
  EXPECT_TRUE(ticket.done());
}

TEST_P(Conformance, ManyMoreStreamsThanLanesGiveTheRightResultEachTime) {
  const Fan fan(9, 3);
  const Regions regions = fan.regions();
  const Recording recording = must(record(plan_of(fan.builder), make_device(), regions.table()));
  EXPECT_LE(recording.lane_count(), std::max(1u, GetParam().host.max_lanes));
  for (std::uint64_t x = 0; x < 20; ++x) ASSERT_EQ(run(recording, x), 9 * (x + 3) + 1);
}

TEST_P(Conformance, StreamsThatTheUserSynchronisesGiveTheRightResultWithAndWithoutTheirSyncs) {
  for (const bool has_syncs : {false, true}) {
    const Fan fan = on_user_streams(has_syncs);
    const Regions regions = fan.regions();
    const Recording recording = must(record(plan_of(fan.builder), make_device(), regions.table()));
    for (std::uint64_t x = 0; x < 20; ++x) ASSERT_EQ(run(recording, x), x + 2);
  }
}

TEST_P(Conformance, CopiesAndFillsNeedNoRegion) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId x = builder.add_buffer({"x", Role::kInput, 24, 8});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 24, 8});
  const BufferId t = builder.add_buffer({"t", Role::kTemporary, 24, 8});
  // Two rows of three words, transposed by way of t; then the middle word of y becomes ones.
  builder.copy(side, builder.whole(t), builder.whole(x));
  builder.copy(kAmbient, {y, 0, 4, {{3, 8}, {2, 4}}}, {t, 0, 4, {{3, 4}, {2, 12}}});
  builder.fill(side, {y, 8, 4, {}}, 0xFF);
  const Recording recording = must(record(plan_of(builder), make_device(), {}));
  SlotMemory memory(recording.plan(), source());
  const std::array<std::int32_t, 6> in{1, 2, 3, 4, 5, 6};
  std::array<std::int32_t, 6> out{};
  std::memcpy(memory.bytes(0).data(), in.data(), sizeof in);
  launch_and_wait(recording, memory);
  std::memcpy(out.data(), memory.bytes(1).data(), sizeof out);
  EXPECT_EQ(out, (std::array<std::int32_t, 6>{1, 4, -1, 5, 3, 6}));
  EXPECT_TRUE(memory.fences_stand());
}

TEST_P(Conformance, ACopyWithinOneBufferReadsAllBeforeItWrites) {
  ProgramBuilder builder;
  const BufferId x = builder.add_buffer({"x", Role::kInput, 48, 8});
  builder.copy(kAmbient, {x, 4, 4, {{5, 4}}}, {x, 0, 4, {{5, 4}}});     // one to the right
  builder.copy(kAmbient, {x, 24, 4, {{6, 4}}}, {x, 20, 4, {{6, -4}}});  // all of it, reversed
  builder.copy(kAmbient, {x, 0, 4, {{6, 8}}}, {x, 4, 4, {{6, 8}}});     // every other one
  const Recording recording = must(record(plan_of(builder), make_device(), {}));
  SlotMemory memory(recording.plan(), source());
  const std::array<std::int32_t, 12> in{1, 2, 3, 4, 5, 6};
  std::memcpy(memory.bytes(0).data(), in.data(), sizeof in);
  launch_and_wait(recording, memory);
  std::array<std::int32_t, 12> out{};
  std::memcpy(out.data(), memory.bytes(0).data(), sizeof out);
  EXPECT_EQ(out, (std::array<std::int32_t, 12>{1, 1, 3, 3, 5, 5, 4, 4, 2, 2, 1, 1}));
}

TEST_P(Conformance, BuffersWithoutBytesAndStepsThatMoveNothingRecordAndLaunch) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId none = builder.add_buffer({"none", Role::kInput, 0, 64});
  const BufferId still_none = builder.add_buffer({"still none", Role::kTemporary, 0, 64});
  const BufferId x = builder.add_buffer({"x", Role::kInput, 8, 8});
  builder.add_buffer({"unused", Role::kInput, 8, 8});
  builder.copy(side, builder.whole(still_none), builder.whole(none));
  builder.fill(kAmbient, {x, 0, 1, {{0, 1}}}, 0xFF);
  builder.compute(kAmbient, "nothing", {builder.read(still_none), builder.read_write(x)});
  Regions regions;
  regions.add("nothing", [](const RegionCall& call) { return call.buffer_count == 2 ? 0 : 1; });
  const Recording recording = must(record(plan_of(builder), make_device(), regions.table()));
  SlotMemory memory(recording.plan(), source());
  std::vector<Binding> bindings(memory.bindings().begin(), memory.bindings().end());
  ASSERT_EQ(bindings.size(), 3u);
  bindings[index_of(none)].data = nullptr;
  put_word(memory, 1, 5);
  EXPECT_TRUE(must(launch(recording, bindings)).wait().ok());
  EXPECT_EQ(get_word(memory, 1), 5u);
  bindings.back().data = nullptr;
  const Result<Ticket> refused = launch(recording, bindings);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("'unused' (slot 2) is null"));
}

TEST_P(Conformance, BindingsAreRefusedInTheSameWordsEverywhere) {
  const Fan fan(1, 1);
  const Regions regions = fan.regions();
  const Recording recording = must(record(plan_of(fan.builder), make_device(), regions.table()));
  SlotMemory memory(recording.plan(), source());
  const auto refused = [&](Binding x, const char* why) {
    const Result<Ticket> result =
        launch(recording, std::array<Binding, 2>{{x, memory.bindings()[1]}});
    ASSERT_FALSE(result.ok()) << why;
    EXPECT_EQ(result.error().code(), StatusCode::kBadBinding);
    EXPECT_THAT(result.error().message(), HasSubstr(why));
  };
  const Binding x = memory.bindings()[0];
  refused({x.data, 4}, "binding 'x' (slot 0) has 4 bytes, the recording needs 8");
  refused({nullptr, 8}, "binding 'x' (slot 0) is null");
  refused({static_cast<char*>(x.data) + 4, 8}, "a multiple of 8");
  const Result<Ticket> few = launch(recording, memory.bindings().first(1));
  ASSERT_FALSE(few.ok());
  EXPECT_THAT(few.error().message(), HasSubstr("1 bindings were given, the recording has 2 slots"));
}

TEST_P(Conformance, AStepThatFailsAnywhereIsNamedAndTheRecordingRunsAgain) {
  const Fan fan(3, 3);
  const Plan plan = plan_of(fan.builder);
  const Device device = make_device();
  for (std::uint32_t bad = 0; bad < fan.steps; ++bad) {
    bool failing = true;
    const Regions regions = fan.regions(bad, [&](const RegionCall& call) {
      if (!failing) return Fan::add_up(call);
      std::strncpy(call.error, "out of ideas", call.error_bytes);
      return 42;
    });
    const Recording recording = must(record(plan, device, regions.table()));
    const Status status = fail(recording);
    EXPECT_EQ(status.code(), StatusCode::kStepFailed);
    EXPECT_THAT(status.message(), HasSubstr("step " + std::to_string(bad) + " 'step " +
                                            std::to_string(bad) + "' (fan.py:1)"));
    EXPECT_THAT(status.message(), HasSubstr("42: out of ideas"));
    failing = false;
    EXPECT_EQ(run(recording, 5), 3 * (5 + 3) + 1u);
  }
}

TEST_P(Conformance, AStepThatThrowsFailsWithTheExceptionsText) {
  const Fan fan(3, 2);
  const auto throws_text = [](const RegionCall&) -> std::int32_t {
    throw std::runtime_error("no such tensor");
  };
  const auto throws_number = [](const RegionCall&) -> std::int32_t { throw 7; };
  for (std::uint32_t bad = 0; bad < fan.steps; ++bad) {
    const Regions regions = fan.regions(bad, throws_text);
    const Status status = fail(must(record(plan_of(fan.builder), make_device(), regions.table())));
    EXPECT_EQ(status.code(), StatusCode::kStepFailed);
    EXPECT_THAT(status.message(), HasSubstr("threw: no such tensor"));
  }
  const Regions regions = fan.regions(0, throws_number);
  const Status status = fail(must(record(plan_of(fan.builder), make_device(), regions.table())));
  EXPECT_THAT(status.message(), HasSubstr("no std::exception"));
}

TEST_P(Conformance, OfSeveralFailuresTheFirstInThePlanIsReported) {
  const Fan fan(4, 3);
  const Plan plan = plan_of(fan.builder);
  Regions regions;
  for (std::uint32_t i = 0; i < fan.steps; ++i) {
    // The last step of every chain fails, whichever is first to get there.
    const bool bad = i % 3 == 2;
    regions.add("step " + std::to_string(i),
                [bad](const RegionCall& call) { return bad ? 1 : Fan::add_up(call); });
  }
  const auto first = std::find_if(plan.order().begin(), plan.order().end(),
                                  [](StepId id) { return index_of(id) % 3 == 2; });
  const Recording recording = must(record(plan, make_device(), regions.table()));
  for (int round = 0; round < 20; ++round) {
    EXPECT_THAT(fail(recording).message(),
                HasSubstr("step " + std::to_string(index_of(*first)) + " '"));
  }
}

TEST_P(Conformance, StepsAfterAFailedOneInThePlanOfTheSameStreamDoNotRun) {
  const Fan fan(2, 3);
  std::atomic<int> ran{0};
  Regions regions = fan.regions(0, [](const RegionCall&) { return 1; });
  for (const std::uint32_t later : {1, 2, 6}) {
    regions.add("step " + std::to_string(later), [&](const RegionCall&) {
      ++ran;
      return 0;
    });
  }
  const Recording recording = must(record(plan_of(fan.builder), make_device(), regions.table()));
  EXPECT_EQ(fail(recording).code(), StatusCode::kStepFailed);
  EXPECT_EQ(ran, 0);
}

TEST_P(Conformance, AFailureWithoutTextDoesNotBorrowThatOfAnEarlierStep) {
  const Fan fan(1, 2);
  Regions regions = fan.regions(1, [](const RegionCall&) { return 3; });
  regions.add("step 0", [](const RegionCall& call) {
    std::strncpy(call.error, "all is well", call.error_bytes);
    return 0;
  });
  const Recording recording = must(record(plan_of(fan.builder), make_device(), regions.table()));
  EXPECT_THAT(fail(recording).message(), AllOf(HasSubstr("answered 3."), Not(HasSubstr("well"))));
}

TEST_P(Conformance, ABusyRecordingAnswersBusyAndLeavesTheRunningLaunchAlone) {
  const Fan fan(2, 2);
  std::atomic<bool> running{false}, asked{false};
  const Regions regions = fan.regions(1, [&](const RegionCall& call) {
    running = true;
    running.notify_all();
    asked.wait(false);
    return Fan::add_up(call);
  });
  const Recording recording = must(record(plan_of(fan.builder), make_device(), regions.table()));
  std::uint64_t y = 0;
  std::jthread launcher([&] { y = run(recording, 5); });
  running.wait(false);
  const Status second = fail(recording);
  asked = true;
  asked.notify_all();
  launcher.join();
  EXPECT_EQ(second.code(), StatusCode::kBusy);
  EXPECT_EQ(y, 2 * (5 + 2) + 1u);
  EXPECT_EQ(run(recording, 6), 2 * (6 + 2) + 1u);
}

TEST_P(Conformance, SeveralThreadsLaunchDifferentRecordingsAtOnce) {
  constexpr int kThreads = 3, kLaunches = 40;
  const Fan fan(3, 2);
  const Regions regions = fan.regions();
  const Plan plan = plan_of(fan.builder);
  const Device device = make_device();
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        const Recording recording = must(record(plan, device, regions.table()));
        for (std::uint64_t x = 0; x < kLaunches; ++x) {
          right += run(recording, x) == 3 * (x + 2) + 1;
        }
      });
    }
  }
  EXPECT_EQ(right, kThreads * kLaunches);
}

TEST_P(Conformance, ALaunchFromWithinARegionOfAnotherRecordingRuns) {
  const Fan fan(2, 1);
  const Device device = make_device();
  const Regions inner_regions = fan.regions();
  const Recording inner = must(record(plan_of(fan.builder), device, inner_regions.table()));
  const Regions outer_regions = fan.regions(0, [&](const RegionCall& call) {
    *static_cast<std::uint64_t*>(call.buffers[0]) =
        run(inner, *static_cast<const std::uint64_t*>(call.buffers[1]));
    return 0;
  });
  const Recording outer = must(record(plan_of(fan.builder), device, outer_regions.table()));
  const std::uint64_t of_inner = 2 * (5 + 1) + 1;
  EXPECT_EQ(run(outer, 5), of_inner + (5 + 1) + 1);
}

TEST_P(Conformance, ARefusedLaunchRunsNothingAndTheNextOneIsRight) {
  const Fan fan(2, 1);
  std::atomic<int> ran{0};
  const Regions regions = fan.regions(0, [&](const RegionCall& call) {
    ++ran;
    return Fan::add_up(call);
  });
  const Recording recording = must(record(plan_of(fan.builder), make_device(), regions.table()));
  EXPECT_EQ(run(recording, 1), 2 * (1 + 1) + 1u);
  SlotMemory memory(recording.plan(), source());
  const Binding x = memory.bindings()[0];
  put_word(memory, 0, 3);
  const Result<Ticket> refused = launch(recording, std::array<Binding, 2>{{x, x}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), StatusCode::kBadBinding);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(get_word(memory, 0), 3u);
  EXPECT_EQ(run(recording, 2), 2 * (2 + 1) + 1u);
}

TEST_P(Conformance, ARecordingOutlivesPlanDeviceAndTable) {
  const Fan fan(2, 2);
  const Regions regions = fan.regions();
  const Recording recording = [&] {
    const RegionTable table = regions.table();
    return must(record(plan_of(fan.builder), make_device(), table));
  }();
  EXPECT_EQ(run(recording, 4), 2 * (4 + 2) + 1u);
}

}  // namespace
}  // namespace anabranch::testing
