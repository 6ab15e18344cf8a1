// SPDX-License-Identifier: Apache-2.0
// StreamTies on the simulated driver.
#include "device/cuda/stream_ties.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Calls of a driver that stands before the simulated one, and what another thread does after the
// next mark of a tie, before the wait for it.
std::vector<std::pair<CuEvent, CuStream>> marked, waited;
std::function<void()> meanwhile;
const Driver* simulated = nullptr;

Driver watched(const Driver& driver) {
  simulated = &driver;
  marked.clear(), waited.clear();
  Driver table = driver;
  table.cuEventRecord = [](CuEvent event, CuStream on) {
    marked.emplace_back(event, on);
    const CuResult result = simulated->cuEventRecord(event, on);
    if (const auto then = std::exchange(meanwhile, nullptr)) std::thread(then).join();
    return result;
  };
  table.cuStreamWaitEvent = [](CuStream on, CuEvent event, unsigned flags) {
    waited.emplace_back(event, on);
    return simulated->cuStreamWaitEvent(on, event, flags);
  };
  return table;
}

class StreamTiesTest : public SimTest {
 protected:
  void start_ties(std::uint64_t seed = 1) {
    ties.reset();
    start({.seed = seed});
    order.clear();
    const std::string image = add_device_code(*sim);
    driver = watched(*d);
    const auto device = CudaDevice::make(driver, 0, image.c_str());
    ASSERT_TRUE(device.ok()) << device.error().message();
    ties = std::make_unique<cuda::StreamTies>(*device);
  }
  void join(CuStream stream, std::vector<CuStream> others) {
    const Status joined = ties->join(stream, others);
    ASSERT_TRUE(joined.ok()) << joined.message();
  }
  void fork(CuStream stream, std::vector<CuStream> others) {
    const Status forked = ties->fork(stream, others);
    ASSERT_TRUE(forked.ok()) << forked.message();
  }
  std::ptrdiff_t calls_of(std::string_view name) const {
    const auto all = sim->calls();
    return std::count(all.begin(), all.end(), name);
  }
  void begin(CuStream on, CuCaptureMode mode = CuCaptureMode::kGlobal) {
    ASSERT_CU(d->cuStreamBeginCapture(on, mode));
  }
  CuCaptureStatus status(CuStream on) {
    CuCaptureStatus found{};
    EXPECT_CU(d->cuStreamIsCapturing(on, &found));
    return found;
  }

  Driver driver;
  std::unique_ptr<cuda::StreamTies> ties;
};

TEST_F(StreamTiesTest, AStreamBeginsBehindOthersAndTheyGoOnBehindIt) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    start_ties(seed);
    const CuStream on = stream(), a = stream(), b = stream();
    ASSERT_CU(launch(noting("a"), a));
    ASSERT_CU(launch(noting("b", 9000), b));
    join(on, {a, b});
    ASSERT_CU(launch(noting("work"), on));
    fork(on, {a, b});
    ASSERT_CU(launch(noting("after"), a));
    ASSERT_CU(launch(noting("later", 9000), b));
    sim->run_until_idle();
    const auto place = [&](const char* name) {
      return std::find(order.begin(), order.end(), name) - order.begin();
    };
    EXPECT_EQ(place("work"), 2) << "seed " << seed;
    EXPECT_GT(place("after"), 2);
    EXPECT_GT(place("later"), 2);
  }
}

TEST_F(StreamTiesTest, IdleStreamsAndTheStreamItselfAreNotWaitedFor) {
  start_ties();
  const CuStream on = stream(), idle = stream(), busy = stream();
  join(on, {on, idle});
  EXPECT_EQ(calls_of("cuEventRecord") + calls_of("cuStreamWaitEvent"), 0);
  for (int i = 0; i < 3; ++i) ASSERT_CU(launch(noting("long"), busy));
  join(on, {on, idle, busy});
  EXPECT_EQ(calls_of("cuEventRecord"), 1);
  EXPECT_EQ(calls_of("cuStreamWaitEvent"), 1);
}

TEST_F(StreamTiesTest, AForkMarksTheStreamOnceForAllOthersAndNeverForItself) {
  start_ties();
  const CuStream on = stream(), a = stream(), b = stream();
  fork(on, {on});
  EXPECT_EQ(calls_of("cuEventRecord"), 0);
  fork(on, {a, on, b});
  EXPECT_EQ(calls_of("cuEventRecord"), 1);
  EXPECT_EQ(calls_of("cuStreamWaitEvent"), 2);
}

TEST_F(StreamTiesTest, EventsServeAgainAndGoWithTheTies) {
  start_ties();
  const CuStream on = stream(), a = stream();
  for (int i = 0; i < 50; ++i) {
    ASSERT_CU(launch(noting("a"), a));
    join(on, {a});
    fork(on, {a});
  }
  EXPECT_EQ(calls_of("cuEventCreate"), 1);
  ties.reset();
  EXPECT_EQ(calls_of("cuEventDestroy"), 1);
}

