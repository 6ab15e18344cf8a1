// SPDX-License-Identifier: Apache-2.0
#include "offload/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "base/seeds_testing.h"
#include "offload/lives.h"
#include "offload/random_problem.h"

namespace anabranch::offload {
namespace {

// Few tensors, all of them offloaded.
Problem offloaded_problem(std::uint64_t seed) {
  Problem problem = random_problem(seed, static_cast<std::uint32_t>(1 + seed % 3),
                                   static_cast<std::uint32_t>(3 + seed % 2));
  for (Tensor& tensor : problem.tensors) {
    tensor.may_offload = true;
    tensor.must = Choice::kNone;
  }
  problem.pinned_bytes = 1 << 20;
  return problem;
}

// All orders of both queues, under all steps that free and bring back.
class BruteForce {
 public:
  BruteForce(const Problem& problem, std::uint64_t limit_bytes, std::vector<Decision> decisions)
      : problem_(problem), limit_(limit_bytes), decisions_(std::move(decisions)) {}

  std::uint64_t least_ns() {
    try_steps(0);
    return least_ns_;
  }

 private:
  void try_steps(std::size_t i) {
    if (i == decisions_.size()) return try_orders();
    Decision& made = decisions_[i];
    for (std::uint32_t freed = problem_.tensors[i].last_forward_use + 1; freed <= made.back_before;
         ++freed) {
      for (std::uint32_t in = freed; in <= made.back_before; ++in) {
        made.freed_before = freed;
        made.in_before = in;
        try_steps(i + 1);
      }
    }
  }
  void try_orders() {
    std::vector<std::uint32_t> out(decisions_.size());
    std::iota(out.begin(), out.end(), 0u);
    do {
      std::vector<std::uint32_t> in(decisions_.size());
      std::iota(in.begin(), in.end(), 0u);
      do {
        for (std::size_t i = 0; i < decisions_.size(); ++i) {
          decisions_[i].out_order = out[i];
          decisions_[i].in_order = in[i];
          decisions_[i].pinned_offset = i << 12;
        }
        if (!check_offload(problem_, decisions_, limit_)) continue;
        least_ns_ = std::min(least_ns_, simulate_offload(problem_, decisions_).total_ns);
      } while (std::ranges::next_permutation(in).found);
    } while (std::ranges::next_permutation(out).found);
  }

  const Problem& problem_;
  std::uint64_t limit_;
  std::vector<Decision> decisions_;
  std::uint64_t least_ns_ = ~std::uint64_t{0};
};

TEST(OffloadSchedule, TakesLittleMoreTimeThanTheBestOfAllSchedules) {
  double sum = 0;
  int problems = 0;
  for (std::uint64_t seed = 0; seed < rounds_of(60); ++seed) {
    const Problem problem = offloaded_problem(seed);
    const std::vector<Choice> choices(problem.tensors.size(), Choice::kOffload);
    const auto floor = find_floor(problem, choices, find_stays(problem, choices));
    for (const std::uint64_t room : {0u, 1000u, 4000u}) {
      const std::uint64_t limit = static_cast<std::uint64_t>(find_peak(floor)) + room;
      const std::vector<Decision> decisions = schedule_copies(problem, choices, limit);
      const Prediction predicted = simulate_offload(problem, decisions);
      EXPECT_LE(predicted.peak_bytes, limit) << seed;
      const auto best = static_cast<double>(BruteForce(problem, limit, decisions).least_ns());
      const double ratio = static_cast<double>(predicted.total_ns) / std::max(best, 1.0);
      EXPECT_LE(ratio, 1.3) << seed;
      sum += ratio;
      ++problems;
    }
  }
  EXPECT_LE(sum / problems, 1.04);
}

TEST(OffloadSchedule, CopiesOutFollowTheForwardAndCopiesInTheBackward) {
  const Problem problem = transformer_problem(4, 0.5);
  const std::vector<Choice> choices(problem.tensors.size(), Choice::kOffload);
  const std::vector<Decision> decisions = schedule_copies(problem, choices, 1 << 30);
  for (std::size_t i = 0; i + 1 < decisions.size(); ++i) {
    EXPECT_EQ(decisions[i].out_after, problem.tensors[i].made_after);
    EXPECT_LT(decisions[i].out_order, decisions[i + 1].out_order);
    EXPECT_EQ(decisions[i].back_before, problem.tensors[i].first_backward_use);
    if (problem.tensors[i].first_backward_use == problem.tensors[i + 1].first_backward_use)
      continue;
    EXPECT_GT(decisions[i].in_order, decisions[i + 1].in_order);
  }
}

}  // namespace
}  // namespace anabranch::offload
