// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <thread>

#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class SimStreams : public SimTest {};

TEST_F(SimStreams, WorkOfAStreamRunsInItsOrder) {
  const CuStream on = stream();
  for (const char* name : {"a", "b", "c"}) ASSERT_CU(launch(noting(name), on));
  ASSERT_CU(d->cuStreamSynchronize(on));
  EXPECT_THAT(order, ElementsAre("a", "b", "c"));
}

TEST_F(SimStreams, NothingRunsBeforeSomebodyWaits) {
  ASSERT_CU(launch(noting("a"), stream()));
  EXPECT_TRUE(order.empty());
  sim->run_until_idle();
  EXPECT_THAT(order, ElementsAre("a"));
}

TEST_F(SimStreams, SeedsFindEveryOrderOfStreamsThatDoNotWait) {
  std::set<std::vector<std::string>> seen;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    start({.seed = seed});
    order.clear();
    for (const char* name : {"a", "b", "c"}) ASSERT_CU(launch(noting(name), stream()));
    sim->run_until_idle();
    seen.insert(order);
  }
  EXPECT_EQ(seen.size(), 6u);
}

TEST_F(SimStreams, OneSeedGivesOneOrder) {
  const auto run = [&] {
    start({.seed = 7, .jitter_ns = 500});
    order.clear();
    for (const char* name : {"a", "b", "c", "d"}) ASSERT_CU(launch(noting(name), stream()));
    sim->run_until_idle();
  };
  run();
  const std::vector<std::string> first = order;
  const std::uint64_t end = sim->now_ns();
  run();
  EXPECT_EQ(order, first);
  EXPECT_EQ(sim->now_ns(), end);
}

TEST_F(SimStreams, AWaitHoldsForWhatTheEventMeantWhenItWasCalled) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    start({.seed = seed});
    order.clear();
    const CuStream a = stream(), b = stream();
    const CuEvent done = event();
    ASSERT_CU(launch(noting("first"), a));
    ASSERT_CU(d->cuEventRecord(done, a));
    ASSERT_CU(d->cuStreamWaitEvent(b, done, 0));
    ASSERT_CU(launch(noting("slow"), a));
    ASSERT_CU(d->cuEventRecord(done, a));  // too late for b
    ASSERT_CU(launch(noting("after"), b));
    ASSERT_CU(d->cuStreamSynchronize(b));
    EXPECT_LT(std::find(order.begin(), order.end(), "first"),
              std::find(order.begin(), order.end(), "after"));
  }
}

TEST_F(SimStreams, WaitingForAnEventThatWasNeverRecordedWaitsForNothing) {
  const CuStream on = stream();
  ASSERT_CU(d->cuStreamWaitEvent(on, event(), 0));
  EXPECT_CU(d->cuStreamQuery(on));
  EXPECT_CU(d->cuEventQuery(event()));
}

TEST_F(SimStreams, TheLegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    start({.seed = seed});
    order.clear();
    const CuStream a = stream(kStreamDefault), b = stream(kStreamDefault);
    ASSERT_CU(launch(noting("a"), a));
    ASSERT_CU(launch(noting("legacy"), nullptr));
    ASSERT_CU(launch(noting("b"), b));
    sim->run_until_idle();
    EXPECT_THAT(order, ElementsAre("a", "legacy", "b"));
  }
}

TEST_F(SimStreams, NonBlockingStreamsDoNotCareForTheLegacyStream) {
  std::set<std::vector<std::string>> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    start({.seed = seed});
    order.clear();
    ASSERT_CU(launch(noting("a"), stream()));
    ASSERT_CU(launch(noting("legacy"), legacy_stream()));
    sim->run_until_idle();
    seen.insert(order);
  }
  EXPECT_EQ(seen.size(), 2u);
}

TEST_F(SimStreams, StreamsOverlapInVirtualTime) {
  ASSERT_CU(launch(noting("long", 5000), stream()));
  ASSERT_CU(launch(noting("short", 1000), stream()));
  sim->run_until_idle();
  EXPECT_EQ(sim->now_ns(), 5000u);
  for (const WorkRecord& record : sim->work()) EXPECT_EQ(record.start_ns, 0u);
}