TEST_F(StreamTiesTest, ThreadsDoNotTakeEachOthersEvents) {
  start_ties();
  const CuStream first = stream(), second = stream(), a = stream(), b = stream();
  for (int i = 0; i < 4; ++i) {
    ASSERT_CU(launch(noting("a"), a));
    ASSERT_CU(launch(noting("b"), b));
  }
  meanwhile = [&] { join(second, {b}); };
  join(first, {a});
  ASSERT_EQ(marked.size(), 2u);
  const CuEvent of_a = marked[0].first, of_b = marked[1].first;
  EXPECT_NE(of_a, of_b);
  EXPECT_THAT(waited, ElementsAre(std::pair(of_b, second), std::pair(of_a, first)));
}

TEST_F(StreamTiesTest, ACaptureIsTiedToTheStreamsThatAreInIt) {
  start_ties();
  const CuStream on = stream(), inside = stream(), outside = stream();
  ASSERT_CU(launch(noting("outside"), outside));
  begin(on);
  fork(on, {outside});
  EXPECT_EQ(status(outside), CuCaptureStatus::kNone);
  const CuEvent mark = event();
  ASSERT_CU(d->cuEventRecord(mark, on));
  ASSERT_CU(d->cuStreamWaitEvent(inside, mark, 0));
  ASSERT_CU(launch(noting("first"), inside));
  join(on, {outside, inside});
  ASSERT_CU(launch(noting("second"), on));
  fork(on, {outside, inside});
  ASSERT_CU(launch(noting("third"), inside));
  join(on, {inside});
  const CuGraph graph = end_capture(on);
  ASSERT_CU(d->cuGraphLaunch(instantiate(graph), on));
  ASSERT_CU(d->cuStreamSynchronize(on));
  std::erase(order, "outside");
  EXPECT_THAT(order, ElementsAre("first", "second", "third"));
}

TEST_F(StreamTiesTest, CapturesOfOthersAreNotDisturbedAndTheModeOfTheThreadIsKept) {
  for (const bool of_this_thread : {true, false}) {
    start_ties();
    const CuStream on = stream(), side = stream(), captured = stream();
    if (of_this_thread) {
      begin(captured);
    } else {
      std::thread([&] { begin(captured); }).join();
    }
    ASSERT_CU(launch(noting("side"), side));
    join(on, {side});
    fork(on, {side});
    EXPECT_EQ(status(captured), CuCaptureStatus::kActive);
    CuCaptureMode mode = CuCaptureMode::kRelaxed;
    ASSERT_CU(d->cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CuCaptureMode::kGlobal);
  }
}

TEST_F(StreamTiesTest, EventsThatACaptureMarkedServeOutsideOfIt) {
  start_ties();
  const CuStream on = stream(), side = stream();
  begin(on);
  const CuEvent mark = event();
  ASSERT_CU(d->cuEventRecord(mark, on));
  ASSERT_CU(d->cuStreamWaitEvent(side, mark, 0));
  join(on, {side});
  ASSERT_NE(end_capture(on), nullptr);
  ASSERT_CU(launch(noting("side"), side));
  join(on, {side});
  ASSERT_CU(launch(noting("on"), on));
  ASSERT_CU(d->cuStreamSynchronize(on));
  EXPECT_THAT(order, ElementsAre("side", "on"));
  EXPECT_EQ(calls_of("cuEventCreate"), 2);  // the other one is `mark`
}

TEST_F(StreamTiesTest, WhatTheDriverRefusesIsToldAndNoEventIsLost) {
  start_ties();
  const CuStream on = stream(), busy = stream();
  for (const char* call : {"cuStreamIsCapturing", "cuEventCreate", "cuEventRecord",
                           "cuStreamWaitEvent", "cuCtxGetCurrent"}) {
    for (int i = 0; i < 3; ++i) ASSERT_CU(launch(noting("busy"), busy));
    sim->fail_call(1, CuResult::kOutOfMemory, call);
    const std::vector<CuStream> others = {busy};
    const Status joined = ties->join(on, others);
    ASSERT_FALSE(joined.ok()) << call;
    EXPECT_THAT(joined.message(), HasSubstr(call));
  }
  join(on, {busy});
  EXPECT_EQ(calls_of("cuEventCreate"), 2);  // one of them failed
}

TEST_F(StreamTiesTest, NeedsNoContextOfTheCaller) {
  start_ties();
  const CuStream side = stream();
  ASSERT_CU(launch(noting("side"), side));
  ASSERT_CU(d->cuCtxSetCurrent(nullptr));
  join(nullptr, {side});
  fork(nullptr, {side});
  EXPECT_EQ(calls_of("cuStreamWaitEvent"), 2);
}

}  // namespace
}  // namespace anabranch::sim
