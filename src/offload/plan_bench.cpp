// SPDX-License-Identifier: Apache-2.0
// Question: what does planning saved tensors cost, and how near are plans to what must be?
// Method:   a transformer of 8 saved tensors a layer, of which 43 % of the bytes are cheap to
// compute
//           again, on links of several rates and under budgets of several shares of all that is
//           saved. Counters are milliseconds of the plan: what its program takes, what is added,
//           what of that is computed again. One thread.
// Reach:    2,000 tensors in 500 ms.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "anabranch/experimental/offload.h"
#include "offload/choose.h"
#include "offload/improve.h"
#include "offload/lives.h"
#include "offload/random_problem.h"
#include "offload/schedule.h"

namespace anabranch::offload {
namespace {

// When the forward ends all is saved, and what does not fit must be out or be computed again: the
// cheapest, of which also a part. What is out has crossed the link by then, and crosses it again in
// the backward.
double bound_ns(const Problem& problem) {
  struct Again {
    double bytes, ns;
  };
  std::vector<Again> cheapest;
  double excess = -static_cast<double>(problem.budget_bytes);
  for (const Tensor& tensor : problem.tensors) {
    const auto bytes = static_cast<double>(tensor.size_bytes);
    excess += bytes;
    if (tensor.recompute_ns < 0) continue;
    cheapest.push_back({bytes, static_cast<double>(tensor.recompute_ns)});
  }
  std::ranges::sort(cheapest, {}, [](const Again& again) { return again.ns / again.bytes; });
  double forward_ns = 0, backward_ns = 0;
  for (std::size_t i = 0; i < problem.step_ns.size(); ++i) {
    (i < problem.forward_steps ? forward_ns : backward_ns) +=
        static_cast<double>(problem.step_ns[i]);
  }
  const auto added_ns = [&](double out_bytes, double again_ns) {
    const double out = out_bytes * 1e9 / problem.link.out_bytes_per_s - forward_ns;
    const double in = out_bytes * 1e9 / problem.link.in_bytes_per_s - backward_ns - again_ns;
    return again_ns + std::max(out, 0.0) + std::max(in, 0.0);
  };
  // The bound is that of the best number of parts that are computed again.
  constexpr int kParts = 64;
  double again_bytes = 0, again_ns = 0, least_ns = added_ns(std::max(excess, 0.0), 0);
  for (const Again& again : cheapest) {
    for (int part = 0; part < kParts && again_bytes < excess; ++part) {
      again_bytes += again.bytes / kParts;
      again_ns += again.ns / kParts;
      least_ns = std::min(least_ns, added_ns(std::max(excess - again_bytes, 0.0), again_ns));
    }
  }
  return least_ns;
}

void count(benchmark::State& state, const Problem& problem, const OffloadPlan& plan) {
  const auto ms = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e6; };
  state.counters["program_ms"] = ms(plan.predicted.total_ns - plan.predicted.added_ns);
  state.counters["added_ms"] = ms(plan.predicted.added_ns);
  Problem slower = problem;
  slower.link.out_bytes_per_s *= 0.95;
  slower.link.in_bytes_per_s *= 0.95;
  state.counters["slower_ms"] = ms(simulate_offload(slower, plan.decisions).added_ns);
  state.counters["bound_ms"] = bound_ns(problem) / 1e6;
  state.counters["again_ms"] = ms(plan.predicted.recompute_ns);
  state.counters["out_gb"] = static_cast<double>(plan.predicted.out_bytes) / 1e9;
}

void plan_tensors(benchmark::State& state) {
  const auto layers = static_cast<std::uint32_t>(state.range(0) / 8);
  const Problem problem = transformer_problem(layers, static_cast<double>(state.range(1)) / 100);
  for (auto _ : state) benchmark::DoNotOptimize(plan_offload(problem));
  count(state, problem, *plan_offload(problem));
}
BENCHMARK(plan_tensors)
    ->ArgNames({"tensors", "budget_percent"})
    ->ArgsProduct({{2'000}, {90, 70, 50, 30, 10}})
    ->ArgsProduct({{200, 8'000}, {50}})
    ->Unit(benchmark::kMillisecond);

void plan_for_link(benchmark::State& state) {
  Problem problem = transformer_problem(250, 0.3);
  const NamedLink& known = known_links()[static_cast<std::size_t>(state.range(0))];
  problem.link = known.link;
  for (auto _ : state) benchmark::DoNotOptimize(plan_offload(problem));
  state.SetLabel(std::string(known.name));
  count(state, problem, *plan_offload(problem));
}
BENCHMARK(plan_for_link)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

// Of 2,000 tensors under half of what they take.
void least(benchmark::State& state) {
  const Problem problem = transformer_problem(250, 0.5);
  for (auto _ : state) benchmark::DoNotOptimize(choose_least(problem));
}
BENCHMARK(least)->Unit(benchmark::kMillisecond);

void cover(benchmark::State& state) {
  const Problem problem = transformer_problem(250, 0.5);
  std::vector<Choice> choices;
  for (auto _ : state) {
    if (!cover_limit(problem, problem.budget_bytes, 1e9, choices)) std::abort();
  }
}
BENCHMARK(cover)->Unit(benchmark::kMillisecond);

void schedule_and_simulate(benchmark::State& state) {
  const Problem problem = transformer_problem(250, 0.5);
  const std::vector<Choice> choices = choose_least(problem);
  for (auto _ : state) {
    benchmark::DoNotOptimize(score_choices(problem, problem.budget_bytes, choices));
  }
}
BENCHMARK(schedule_and_simulate)->Unit(benchmark::kMillisecond);

void check(benchmark::State& state) {
  const Problem problem = transformer_problem(250, 0.5);
  const OffloadPlan plan = *plan_offload(problem);
  for (auto _ : state) {
    if (!check_offload(problem, plan.decisions, plan.predicted.peak_bytes)) std::abort();
  }
}
BENCHMARK(check)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace anabranch::offload
