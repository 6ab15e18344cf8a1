// SPDX-License-Identifier: Apache-2.0
#include "plan/regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "plan/order.h"
#include "plan/random_program.h"
#include "plan/waits.h"
#include "plan/waits_oracle.h"

namespace anabranch {
namespace {

using testing::ElementsAre;
using Numbers = std::vector<std::uint32_t>;  // the group of each step

Numbers cut_only(const Program& program) {
  const std::vector<StepId> order = make_order(program);
  return cut_regions(program, order, *derive_waits(program, order)).group_of;
}

std::uint32_t count_of(const Numbers& groups) {
  return groups.empty() ? 0 : *std::max_element(groups.begin(), groups.end()) + 1;
}

RandomProgramOptions small_options(std::uint64_t seed) {
  RandomProgramOptions options;
  options.steps = 8 + static_cast<std::uint32_t>(seed % 25);
  options.streams = 1 + static_cast<std::uint32_t>(seed % 4);
  options.switches = 50;
  options.travels = 25;
  options.in_place = seed % 3 == 0 ? 25 : 5;
  options.views = 20;
  options.syncs = seed % 4 == 0 ? 15 : 0;
  options.others = seed % 5 == 0 ? 15 : 0;
  options.window = 3;
  options.min_bytes = 16;
  options.max_bytes = 64;
  return options;
}

// What must come before what, when each stream runs its groups in the order of their numbers.
Relation order_of_groups(const Program& program, const Numbers& groups, const Relation& needs) {
  const std::size_t count = count_of(groups);
  Relation relation(count, std::vector<bool>(count, false));
  for (std::size_t a = 0; a < groups.size(); ++a) {
    for (std::size_t b = 0; b < groups.size(); ++b) {
      if (groups[a] == groups[b]) continue;
      const bool same_stream = program.steps()[a].stream == program.steps()[b].stream;
      if (needs[a][b] || (same_stream && groups[a] < groups[b])) {
        relation[groups[a]][groups[b]] = true;
      }
    }
  }
  return closure_of(relation);
}

class RegionsOfRandomPrograms : public testing::Test {
 protected:
  template <typename Check>
  void for_each(Check check) {
    for (std::uint64_t seed = 0; seed < 1500 && !HasFatalFailure(); ++seed) {
      const Program program = random_program(seed, small_options(seed));
      SCOPED_TRACE("seed " + std::to_string(seed));
      check(program, *find_regions(program));
    }
  }
};

TEST_F(RegionsOfRandomPrograms, HaveOneStreamEachAndOnlyComputeStepsShareOne) {
  for_each([](const Program& program, const Numbers& groups) {
    std::vector<const Step*> first(groups.size(), nullptr);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const Step& step = program.steps()[i];
      const Step*& other = first[groups[i]];
      if (other == nullptr) {
        other = &step;
        continue;
      }
      ASSERT_EQ(step.stream, other->stream);
      ASSERT_EQ(step.kind, StepKind::kCompute);
      ASSERT_EQ(other->kind, StepKind::kCompute);
    }
  });
}

TEST_F(RegionsOfRandomPrograms, AreNumberedWithoutGapsInAnOrderThatRuns) {
  for_each([](const Program& program, const Numbers& groups) {
    const Relation needs = find_needs(program);
    std::vector<bool> used(count_of(groups), false);
    for (const std::uint32_t group : groups) used[group] = true;
    ASSERT_EQ(std::count(used.begin(), used.end(), false), 0);
    for (std::size_t a = 0; a < groups.size(); ++a) {
      for (std::size_t b = a + 1; b < groups.size(); ++b) {
        ASSERT_TRUE(!needs[a][b] || groups[a] <= groups[b]) << a << " before " << b;
      }
    }
  });
}

// A record covers all earlier work of its stream, a wait holds back all later work.
TEST_F(RegionsOfRandomPrograms, LeaveTheWorkOfAStreamOnItsSideOfASync) {
  for_each([](const Program& program, const Numbers& groups) {
    const auto is_sync = [&](std::size_t i) {
      return program.steps()[i].kind >= StepKind::kRecordEvent;
    };
    for (std::size_t a = 0; a < groups.size(); ++a) {
      for (std::size_t b = a + 1; b < groups.size(); ++b) {
        if (program.steps()[a].stream != program.steps()[b].stream) continue;
        if (!is_sync(a) && !is_sync(b)) continue;
        ASSERT_LT(groups[a], groups[b]);
      }
    }
  });
}

TEST_F(RegionsOfRandomPrograms, StepsOfTwoStreamsThatCouldRunTogetherStillCan) {
  for_each([](const Program& program, const Numbers& groups) {
    const Relation needs = find_needs(program);
    const Relation old = closure_of(join(needs, find_stream_order(program, make_order(program))));
    const Relation now = order_of_groups(program, groups, needs);
    for (std::size_t a = 0; a < groups.size(); ++a) {
      for (std::size_t b = 0; b < groups.size(); ++b) {
        if (program.steps()[a].stream == program.steps()[b].stream) continue;
        ASSERT_TRUE(old[a][b] || !now[groups[a]][groups[b]]) << a << " before " << b;
      }
    }
  });
}

// Two neighbours on a stream differ in what other streams they wait for or hold back.
TEST_F(RegionsOfRandomPrograms, NeighboursCannotBeMergedWithoutDelayingSomeone) {
  for_each([](const Program& program, const Numbers& groups) {
    const Relation order = order_of_groups(program, groups, find_needs(program));
    std::vector<const Step*> step_of(order.size());
    for (std::size_t i = 0; i < groups.size(); ++i) step_of[groups[i]] = &program.steps()[i];
    const auto may_merge = [&](std::size_t g, std::size_t h) {
      for (std::size_t x = 0; x < order.size(); ++x) {
        if (step_of[x]->stream == step_of[g]->stream) continue;
        if (order[x][g] != order[x][h] || order[g][x] != order[h][x]) return false;
      }
      return true;
    };
    std::vector<std::size_t> last(program.streams().size(), order.size());
    for (std::size_t h = 0; h < order.size(); ++h) {
      std::size_t& g = last[index_of(step_of[h]->stream)];
      const bool compute = step_of[h]->kind == StepKind::kCompute;
      ASSERT_FALSE(g != order.size() && compute && may_merge(g, h)) << g << " and " << h;
      g = compute ? h : order.size();
    }
  });
}

TEST_F(RegionsOfRandomPrograms, GatheringNeverMakesMoreOfThem) {
  std::size_t saved = 0;
  for_each([&](const Program& program, const Numbers& groups) {
    const std::uint32_t simple = count_of(cut_only(program));
    ASSERT_LE(count_of(groups), simple);
    saved += simple - count_of(groups);
  });
  EXPECT_GT(saved, 0u);
  RecordProperty("saved", static_cast<int>(saved));
}

struct Draft {
  ProgramBuilder builder;
  StreamId a = builder.add_stream("A");
  StreamId b = builder.add_stream("B");
  int count = 0;

