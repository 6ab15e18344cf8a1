// SPDX-License-Identifier: Apache-2.0
// Is the checker right about correct decisions and about everything that can break in them?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "anabranch/experimental/offload.h"

namespace anabranch::offload {
namespace {

// Four steps forward, four back. 0 and 1 are offloaded, 2 is computed again of 1, 3 stays.
Problem problem_of_four() {
  Problem problem;
  problem.step_ns.assign(8, 1000);
  problem.forward_steps = 4;
  for (std::uint32_t i = 0; i < 4; ++i) {
    problem.tensors.push_back({.size_bytes = 512,
                               .made_after = i,
                               .last_forward_use = i,
                               .first_backward_use = 7 - i,
                               .last_backward_use = 7 - i,
                               .recompute_ns = 10,
                               .may_offload = true});
  }
  problem.tensors[2].needs = {1};
  problem.link = {.out_bytes_per_s = 1e9, .in_bytes_per_s = 1e9};
  problem.pinned_bytes = 1024;
  return problem;
}

std::vector<Decision> decisions_of_four() {
  return {{.choice = Choice::kOffload,
           .back_before = 7,
           .freed_before = 2,
           .out_order = 0,
           .out_after = 0,
           .in_order = 1,
           .in_before = 6,
           .pinned_offset = 512},
          {.choice = Choice::kOffload,
           .back_before = 5,
           .freed_before = 3,
           .out_order = 1,
           .out_after = 1,
           .in_order = 0,
           .in_before = 4,
           .pinned_offset = 0},
          {.choice = Choice::kRecompute, .back_before = 5, .freed_before = 3},
          {}};
}
constexpr std::uint64_t kPeak = 1024;  // 0 and 1 in step 1, 1 and 2 in step 2, 1 and 3 in step 4

struct Mutant {
  const char* name;
  const char* message;  // a part of it
  std::function<void(std::vector<Decision>&)> change;
};

std::string refusal_of(const Problem& problem, const std::vector<Decision>& decisions,
                       std::uint64_t peak_bytes = kPeak) {
  const Status status = check_offload(problem, decisions, peak_bytes);
  return status ? "" : status.message();
}

TEST(OffloadCheck, CorrectDecisionsAreAccepted) {
  EXPECT_EQ(refusal_of(problem_of_four(), decisions_of_four()), "");
  EXPECT_EQ(refusal_of({.link = problem_of_four().link}, {}), "");
}

TEST(OffloadCheck, EveryMutantIsRefusedForWhatIsWrongWithIt) {
  const Mutant mutants[] = {
      {"freed early", "tensor 1 is freed before step 1 and used by step 1",
       [](auto& made) { made[1].freed_before = 1; }},
      {"computed again, freed early", "tensor 2 is freed before step 2",
       [](auto& made) { made[2].freed_before = 2; }},
      {"copied out before it is made", "tensor 1 is copied out after step 0 and made by step 1",
       [](auto& made) { made[1].out_after = 0; }},
      {"freed before it is copied", "tensor 0 is copied out after step 2 and freed before step 2",
       [](auto& made) { made[0].out_after = 2; }},
      {"in before it is out", "tensor 1 is copied in before step 2, and its copy out ends before 3",
       [](auto& made) { made[1].in_before = 2; }},
      {"in too late", "tensor 1 is used by step 5 and copied in before step 6",
       [](auto& made) { made[1].in_before = 6; }},
      {"back too late", "tensor 0 is back before step 8",
       [](auto& made) { made[0].back_before = 8; }},
      {"a need comes too late", "tensor 1 is used by step 5 and back before step 6",
       [](auto& made) { made[1].back_before = 6; }},
      {"computed again too late", "tensor 2 is used by step 5 and back before step 6",
       [](auto& made) { made[2].back_before = 6; }},
      {"a queue that waits for itself", "tensor 1 waits on the queue in for step 6",
       [](auto& made) { std::swap(made[0].in_order, made[1].in_order); }},
      {"a place on the queue twice", "tensor 1 has order 0 on the queue out, where 1 is due",
       [](auto& made) { made[1].out_order = 0; }},
      {"pinned bytes of two", "tensor 0 has pinned bytes of another",
       [](auto& made) { made[0].pinned_offset = 256; }},
      {"pinned bytes askew", "tensor 0 is not aligned",
       [](auto& made) { made[0].pinned_offset = 500; }},
      {"too much pinned memory", "tensor 0 ends behind the 1024 bytes",
       [](auto& made) { made[0].pinned_offset = 768; }},
      {"more memory than claimed", "step 2 takes 1536 bytes, and the peak is said to be 1024",
       [](auto& made) { made[0].freed_before = 3; }},
      {"no choice", "tensor 3 has no choice", [](auto& made) { made[3].choice = Choice::kNone; }},
  };
  for (const Mutant& mutant : mutants) {
    std::vector<Decision> decisions = decisions_of_four();
    mutant.change(decisions);
    EXPECT_THAT(refusal_of(problem_of_four(), decisions), testing::HasSubstr(mutant.message))
        << mutant.name;
  }
}

TEST(OffloadCheck, WhatATensorMayNotBeIsRefused) {
  Problem problem = problem_of_four();
  problem.tensors[1].may_offload = false;
  EXPECT_THAT(refusal_of(problem, decisions_of_four()), testing::HasSubstr("may not be offloaded"));
  problem = problem_of_four();
  problem.tensors[2].recompute_ns = -1;
  EXPECT_THAT(refusal_of(problem, decisions_of_four()), testing::HasSubstr("computed again"));
  problem = problem_of_four();
  problem.tensors[3].must = Choice::kOffload;
  EXPECT_THAT(refusal_of(problem, decisions_of_four()), testing::HasSubstr("tensor 3 is not what"));
  const Status status = check_offload(problem_of_four(), {}, 0);
  EXPECT_EQ(status.code(), StatusCode::kPlanInvalid);
}

TEST(OffloadCheck, MalformedProblemsAreRefusedWithTheirReason) {
  const std::pair<const char*, std::function<void(Problem&)>> cases[] = {
      {"9 of 8 steps", [](Problem& problem) { problem.forward_steps = 9; }},
      {"base_bytes has 1 steps of 8", [](Problem& problem) { problem.base_bytes = {1}; }},
      {"copies nothing", [](Problem& problem) { problem.link.in_bytes_per_s = 0; }},
      {"both_ways is 2", [](Problem& problem) { problem.link.both_ways = 2; }},
      {"link_margin is -1", [](Problem& problem) { problem.link_margin = -1; }},
      {"tensor 0 is made by step 0, used until 4",
       [](Problem& problem) { problem.tensors[0].last_forward_use = 4; }},
      {"tensor 3 needs tensor 3", [](Problem& problem) { problem.tensors[3].needs = {3}; }},
      {"must be 4", [](Problem& problem) { problem.tensors[0].must = Choice(4); }},
      {"must be computed again and may not",
       [](Problem& problem) {
         problem.tensors[0].must = Choice::kRecompute;
         problem.tensors[0].recompute_ns = -1;
       }},
      {"must be offloaded and may not",
       [](Problem& problem) {
         problem.tensors[0].must = Choice::kOffload;
         problem.tensors[0].may_offload = false;
       }},
      {"take 512 bytes of pinned memory, and 256",
       [](Problem& problem) {
         problem.tensors[0].must = Choice::kOffload;
         problem.pinned_bytes = 256;
       }},
      {"too much", [](Problem& problem) { problem.tensors[0].size_bytes = ~std::uint64_t{0}; }},
      {"a step has more", [](Problem& problem) { problem.step_ns[0] = ~std::uint64_t{0}; }},
  };
  for (const auto& [message, change] : cases) {
    Problem problem = problem_of_four();
    change(problem);
    const Status status = check_offload(problem, decisions_of_four(), kPeak);
    EXPECT_EQ(status.code(), StatusCode::kProgramInvalid) << message;
    EXPECT_THAT(status.message(), testing::HasSubstr(message));
  }
}

}  // namespace
}  // namespace anabranch::offload
