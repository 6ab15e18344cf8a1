// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "anabranch/experimental/offload.h"

namespace anabranch::offload {
namespace {

// Two steps forward and two back, of a microsecond each; a byte takes a nanosecond on the link.
Problem small_problem() {
  Problem problem;
  problem.step_ns = {1000, 1000, 1000, 1000};
  problem.forward_steps = 2;
  problem.tensors = {{.size_bytes = 100,
                      .made_after = 0,
                      .last_forward_use = 0,
                      .first_backward_use = 3,
                      .last_backward_use = 3,
                      .recompute_ns = 300,
                      .may_offload = true},
                     {.size_bytes = 40,
                      .made_after = 1,
                      .last_forward_use = 1,
                      .first_backward_use = 2,
                      .last_backward_use = 2}};
  problem.link = {.out_bytes_per_s = 1e9, .in_bytes_per_s = 1e9};
  return problem;
}

// The first tensor goes out after step 0, is gone in step 2 at the latest, and back for step 3.
std::vector<Decision> offloaded() {
  return {{.choice = Choice::kOffload,
           .back_before = 3,
           .freed_before = 2,
           .out_order = 0,
           .out_after = 0,
           .in_order = 0,
           .in_before = 2},
          {}};
}

TEST(OffloadSimulate, WhatStaysTakesMemoryAndNoTime) {
  const std::vector<Decision> stay(2);
  const Prediction predicted = simulate_offload(small_problem(), stay);
  EXPECT_EQ(predicted.total_ns, 4000u);
  EXPECT_EQ(predicted.added_ns, 0u);
  EXPECT_EQ(predicted.peak_bytes, 140u);
  EXPECT_EQ(predicted.peak_step, 1u);
  EXPECT_EQ(predicted.out_bytes, 0u);
  EXPECT_EQ(predicted.pinned_bytes, 0u);
}

TEST(OffloadSimulate, CopiesBesideStepsAddNothing) {
  const Prediction predicted = simulate_offload(small_problem(), offloaded());
  EXPECT_EQ(predicted.total_ns, 4000u);
  EXPECT_EQ(predicted.out_bytes, 100u);
  EXPECT_EQ(predicted.in_bytes, 100u);
  EXPECT_EQ(predicted.pinned_bytes, kPinnedAlignment);
  EXPECT_EQ(predicted.peak_bytes, 140u);  // in step 1 the memory is not known to be free
}

TEST(OffloadSimulate, MemoryIsFreeFromTheStepThatWaitsForTheCopyOut) {
  std::vector<Decision> decisions = offloaded();
  decisions[0].freed_before = 1;
  decisions[0].in_before = 3;
  Prediction predicted = simulate_offload(small_problem(), decisions);
  EXPECT_EQ(predicted.peak_bytes, 100u);
  EXPECT_EQ(predicted.total_ns, 4200u);  // each copy is waited for: none has a step to hide behind
  decisions[0].in_before = 2;
  predicted = simulate_offload(small_problem(), decisions);
  EXPECT_EQ(predicted.peak_bytes, 140u);
  EXPECT_EQ(predicted.peak_step, 2u);
  EXPECT_EQ(predicted.total_ns, 4100u);
}

TEST(OffloadSimulate, ComputingAgainTakesTimeAndTheMemoryOfWhatItNeeds) {
  Problem problem = small_problem();
  std::vector<Decision> decisions(2);
  decisions[0] = {.choice = Choice::kRecompute, .back_before = 3, .freed_before = 1};
  Prediction predicted = simulate_offload(problem, decisions);
  EXPECT_EQ(predicted.total_ns, 4300u);
  EXPECT_EQ(predicted.added_ns, 300u);
  EXPECT_EQ(predicted.recompute_ns, 300u);
  EXPECT_EQ(predicted.peak_bytes, 100u);
  std::swap(problem.tensors[0], problem.tensors[1]);
  std::swap(decisions[0], decisions[1]);
  problem.tensors[1].needs = {0};
  predicted = simulate_offload(problem, decisions);
  EXPECT_EQ(predicted.peak_bytes, 140u);  // the other one stays until step 3
  EXPECT_EQ(predicted.peak_step, 3u);
}

TEST(OffloadSimulate, CopiesOfAQueueFollowOneAnother) {
  Problem problem = small_problem();
  problem.tensors[0].size_bytes = 1000;
  problem.tensors[1] = problem.tensors[0];
  std::vector<Decision> decisions{offloaded()[0], offloaded()[0]};
  decisions[1].out_order = decisions[1].in_order = 1;
  // Out from 1000 to 3000, which step 2 waits for; in from 3000 to 5000, which step 3 waits for.
  EXPECT_EQ(simulate_offload(problem, decisions).total_ns, 6000u);
  problem.link.latency_ns = 50;
  EXPECT_EQ(simulate_offload(problem, decisions).total_ns, 6200u);
}

TEST(OffloadSimulate, CopiesBothWaysSlowEachOther) {
  Problem problem = small_problem();
  problem.tensors[0].size_bytes = 500;
  problem.tensors[1] = problem.tensors[0];
  problem.tensors[1].may_offload = true;
  problem.link.both_ways = 0.5;
  std::vector<Decision> decisions{offloaded()[0], offloaded()[0]};
  decisions[0].freed_before = 1;  // from 1000 to 1500
  decisions[0].in_before = 1;     // from 1500, beside the copy out of the other
  decisions[0].back_before = 2;
  decisions[1].out_order = decisions[1].in_order = 1;
  decisions[1].in_before = 2;
  // Both take 1000 at half the rate: step 1 ends at 2500 beside them. The last copy in takes its
  // 500 beside step 2.
  EXPECT_EQ(simulate_offload(problem, decisions).total_ns, 4500u);
  decisions[0].back_before = 1;  // step 1 waits for both: until 2500
  EXPECT_EQ(simulate_offload(problem, decisions).total_ns, 5500u);
}

TEST(OffloadSimulate, NothingTakesNoTime) {
  const Prediction predicted = simulate_offload({}, {});
  EXPECT_EQ(predicted, Prediction{});
}

}  // namespace
}  // namespace anabranch::offload
