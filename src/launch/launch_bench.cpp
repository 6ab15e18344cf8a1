// SPDX-License-Identifier: Apache-2.0
// Question: what does a launch cost beside the work of its steps?
// Method:   steps whose regions do nothing, launched again and again from one thread on a device
//           of two lanes; before time is taken, regions that count prove that every step runs.
//           One sample is the mean of many launches; medians and spread come from repetitions:
//             --benchmark_repetitions=15 --benchmark_report_aggregates_only
#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "anabranch/launch.h"
#include "record/record_testing.h"

namespace anabranch {
namespace {

using testing::must;

constexpr StreamId kSide{1};

std::atomic<int> steps_run{0};

std::int32_t do_nothing(void*, const RegionCall*) { return 0; }
std::int32_t count_step(void*, const RegionCall*) {
  steps_run.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

Recording record_on_two_lanes(const Plan& plan, RegionFunction function) {
  HostOptions options;
  options.max_lanes = 2;
  const RegionTable regions{{"step", {function, nullptr}}};
  return must(record(plan, Device::host(options), regions));
}

// Two streams of empty steps; every `gap` steps one of them waits for the other, in turn.
Plan two_streams(int steps, int gap) {
  ProgramBuilder builder;
  builder.add_stream("side");
  const EventId to_side = builder.add_event("to side"),
                to_ambient = builder.add_event("to ambient");
  for (int i = 0; i < steps; ++i) {
    const bool odd = i % 2 != 0;
    const StreamId stream = odd ? kSide : kAmbient;
    if (gap != 0 && i >= gap && i % gap == 0) {
      // What the other stream ran last is what this step waits for.
      builder.record_event(odd ? kAmbient : kSide, odd ? to_side : to_ambient);
      builder.wait_event(stream, odd ? to_side : to_ambient);
    }
    builder.compute(stream, "step", {});
  }
  return must(make_plan(must(builder.build())));
}

void launch_all(benchmark::State& state, const Plan& plan, int steps) {
  const Recording counted = record_on_two_lanes(plan, count_step);
  steps_run = 0;
  must(launch(counted, {}));
  if (steps_run != steps) return state.SkipWithError("not every step ran");
  const Recording recording = record_on_two_lanes(plan, do_nothing);
  for (auto _ : state) must(launch(recording, {}));
  state.counters["lanes"] = recording.lane_count();
  state.counters["waits"] = static_cast<double>(plan.waits().size());
  if (steps == 0) return;
  state.counters["s_per_step"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * steps,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void launch_nothing(benchmark::State& state) { launch_all(state, two_streams(0, 0), 0); }
BENCHMARK(launch_nothing)->UseRealTime();

void launch_one_step(benchmark::State& state) { launch_all(state, two_streams(1, 0), 1); }
BENCHMARK(launch_one_step)->UseRealTime();

// A fork and a join, the worker still spinning from the launch before.
void launch_fork_join(benchmark::State& state) { launch_all(state, two_streams(2, 0), 2); }
BENCHMARK(launch_fork_join)->UseRealTime();

void launch_1000_steps_200_waits(benchmark::State& state) {
  launch_all(state, two_streams(1000, 5), 1000);
}
BENCHMARK(launch_1000_steps_200_waits)->UseRealTime()->Unit(benchmark::kMicrosecond);

// The worker sleeps when the launch comes.
void launch_fork_join_after_idle(benchmark::State& state) {
  const Recording recording = record_on_two_lanes(two_streams(2, 0), do_nothing);
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto begin = std::chrono::steady_clock::now();
    must(launch(recording, {}));
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(spent.count());
  }
}
BENCHMARK(launch_fork_join_after_idle)->UseManualTime()->Iterations(300);

// Sixteen slots, of which `moved` have another address in every launch.
void launch_moved_slots(benchmark::State& state) {
  constexpr std::uint32_t kSlots = 16;
  constexpr std::uint64_t kBytes = 256;
  ProgramBuilder builder;
  std::vector<Access> accesses;
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    accesses.push_back(
        builder.write(builder.add_buffer({std::to_string(i), Role::kOutput, kBytes, 64})));
  }
  builder.compute(kAmbient, "step", accesses);
  const Plan plan = must(make_plan(must(builder.build())));
  const Recording recording = record_on_two_lanes(plan, do_nothing);
  struct alignas(64) Block {
    std::byte bytes[kBytes];
  };
  std::vector<Block> here(kSlots), there(kSlots);
  std::vector<Binding> one, other;
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    one.push_back({&here[i], kBytes});
    other.push_back({i < state.range(0) ? &there[i] : &here[i], kBytes});
  }
  for (auto _ : state) {
    must(launch(recording, one));
    std::swap(one, other);
  }
}
BENCHMARK(launch_moved_slots)->Arg(0)->Arg(1)->Arg(16);

}  // namespace
}  // namespace anabranch
