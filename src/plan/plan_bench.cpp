// SPDX-License-Identifier: Apache-2.0
// Question: what does planning cost, and is it linear in steps?
// Method:   random programs like models over 8 streams; the whole of make_plan, its parts as
//           counters in milliseconds of processor time. One thread.
// Reach:    10,000 steps in 100 ms, close to linear from 1,000 to 100,000.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <ctime>
#include <vector>

#include "anabranch/plan.h"
#include "plan/memory.h"
#include "plan/order.h"
#include "plan/plan_parts.h"
#include "plan/random_program.h"
#include "plan/waits.h"

namespace anabranch {
namespace {

Program model_program(std::int64_t steps) {
  RandomProgramOptions options;
  options.steps = static_cast<std::uint32_t>(steps);
  options.streams = 8;
  options.callers = 60;
  options.syncs = 1;
  options.max_bytes = 16 << 20;
  return random_program(1, options);
}

// Adds the processor time of `work` to a counter.
template <typename Work>
auto timed(benchmark::Counter& counter, Work work) {
  const std::clock_t begin = std::clock();
  auto result = work();
  counter.value += 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return result;
}

void make_plan_of_steps(benchmark::State& state) {
  const Program program = model_program(state.range(0));
  if (!make_plan(program)) std::abort();
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(program));
  state.SetComplexityN(state.range(0));
  state.counters["waits"] = static_cast<double>(make_plan(program)->waits().size());
}
BENCHMARK(make_plan_of_steps)
    ->Arg(1'000)
    ->Arg(10'000)
    ->Arg(100'000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity(benchmark::oN);

void parts_of_make_plan(benchmark::State& state) {
  const Program program = model_program(state.range(0));
  for (const char* name : {"order_ms", "waits_ms", "memory_ms", "parts_ms", "check_ms"}) {
    state.counters[name] = benchmark::Counter(0, benchmark::Counter::kAvgIterations);
  }
  for (auto _ : state) {
    PlanParts parts;
    parts.order = timed(state.counters["order_ms"], [&] { return make_order(program); });
    parts.waits =
        timed(state.counters["waits_ms"], [&] { return *derive_waits(program, parts.order); });
    parts.arena = timed(state.counters["memory_ms"],
                        [&] { return plan_memory(program, parts.order, parts.waits); });
    const Status fits =
        timed(state.counters["parts_ms"], [&] { return check_parts(program, parts); });
    const Status safe =
        timed(state.counters["check_ms"], [&] { return check_plan(program, parts); });
    if (!fits || !safe) std::abort();
  }
}
BENCHMARK(parts_of_make_plan)->Arg(1'000)->Arg(10'000)->Arg(100'000)->Unit(benchmark::kMillisecond);

void find_regions_of_steps(benchmark::State& state) {
  const Program program = model_program(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(find_regions(program));
  state.SetComplexityN(state.range(0));
}
BENCHMARK(find_regions_of_steps)
    ->Arg(1'000)
    ->Arg(10'000)
    ->Arg(100'000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity(benchmark::oN);

// One buffer in many parts: tiles written in turn by all streams, then read whole, again and again.
void waits_over_tiles(benchmark::State& state) {
  ProgramBuilder builder;
  std::vector<StreamId> streams{kAmbient};
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) {
    streams.push_back(builder.add_stream(name));
  }
  const auto tiles = static_cast<std::uint64_t>(state.range(0));
  const BufferId buffer = builder.add_buffer({"tiles", Role::kInput, tiles * 64, 64});
  for (std::uint64_t i = 0; i < tiles; ++i) {
    const View tile{buffer, (i * 7919 % tiles) * 64, 64, {}};
    builder.compute(streams[i % 8], "tile", {{AccessMode::kWrite, tile}});
    if (i % (tiles / 4) == 0) builder.compute(kAmbient, "all", {builder.read(buffer)});
  }
  const Program program = *builder.build();
  const std::vector<StepId> order = make_order(program);
  for (auto _ : state) benchmark::DoNotOptimize(derive_waits(program, order));
  state.SetComplexityN(state.range(0));
}
BENCHMARK(waits_over_tiles)
    ->Arg(1'000)
    ->Arg(10'000)
    ->Arg(100'000)
    ->Unit(benchmark::kMillisecond)
    ->Complexity(benchmark::oN);

}  // namespace
}  // namespace anabranch
