// SPDX-License-Identifier: Apache-2.0
// Question: what does a tape add to the calls on it?
// Method: a tape of N calls to a function that does nothing, at the addresses of the last run and
// at new ones in every run, beside a loop of the same calls. Reported a call, callee included.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "anabranch/experimental/tape.h"

namespace anabranch::tape {
namespace {

__attribute__((noinline)) void nothing(void* to, const void* from, std::int64_t count) {
  benchmark::DoNotOptimize(to);
  benchmark::DoNotOptimize(from);
  benchmark::DoNotOptimize(count);
}

std::unique_ptr<Tape> make_tape(std::int64_t calls) {
  TapeBuilder builder;
  for (std::int64_t i = 0; i < calls; ++i) {
    builder.call("nothing", reinterpret_cast<void*>(&nothing),
                 {Address{0, 0}, Address{1, 64}, std::int64_t{5}}, false);
  }
  return std::move(*builder.finish());
}

void report(benchmark::State& state) {
  state.counters["a call"] =
      benchmark::Counter(static_cast<double>(state.iterations() * state.range(0)),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void loop_of_calls(benchmark::State& state) {
  std::array<char, 128> a{}, b{};
  void (*volatile function)(void*, const void*, std::int64_t) = &nothing;
  for (auto _ : state) {
    for (std::int64_t i = 0; i < state.range(0); ++i) function(a.data(), b.data() + 64, 5);
  }
  report(state);
}
BENCHMARK(loop_of_calls)->Arg(100)->Arg(1000);

void run_tape(benchmark::State& state, bool moving) {
  const auto tape = make_tape(state.range(0));
  std::array<char, 128> a{}, b{};
  std::array<std::array<void*, 2>, 2> buffers = {{{a.data(), b.data()}, {b.data(), a.data()}}};
  std::size_t turn = 0;
  for (auto _ : state) {
    if (moving) turn ^= 1;
    if (tape->run({buffers[turn].data(), 2, nullptr, 0}) != 0) state.SkipWithError("failed");
  }
  report(state);
}
BENCHMARK_CAPTURE(run_tape, same_addresses, false)->Arg(1)->Arg(100)->Arg(1000);
BENCHMARK_CAPTURE(run_tape, new_addresses, true)->Arg(1)->Arg(100)->Arg(1000);

}  // namespace
}  // namespace anabranch::tape
