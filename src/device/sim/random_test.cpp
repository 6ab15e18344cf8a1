// SPDX-License-Identifier: Apache-2.0
// Random programs over streams: what runs at once, what is captured and launched, and what runs in
// the order of the calls are the same, whatever the seed.
#include <random>

#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

constexpr std::size_t kCells = 6, kStreams = 3;

// cell[to] = cell[from] + 1, on a stream.
struct Step {
  std::size_t from, to, stream;
};

std::vector<Step> random_steps(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Step> steps(20);
  for (Step& step : steps) {
    step = {random() % kCells, random() % kCells, random() % kStreams};
  }
  return steps;
}

std::vector<std::uint32_t> expected(const std::vector<Step>& steps) {
  std::vector<std::uint32_t> cells(kCells, 0);
  for (const auto& [from, to, on] : steps) cells[to] = cells[from] + 1;
  return cells;
}

class SimRandom : public SimTest {
 protected:
  void make(std::uint64_t seed) {
    start({.seed = seed, .jitter_ns = 700});
    cells = allocate(4 * kCells);
    for (CuStream& made : streams) made = stream();
    add = load("add_one");
    last.assign(kCells, {});
  }
  void clear() { ASSERT_CU(d->cuMemsetD8(cells, 0, 4 * kCells)); }
  // A step waits for the last step of every other stream that touched one of its cells.
  void queue(const Step& step) {
    const CuStream on = streams[step.stream];
    for (const std::size_t cell : {step.from, step.to}) {
      for (const auto& [where, mark] : last[cell]) {
        if (where == step.stream) continue;
        ASSERT_CU(d->cuStreamWaitEvent(on, mark, 0));
      }
    }
    CuDevicePtr in = cells + 4 * step.from, out = cells + 4 * step.to;
    std::uint32_t count = 1;
    ASSERT_CU(launch(add, on, {&in, &out, &count}));
    const CuEvent mark = event(kEventDisableTiming);
    ASSERT_CU(d->cuEventRecord(mark, on));
    for (const std::size_t cell : {step.from, step.to}) last[cell][step.stream] = mark;
  }
  std::vector<std::uint32_t> result() {
    std::vector<std::uint32_t> words(kCells);
    EXPECT_CU(d->cuMemcpyDtoH(words.data(), cells, 4 * kCells));
    return words;
  }
  void order_streams(std::size_t from, std::size_t to) {
    const CuEvent mark = event(kEventDisableTiming);
    ASSERT_CU(d->cuEventRecord(mark, streams[from]));
    ASSERT_CU(d->cuStreamWaitEvent(streams[to], mark, 0));
  }

  CuDevicePtr cells = 0;
  CuStream streams[kStreams] = {};
  CuFunction add = nullptr;
  std::vector<std::map<std::size_t, CuEvent>> last;
};

TEST_F(SimRandom, StreamsWithTheirWaitsDoWhatTheCallsSay) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    make(seed);
    clear();
    const std::vector<Step> steps = random_steps(seed);
    for (const Step& step : steps) queue(step);
    ASSERT_CU(d->cuCtxSynchronize());
    ASSERT_EQ(result(), expected(steps)) << "seed " << seed;
  }
}

TEST_F(SimRandom, ALaunchedCaptureDoesWhatItsStreamsWouldHaveDone) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    make(seed);
    clear();
    const std::vector<Step> steps = random_steps(seed);
    ASSERT_CU(d->cuStreamBeginCapture(streams[0], CuCaptureMode::kRelaxed));
    for (std::size_t i = 1; i < kStreams; ++i) order_streams(0, i);
    for (const Step& step : steps) queue(step);
    for (std::size_t i = 1; i < kStreams; ++i) order_streams(i, 0);
    const CuGraphExec exec = instantiate(end_capture(streams[0]));
    for (int launch = 0; launch < 2; ++launch) {
      clear();
      ASSERT_CU(d->cuGraphLaunch(exec, streams[seed % kStreams]));
      ASSERT_CU(d->cuCtxSynchronize());
      ASSERT_EQ(result(), expected(steps)) << "seed " << seed;
    }
  }
}

// The other way round: without its waits, a program with a race shows it under some seed.
TEST_F(SimRandom, AMissingWaitIsSeen) {
  int seen = 0;
  const std::vector<Step> steps = {{0, 1, 0}, {1, 2, 1}};
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    make(seed);
    clear();
    for (const Step& step : steps) {
      last.assign(kCells, {});
      queue(step);
    }
    ASSERT_CU(d->cuCtxSynchronize());
    seen += result() != expected(steps);
  }
  EXPECT_GT(seen, 5);
  EXPECT_LT(seen, 45);
}

}  // namespace
}  // namespace anabranch::sim
