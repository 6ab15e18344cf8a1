// SPDX-License-Identifier: Apache-2.0
// Problems for tests and benchmarks: small random ones of every kind, and one like a transformer.
// Ownership: values.
// Threads:   pure; the same seed gives the same problem.
// Failure:   none.
// Edges:     random budgets are often too small, and pinned memory too.
#pragma once

#include <cstdint>
#include <random>

#include "anabranch/experimental/offload.h"

namespace anabranch::offload {

class RandomProblem {
 public:
  RandomProblem(std::uint64_t seed, std::uint32_t tensors, std::uint32_t forward_steps)
      : random_(seed), forward_(forward_steps) {
    problem_.forward_steps = forward_steps;
    for (std::uint32_t i = 0; i < 2 * forward_steps; ++i) problem_.step_ns.push_back(pick(0, 2000));
    if (pick(0, 2) == 0) {
      for (std::uint32_t i = 0; i < 2 * forward_steps; ++i) {
        problem_.base_bytes.push_back(pick(0, 4000));
      }
    }
    for (std::uint32_t i = 0; i < tensors; ++i) add_tensor();
    set_link();
    set_limits();
  }
  Problem take() && { return std::move(problem_); }

 private:
  std::uint32_t pick(std::uint32_t least, std::uint32_t most) {
    return least + static_cast<std::uint32_t>(random_() % (most - least + 1));
  }
  void add_tensor() {
    Tensor tensor;
    tensor.size_bytes = pick(0, 3000);
    tensor.made_after = pick(0, forward_ - 1);
    tensor.last_forward_use =
        pick(tensor.made_after, std::min(tensor.made_after + 2, forward_ - 1));
    // Used about where a backward would, sometimes elsewhere.
    const std::uint32_t mirror = 2 * forward_ - 1 - tensor.made_after;
    tensor.first_backward_use = pick(0, 3) == 0 ? pick(forward_, mirror) : mirror;
    tensor.last_backward_use = pick(tensor.first_backward_use, 2 * forward_ - 1);
    if (pick(0, 1) == 0) tensor.recompute_ns = pick(0, 1500);
    tensor.may_offload = pick(0, 4) != 0;
    if (pick(0, 9) == 0) tensor.must = wish(tensor);
    const auto before = static_cast<std::uint32_t>(problem_.tensors.size());
    while (before > 0 && pick(0, 2) == 0) tensor.needs.push_back(pick(0, before - 1));
    problem_.tensors.push_back(tensor);
  }
  Choice wish(const Tensor& tensor) {
    const Choice wish = Choice(pick(1, 3));
    if (wish == Choice::kRecompute && tensor.recompute_ns < 0) return Choice::kKeep;
    // Two of the largest fit into the least pinned memory.
    const bool may = tensor.may_offload && ++offload_wishes_ <= 2;
    return wish == Choice::kOffload && !may ? Choice::kKeep : wish;
  }
  void set_link() {
    problem_.link.out_bytes_per_s = pick(1, 40) * 1e8;
    problem_.link.in_bytes_per_s = pick(1, 40) * 1e8;
    problem_.link.latency_ns = pick(0, 300);
    problem_.link.both_ways = pick(0, 1) == 0 ? 1 : pick(5, 10) / 10.0;
  }
  void set_limits() {
    std::uint64_t all = 0;
    for (const Tensor& tensor : problem_.tensors) all += tensor.size_bytes;
    problem_.budget_bytes = all * pick(0, 12) / 10;
    problem_.pinned_bytes = pick(0, 3) == 0 ? 6400 + all / 3 : 2 * all + 6400;
  }

  std::mt19937_64 random_;  // the standard fixes its numbers
  std::uint32_t forward_;
  std::uint32_t offload_wishes_ = 0;
  Problem problem_;
};

inline Problem random_problem(std::uint64_t seed, std::uint32_t tensors,
                              std::uint32_t forward_steps) {
  return RandomProblem(seed, tensors, forward_steps).take();
}

// A transformer of layers that each save eight tensors, among them cheap ones to compute again,
// over a link on which about a quarter of them hides. `budget_share` of all that is saved is
// allowed.
inline Problem transformer_problem(std::uint32_t layers, double budget_share) {
  Problem problem;
  constexpr std::uint32_t kSaved = 8;
  constexpr std::uint64_t kMiB = 1 << 20;
  constexpr std::uint64_t kSizes[kSaved] = {32, 1, 96, 32, 32, 1, 128, 128};
  // Norms, activations: cheap. Products of matrices and attention: not computed again.
  constexpr std::int64_t kAgain[kSaved] = {30'000, 5'000, -1, -1, 30'000, 5'000, -1, 110'000};
  constexpr std::uint64_t kForwardNs[kSaved] = {30'000,  5'000, 900'000,   700'000,
                                                330'000, 5'000, 1'200'000, 1'300'000};
  problem.forward_steps = layers * kSaved;
  const std::uint32_t steps = 2 * problem.forward_steps;
  problem.step_ns.resize(steps);
  std::uint64_t saved = 0;
  for (std::uint32_t i = 0; i < problem.forward_steps; ++i) {
    problem.step_ns[i] = kForwardNs[i % kSaved];
    problem.step_ns[steps - 1 - i] = 2 * kForwardNs[i % kSaved];
    Tensor tensor;
    tensor.size_bytes = kSizes[i % kSaved] * kMiB;
    tensor.made_after = i;
    tensor.last_forward_use = std::min(i + 1, problem.forward_steps - 1);
    tensor.last_backward_use = steps - 1 - i;
    tensor.first_backward_use = std::max(steps - 2 - i, problem.forward_steps);
    tensor.recompute_ns = kAgain[i % kSaved];
    tensor.may_offload = true;
    if (tensor.recompute_ns >= 0 && i > 0) tensor.needs.push_back(i - 1);
    saved += tensor.size_bytes;
    problem.tensors.push_back(tensor);
  }
  problem.link = {
      .out_bytes_per_s = 25e9, .in_bytes_per_s = 25e9, .latency_ns = 10'000, .both_ways = 0.9};
  problem.budget_bytes = static_cast<std::uint64_t>(budget_share * static_cast<double>(saved));
  problem.pinned_bytes = saved;
  return problem;
}

}  // namespace anabranch::offload