  BufferId input(const char* name) { return builder.add_buffer({name, Role::kInput, 64, 64}); }
  // A step that reads `from` and makes a temporary.
  BufferId step(StreamId stream, std::string name, const std::vector<BufferId>& from) {
    const BufferId to = builder.add_buffer({name, Role::kTemporary, 64, 64});
    std::vector<Access> accesses{builder.write(to)};
    for (const BufferId buffer : from) accesses.push_back(builder.read(buffer));
    builder.compute(stream, std::move(name), std::move(accesses));
    return to;
  }
  Program program() const { return *builder.build(); }
};

TEST(Regions, OneStreamIsOneRegion) {
  Draft draft;
  const BufferId x = draft.input("x");
  BufferId value = draft.step(kAmbient, "first", {x});
  for (int i = 0; i < 10; ++i) value = draft.step(kAmbient, "next", {value, x});
  EXPECT_EQ(count_of(*find_regions(draft.program())), 1u);
}

TEST(Regions, OfAnEmptyProgramAreNone) {
  EXPECT_TRUE(find_regions(*ProgramBuilder().build())->empty());
}

TEST(Regions, TwoBranchesBetweenAForkAndAJoinAreFour) {
  Draft draft;
  const BufferId x = draft.step(kAmbient, "fork", {draft.input("x")});
  const BufferId a1 = draft.step(draft.a, "a1", {x});
  const BufferId b1 = draft.step(draft.b, "b1", {x});
  const BufferId a2 = draft.step(draft.a, "a2", {a1});
  const BufferId b2 = draft.step(draft.b, "b2", {b1});
  draft.step(kAmbient, "join", {a2, b2});
  EXPECT_THAT(*find_regions(draft.program()), ElementsAre(0, 1, 2, 1, 2, 3));
}

TEST(Regions, AStepThatDoesNotNeedTheWaitInFrontOfItMovesBack) {
  Draft draft;
  const BufferId x = draft.input("x");
  const BufferId slow = draft.step(draft.b, "slow", {x});
  const BufferId p1 = draft.step(draft.a, "p1", {x});
  draft.step(draft.a, "q", {slow});
  const BufferId p2 = draft.step(draft.a, "p2", {x});
  draft.step(kAmbient, "both", {p1, p2});
  const Program program = draft.program();
  EXPECT_THAT(cut_only(program), ElementsAre(0, 1, 2, 2, 3));
  // p1 and p2 together, and they no longer wait for stream B.
  EXPECT_THAT(*find_regions(program), ElementsAre(0, 1, 2, 1, 3));
}

TEST(Regions, ACopyBetweenStepsThatDoNotUseItPartsNothing) {
  Draft draft;
  const BufferId x = draft.input("x");
  const BufferId y = draft.builder.add_buffer({"y", Role::kOutput, 64, 64});
  const BufferId value = draft.step(kAmbient, "first", {x});
  draft.builder.copy(kAmbient, draft.builder.whole(y), draft.builder.whole(value));
  draft.step(kAmbient, "second", {value});
  EXPECT_THAT(*find_regions(draft.program()), ElementsAre(0, 1, 0));
}

// The backward of two branches of `depth` linear layers over one input, as a tracer lists it: the
// branches take turns, their gradients of weights go to outputs, and between them stand steps of
// the ambient stream that belong to neither (sums over both branches, a norm).
Program backward(int depth) {
  Draft draft;
  const BufferId tangent = draft.input("tangent");
  BufferId a = draft.step(kAmbient, "loss.grad", {tangent});
  BufferId b = a;
  std::vector<BufferId> sums;
  for (int i = 0; i < depth; ++i) {
    const BufferId weight_a = draft.step(draft.a, "a.weight.grad", {a});
    a = draft.step(draft.a, "a.grad", {a});
    const BufferId weight_b = draft.step(draft.b, "b.weight.grad", {b});
    b = draft.step(draft.b, "b.grad", {b});
    if (i == depth / 2) draft.step(kAmbient, "shared.weight.grad", {weight_a, weight_b});
    sums.push_back(draft.step(kAmbient, "decay", {tangent}));
  }
  sums.push_back(a);
  sums.push_back(b);
  draft.step(kAmbient, "input.grad", sums);
  return draft.program();
}

// Ambient: the loss, which the branches wait for; every decay; the shared weight; the sum. Each
// branch: up to what the shared weight waits for, and the rest.
TEST(Regions, ScatteredStepsOfABackwardGraphAreGathered) {
  const Program program = backward(12);
  const Numbers groups = *find_regions(program);
  EXPECT_EQ(count_of(groups), 8u);
  std::set<std::uint32_t> decays;
  std::set<std::uint32_t> branches;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (program.steps()[i].name == "decay") decays.insert(groups[i]);
    if (program.steps()[i].stream != kAmbient) branches.insert(groups[i]);
  }
  EXPECT_EQ(decays.size(), 1u);
  EXPECT_EQ(branches.size(), 4u);
}

}  // namespace
}  // namespace anabranch