TEST_F(SimStreams, EventsMeasureVirtualTime) {
  const CuStream on = stream();
  const CuEvent start_event = event(), end_event = event(), untimed = event(kEventDisableTiming);
  ASSERT_CU(d->cuEventRecord(start_event, on));
  ASSERT_CU(launch(noting("a", 2'000'000), on));
  ASSERT_CU(d->cuEventRecord(end_event, on));
  ASSERT_CU(d->cuEventRecord(untimed, on));
  float milliseconds = 0;
  EXPECT_EQ(d->cuEventElapsedTime(&milliseconds, start_event, end_event), CuResult::kNotReady);
  ASSERT_CU(d->cuEventSynchronize(end_event));
  ASSERT_CU(d->cuEventElapsedTime(&milliseconds, start_event, end_event));
  EXPECT_FLOAT_EQ(milliseconds, 2.0f);
  EXPECT_EQ(d->cuEventElapsedTime(&milliseconds, start_event, untimed), CuResult::kInvalidHandle);
}

TEST_F(SimStreams, AQueryAnswersNotReadyAndPollingComesToAnEnd) {
  const CuStream on = stream();
  const CuEvent done = event();
  for (int i = 0; i < 3; ++i) ASSERT_CU(launch(noting("work"), on));
  ASSERT_CU(d->cuEventRecord(done, on));
  EXPECT_EQ(d->cuEventQuery(done), CuResult::kNotReady);
  EXPECT_EQ(d->cuStreamQuery(on), CuResult::kNotReady);
  int polls = 0;
  while (d->cuEventQuery(done) == CuResult::kNotReady) ASSERT_LT(++polls, 10);
  EXPECT_CU(d->cuStreamQuery(on));
}

TEST_F(SimStreams, AHostFunctionRunsInOrderAndMayNotCallTheDriver) {
  struct Seen {
    const Driver* driver;
    CuResult result = CuResult::kSuccess;
  } seen{d};
  const CuStream on = stream();
  const auto call = [](void* user_data) {
    auto* it = static_cast<Seen*>(user_data);
    it->result = it->driver->cuCtxSynchronize();
  };
  ASSERT_CU(d->cuLaunchHostFunc(on, call, &seen));
  ASSERT_CU(d->cuStreamSynchronize(on));
  EXPECT_EQ(seen.result, CuResult::kNotPermitted);
  EXPECT_CU(d->cuCtxSynchronize());
}

TEST_F(SimStreams, AStreamThatIsDestroyedFinishesItsWork) {
  const CuStream on = stream();
  ASSERT_CU(launch(noting("a"), on));
  ASSERT_CU(d->cuStreamDestroy(on));
  ASSERT_CU(d->cuCtxSynchronize());
  EXPECT_THAT(order, ElementsAre("a"));
  EXPECT_EQ(d->cuStreamSynchronize(on), CuResult::kInvalidHandle);
}

TEST_F(SimStreams, FreeingMemoryWaitsForTheWorkThatUsesIt) {
  const CuDevicePtr a = allocate(4), b = allocate(4);
  put(a, 1);
  ASSERT_CU(add_one(stream(), a, b));
  ASSERT_CU(d->cuMemFree(a));
  EXPECT_CU(d->cuCtxSynchronize());
  EXPECT_EQ(get(b), 2u);
}

TEST_F(SimStreams, ThreadsHaveTheirOwnContextAndPerThreadStream) {
  CuResult before{}, after{};
  std::thread([&] {
    CuDevicePtr address = 0;
    before = d->cuMemAlloc(&address, 4);
    d->cuCtxSetCurrent(context);
    after = d->cuStreamSynchronize(per_thread_stream());
  }).join();
  EXPECT_EQ(before, CuResult::kInvalidContext);
  EXPECT_CU(after);
}

TEST_F(SimStreams, SeveralThreadsMayCallAtOnce) {
  const CuFunction work = load({.name = "nothing", .params = {}, .run = nullptr});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      EXPECT_CU(d->cuCtxSetCurrent(context));
      CuStream on = nullptr;
      EXPECT_CU(d->cuStreamCreateWithPriority(&on, kStreamNonBlocking, 0));
      for (int i = 0; i < 50; ++i) EXPECT_CU(launch(work, on));
      EXPECT_CU(d->cuStreamSynchronize(on));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sim->work().size(), 200u);
}

}  // namespace
}  // namespace anabranch::sim
