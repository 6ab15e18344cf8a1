// SPDX-License-Identifier: Apache-2.0
// Questions: what do planning the memory and checking for races cost per step, and how close does
// the arena come to what it needs at least? Random programs, 1 to 8 streams, order and waits given;
// and 10,000 programs as the generator makes them when nothing is asked (100 steps, 4 streams).
// `over_bound` is arena / reported bound, `over_antichain` arena / exact bound, medians over seeds.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "anabranch/plan.h"
#include "plan/antichain.h"
#include "plan/memory.h"
#include "plan/order.h"
#include "plan/random_program.h"
#include "plan/waits.h"

namespace anabranch {
namespace {

struct Sample {
  Sample(std::uint64_t seed, const benchmark::State& state)
      : program(make(seed, state)), parts{make_order(program), {}, {}} {
    parts.waits = *derive_waits(program, parts.order);
    parts.arena = plan_memory(program, parts.order, parts.waits);
  }
  static Program make(std::uint64_t seed, const benchmark::State& state) {
    RandomProgramOptions options;
    options.steps = static_cast<std::uint32_t>(state.range(0));
    options.streams = static_cast<std::uint32_t>(state.range(1));
    return random_program(seed, options);
  }
  double over(std::uint64_t bound) const {
    return static_cast<double>(parts.arena.size_bytes) / static_cast<double>(bound);
  }
  std::uint64_t antichain() const {
    const check::Clocks clocks(program, parts.order, parts.waits);
    const memory::Lives lives(program, parts.order, clocks);
    std::vector<std::uint32_t> all(lives.all.size());
    std::iota(all.begin(), all.end(), 0u);
    return memory::find_heaviest_antichain(lives, all);
  }

  Program program;
  PlanParts parts;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void report_ratios(benchmark::State& state) {
  const std::uint64_t seeds = state.range(0) > 3'000 ? 3 : 21;
  std::vector<double> over_bound;
  std::vector<double> over_antichain;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Sample sample(seed, state);
    over_bound.push_back(sample.over(sample.parts.arena.lower_bound_bytes));
    if (state.range(0) <= 1'000) over_antichain.push_back(sample.over(sample.antichain()));
  }
  state.counters["over_bound"] = median(over_bound);
  if (!over_antichain.empty()) state.counters["over_antichain"] = median(over_antichain);
}

void plan_memory_of_random_program(benchmark::State& state) {
  const Sample sample(1, state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(plan_memory(sample.program, sample.parts.order, sample.parts.waits));
  }
  report_ratios(state);
}

void arenas_of_ten_thousand_programs(benchmark::State& state) {
  constexpr std::uint64_t kPrograms = 10'000;
  std::vector<double> over_bound;
  double worst_over_naive = 0;
  for (auto _ : state) {
    for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
      const Program program = random_program(seed);
      const auto order = make_order(program);
      const auto arena = plan_memory(program, order, *derive_waits(program, order));
      const auto size = static_cast<double>(arena.size_bytes);
      over_bound.push_back(size / static_cast<double>(arena.lower_bound_bytes));
      worst_over_naive = std::max(worst_over_naive, size / static_cast<double>(arena.naive_bytes));
    }
  }
  std::sort(over_bound.begin(), over_bound.end());
  state.counters["over_bound"] = over_bound[kPrograms / 2];
  state.counters["over_bound_p95"] = over_bound[kPrograms * 95 / 100];
  state.counters["worst_over_naive"] = worst_over_naive;
}

void find_races_of_random_program(benchmark::State& state) {
  const Sample sample(1, state);
  for (auto _ : state) {
    const bool racy = !find_races(sample.program, sample.parts)->empty();
    if (racy) state.SkipWithError("a derived plan has a race");
  }
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"steps", "streams"})->Unit(benchmark::kMillisecond);
  bench->ArgsProduct({{100, 1'000, 10'000, 100'000}, {1, 2, 4, 8}});
}
BENCHMARK(plan_memory_of_random_program)->Apply(sizes);
BENCHMARK(find_races_of_random_program)->Apply(sizes);
BENCHMARK(arenas_of_ten_thousand_programs)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace anabranch
