// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "anabranch/experimental/offload.h"
#include "base/seeds_testing.h"
#include "offload/choose.h"
#include "offload/improve.h"
#include "offload/lives.h"
#include "offload/play.h"
#include "offload/random_problem.h"

namespace anabranch::offload {
namespace {

// Planned for the very link, so that plans can be compared with the best.
Problem tiny_problem(std::uint64_t seed) {
  Problem problem = random_problem(seed, static_cast<std::uint32_t>(1 + seed % 7),
                                   static_cast<std::uint32_t>(2 + seed % 6));
  problem.link_margin = 0;
  return problem;
}

bool is_allowed(const Problem& problem, const std::vector<Choice>& choices) {
  std::uint64_t pinned = 0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const Tensor& tensor = problem.tensors[i];
    if (tensor.must != Choice::kNone && tensor.must != choices[i]) return false;
    if (choices[i] == Choice::kRecompute && tensor.recompute_ns < 0) return false;
    if (choices[i] != Choice::kOffload) continue;
    if (!tensor.may_offload) return false;
    pinned += pinned_bytes_of(tensor);
  }
  return pinned <= problem.pinned_bytes;
}

// Calls `visit` with every choice that is allowed.
template <typename Visit>
void visit_choices(const Problem& problem, Visit visit) {
  std::vector<Choice> choices(problem.tensors.size(), Choice::kKeep);
  for (bool more = true; more;) {
    if (is_allowed(problem, choices)) visit(choices);
    more = false;
    for (Choice& choice : choices) {
      more = choice != Choice::kOffload;
      choice = more ? Choice(static_cast<int>(choice) + 1) : Choice::kKeep;
      if (more) break;
    }
  }
}

TEST(OffloadPlan, MeetsItsBudgetOrSaysWhyNot) {
  for (std::uint64_t seed = 0; seed < rounds_of(2'000); ++seed) {
    const Problem problem = random_problem(seed, static_cast<std::uint32_t>(seed % 30),
                                           static_cast<std::uint32_t>(2 + seed % 17));
    const Result<OffloadPlan> plan = plan_offload(problem);
    ASSERT_TRUE(plan) << seed << ": " << plan.error();
    EXPECT_EQ(plan->reason.empty(), plan->least_bytes <= problem.budget_bytes) << seed;
    EXPECT_LE(plan->predicted.peak_bytes, std::max(problem.budget_bytes, plan->least_bytes));
    EXPECT_LE(plan->predicted.pinned_bytes, problem.pinned_bytes);
    EXPECT_EQ(plan->predicted, simulate_offload(problem, plan->decisions)) << seed;
    EXPECT_TRUE(check_offload(problem, plan->decisions, plan->predicted.peak_bytes)) << seed;
  }
}

TEST(OffloadPlan, TakesLittleMoreTimeThanTheBestOfAllChoices) {
  for (std::uint64_t seed = 0; seed < rounds_of(700); ++seed) {
    const Problem problem = tiny_problem(seed);
    const OffloadPlan plan = *plan_offload(problem);
    const std::uint64_t limit = std::max(problem.budget_bytes, plan.least_bytes);
    std::uint64_t best = ~std::uint64_t{0};
    visit_choices(problem, [&](const std::vector<Choice>& choices) {
      if (least_peak(problem, choices) > limit) return;
      best = std::min(best, score_choices(problem, limit, choices).first);
    });
    EXPECT_LE(plan.predicted.total_ns, best + best / 10) << seed;
  }
}

TEST(OffloadPlan, LeastPeakIsThatOfAllChoicesButWherePinnedMemoryOrNeedsTieThem) {
  std::size_t exact = 0;
  constexpr std::uint64_t kProblems = 700;
  for (std::uint64_t seed = 0; seed < kProblems; ++seed) {
    Problem problem = tiny_problem(seed);
    if (seed % 2 == 0) {
      problem.pinned_bytes = 1 << 20;
      for (Tensor& tensor : problem.tensors) tensor.needs.clear();
    }
    std::uint64_t least = ~std::uint64_t{0};
    visit_choices(problem, [&](const std::vector<Choice>& choices) {
      least = std::min(least, least_peak(problem, choices));
    });
    const std::uint64_t found = plan_offload(problem)->least_bytes;
    EXPECT_GE(found, least) << seed;
    if (seed % 2 == 0) {
      EXPECT_EQ(found, least) << seed;
    }
    exact += found == least ? 1 : 0;
  }
  EXPECT_GE(exact, kProblems * 99 / 100);
}

// Breaks one thing.
void mutate(const Problem& problem, std::vector<Decision>& decisions, std::uint64_t& peak_bytes,
            std::mt19937_64& random) {
  Decision& made = decisions[random() % decisions.size()];
  const Decision& other = decisions[random() % decisions.size()];
  std::uint32_t* const fields[] = {&made.freed_before, &made.back_before, &made.in_before,
                                   &made.out_after,    &made.out_order,   &made.in_order};
  const std::uint64_t what = random() % 9;
  if (what < 6) {
    const std::uint32_t change = random() % 2 == 0 ? 1 : ~std::uint32_t{0};
    if (*fields[what] != kNever) *fields[what] += change;
    if (*fields[what] >= problem.step_ns.size()) *fields[what] = 0;
  } else if (what == 6) {
    made.pinned_offset = other.pinned_offset;
  } else if (what == 7) {
    made.choice = Choice::kKeep;
  } else {
    peak_bytes -= peak_bytes / 8;
  }
}

TEST(OffloadPlan, WhatTheCheckerAcceptsGoesWrongInNoOrder) {
  std::mt19937_64 random(1);
  std::size_t accepted = 0, wrong = 0;
  for (std::uint64_t seed = 0; seed < 1'500; ++seed) {
    const Problem problem = tiny_problem(seed);
    const OffloadPlan plan = *plan_offload(problem);
    for (int mutant = 0; mutant < 20; ++mutant) {
      std::vector<Decision> decisions = plan.decisions;
      std::uint64_t peak_bytes = plan.predicted.peak_bytes;
      if (mutant > 0) mutate(problem, decisions, peak_bytes, random);
      const Status status = check_offload(problem, decisions, peak_bytes);
      const std::string played = Play(problem, decisions, peak_bytes, random()).run();
      if (status) {
        EXPECT_EQ(played, "") << seed << " mutant " << mutant;
      }
      accepted += status ? 1 : 0;
      wrong += played.empty() ? 0 : 1;
    }
  }
  EXPECT_GT(accepted, 5'000u);
  EXPECT_GT(wrong, 2'000u);
}

TEST(OffloadPlan, CopiesThatHideAddNoTime) {
  const Problem problem = transformer_problem(20, 0.9);
  const OffloadPlan plan = *plan_offload(problem);
  EXPECT_EQ(plan.predicted.added_ns, 0u);
  EXPECT_GT(plan.predicted.out_bytes, 0u);
  EXPECT_EQ(plan.predicted.out_bytes, plan.predicted.in_bytes);
  EXPECT_EQ(plan.reason, "");
}

TEST(OffloadPlan, CopiesThatTakeALittleLongerStillHide) {
  const auto added_on_slower_link = [](double margin) {
    Problem problem = transformer_problem(20, 0.9);
    problem.link_margin = margin;
    const OffloadPlan plan = *plan_offload(problem);
    problem.link.out_bytes_per_s *= 0.95;
    problem.link.in_bytes_per_s *= 0.95;
    return simulate_offload(problem, plan.decisions).added_ns;
  };
  EXPECT_EQ(added_on_slower_link(0.1), 0u);
  EXPECT_GT(added_on_slower_link(0), 0u);
}

TEST(OffloadPlan, ASlowLinkLeavesComputingAgain) {
  Problem problem = transformer_problem(20, 0.7);
  problem.link.out_bytes_per_s = problem.link.in_bytes_per_s = 1e8;
  const OffloadPlan plan = *plan_offload(problem);
  EXPECT_EQ(plan.predicted.out_bytes, 0u);
  EXPECT_EQ(plan.predicted.added_ns, plan.predicted.recompute_ns);
}

TEST(OffloadPlan, AFasterLinkAddsNoMoreTime) {
  std::uint64_t added_ns = ~std::uint64_t{0};
  for (const char* name : {"pcie4-x16", "pcie5-x16", "nvlink-c2c-gb200", "nvlink-c2c-gh200"}) {
    const auto found = std::ranges::find(known_links(), name, &NamedLink::name);
    ASSERT_NE(found, known_links().end()) << name;
    Problem problem = transformer_problem(20, 0.2);
    problem.link = found->link;
    const OffloadPlan plan = *plan_offload(problem);
    EXPECT_EQ(plan.reason, "") << name;
    EXPECT_LE(plan.predicted.added_ns, added_ns) << name;
    added_ns = plan.predicted.added_ns;
  }
}

TEST(OffloadPlan, WhatFitsStays) {
  const OffloadPlan plan = *plan_offload(transformer_problem(20, 1.1));
  const auto stays = [](const Decision& made) { return made.choice == Choice::kKeep; };
  EXPECT_TRUE(std::ranges::all_of(plan.decisions, stays));
}

TEST(OffloadPlan, WishesHold) {
  Problem problem = transformer_problem(6, 0.6);
  problem.tensors[0].must = Choice::kKeep;
  problem.tensors[7].must = Choice::kRecompute;
  problem.tensors[40].must = Choice::kOffload;
  const OffloadPlan plan = *plan_offload(problem);
  EXPECT_EQ(plan.decisions[0].choice, Choice::kKeep);
  EXPECT_EQ(plan.decisions[7].choice, Choice::kRecompute);
  EXPECT_EQ(plan.decisions[40].choice, Choice::kOffload);
}

TEST(OffloadPlan, AMissedBudgetNamesItsStepAndWhatStaysThere) {
  Problem problem;
  problem.step_ns = {10, 10, 10, 10};
  problem.base_bytes = {0, 7, 0, 0};
  problem.forward_steps = 2;
  problem.tensors = {{.size_bytes = 100, .first_backward_use = 3, .last_backward_use = 3},
                     {.size_bytes = 50,
                      .made_after = 1,
                      .last_forward_use = 1,
                      .first_backward_use = 2,
                      .last_backward_use = 2,
                      .may_offload = true}};
  problem.link = {.out_bytes_per_s = 1e9, .in_bytes_per_s = 1e9};
  problem.budget_bytes = 120;
  const OffloadPlan plan = *plan_offload(problem);
  EXPECT_EQ(plan.least_bytes, 157u);
  EXPECT_EQ(plan.reason,
            "the budget of 120 bytes cannot be met: step 1 of 4 takes at least 157, of which 7 are "
            "not saved tensors, 50 are saved tensors in use there, 100 others must stay, and 0 "
            "stay for want of pinned memory or since others are computed from them");
}

TEST(OffloadPlan, TheSameProblemGivesTheSamePlan) {
  const Problem problem = transformer_problem(10, 0.3);
  const OffloadPlan plan = *plan_offload(problem);
  EXPECT_EQ(plan.decisions, plan_offload(problem)->decisions);
}

TEST(OffloadPlan, NothingIsPlannedAtOnce) {
  const Result<OffloadPlan> plan = plan_offload({.link = {1e9, 1e9, 0, 1}});
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->decisions.empty());
  EXPECT_EQ(plan_offload({}).error().code(), StatusCode::kProgramInvalid);  // no link
}

}  // namespace
}  // namespace anabranch::offload
