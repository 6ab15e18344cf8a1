// SPDX-License-Identifier: Apache-2.0
#include "plan/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/seeds_testing.h"
#include "plan/antichain.h"
#include "plan/check_brute.h"
#include "plan/memory_bound.h"
#include "plan/memory_place.h"
#include "plan/order.h"
#include "plan/random_program.h"
#include "plan/waits.h"

namespace anabranch {
namespace {

using check::BruteForce;
using check::Clocks;
using check::StepMask;
using memory::Layout;
using memory::Lives;

struct Planned {
  explicit Planned(Program made)
      : program(std::move(made)),
        order(make_order(program)),
        waits(*derive_waits(program, order)),
        arena(plan_memory(program, order, waits)) {}

  Program program;
  std::vector<StepId> order;
  std::vector<Wait> waits;
  ArenaLayout arena;
};

Program small_program(std::uint64_t seed, std::uint32_t steps = 50) {
  RandomProgramOptions options;
  options.steps = steps;
  options.streams = 1 + static_cast<std::uint32_t>(seed % 6);
  options.syncs = seed % 2 == 0 ? 5 : 0;
  options.max_bytes = 1 << 12;
  return random_program(seed, options);
}

// Two lives have no byte in common unless one is over whenever the other begins.
void expect_apart(const Planned& planned, const ArenaLayout& arena) {
  const BruteForce brute(planned.program);
  const std::vector<StepMask> ended =
      check::find_ended_before(planned.program, planned.order, planned.waits);
  for (std::size_t a = 0; a < arena.offsets.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (!brute.share_bytes(arena, a, b)) continue;
      EXPECT_TRUE(brute.all_before(ended, a, b) || brute.all_before(ended, b, a))
          << "buffers " << a << " and " << b;
    }
  }
}

TEST(PlanMemory, TwoLiveBuffersNeverShareAByte) {
  for (std::uint64_t seed = 0; seed < rounds_of(300); ++seed) {
    const Planned planned(small_program(seed));
    expect_apart(planned, planned.arena);
  }
}

TEST(PlanMemory, EveryWayOfPlacingKeepsLiveBuffersApart) {
  for (std::uint64_t seed = 0; seed < rounds_of(100); ++seed) {
    const Planned planned(small_program(seed));
    const Clocks clocks(planned.program, planned.order, planned.waits);
    const Lives lives(planned.program, planned.order, clocks);
    const auto conflicts = memory::find_conflicts(lives, 1'000'000);
    ASSERT_TRUE(conflicts);
    for (const Layout& layout :
         {memory::place_apart(lives), memory::place_in_order(lives, 1'000'000),
          memory::place_in_order(lives, 100), memory::place_by_size(lives, *conflicts, 0, 0),
          memory::place_by_size(lives, *conflicts, 0, 1'000'000)}) {
      ArenaLayout arena;
      arena.offsets.assign(planned.program.buffers().size(), kNotInArena);
      for (std::size_t i = 0; i < lives.all.size(); ++i) {
        arena.offsets[index_of(lives.all[i].buffer)] = layout.offsets[i];
        EXPECT_LE(layout.offsets[i] + lives.all[i].size_bytes, layout.size_bytes);
      }
      expect_apart(planned, arena);
    }
  }
}

TEST(PlanMemory, ConflictsAreExactlyThePairsThatLiveTogether) {
  for (std::uint64_t seed = 0; seed < rounds_of(100); ++seed) {
    const Planned planned(small_program(seed));
    const BruteForce brute(planned.program);
    const std::vector<StepMask> ended =
        check::find_ended_before(planned.program, planned.order, planned.waits);
    const Clocks clocks(planned.program, planned.order, planned.waits);
    const Lives lives(planned.program, planned.order, clocks);
    const auto conflicts = memory::find_conflicts(lives, 1'000'000);
    ASSERT_TRUE(conflicts);
    for (std::uint32_t a = 0; a < lives.all.size(); ++a) {
      for (std::uint32_t b = 0; b < a; ++b) {
        const std::uint32_t buffer_a = index_of(lives.all[a].buffer);
        const std::uint32_t buffer_b = index_of(lives.all[b].buffer);
        const bool together = !brute.all_before(ended, buffer_a, buffer_b) &&
                              !brute.all_before(ended, buffer_b, buffer_a);
        const auto of_a = conflicts->of(a);
        const auto of_b = conflicts->of(b);
        EXPECT_EQ(std::count(of_a.begin(), of_a.end(), b), together ? 1 : 0);
        EXPECT_EQ(std::count(of_b.begin(), of_b.end(), a), together ? 1 : 0);
      }
    }
  }
}

TEST(PlanMemory, IsNeitherBelowItsBoundNorAboveTheNaiveSum) {
  for (std::uint64_t seed = 0; seed < rounds_of(300); ++seed) {
    const Planned planned(small_program(seed, 150));
    EXPECT_LE(planned.arena.lower_bound_bytes, planned.arena.size_bytes);
    EXPECT_LE(planned.arena.size_bytes, planned.arena.naive_bytes);
  }
}

TEST(PlanMemory, IsTheSameEveryTime) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Planned planned(small_program(seed, 150));
    const ArenaLayout again = plan_memory(planned.program, planned.order, planned.waits);
    EXPECT_EQ(planned.arena.offsets, again.offsets);
    EXPECT_EQ(planned.arena.size_bytes, again.size_bytes);
    EXPECT_EQ(planned.arena.lower_bound_bytes, again.lower_bound_bytes);
  }
}

// One stream; buffer i is written by step i and read by step i + 1.
Program make_chain(const std::vector<std::uint64_t>& sizes, std::uint64_t alignment = 64) {
  ProgramBuilder builder;
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const BufferId buffer =
        builder.add_buffer({"b" + std::to_string(i), Role::kTemporary, sizes[i], alignment});
    accesses.push_back(builder.write(buffer));
    builder.compute(kAmbient, "work", accesses);
    accesses = {builder.read(buffer)};
  }
  return *builder.build();
}

TEST(PlanMemory, AChainTakesTwoBuffers) {
  const Planned planned(make_chain(std::vector<std::uint64_t>(100, 4096)));
  EXPECT_EQ(planned.arena.size_bytes, 2u * 4096);
  EXPECT_EQ(planned.arena.lower_bound_bytes, 2u * 4096);
  EXPECT_EQ(planned.arena.naive_bytes, 100u * 4096);
}

TEST(PlanMemory, ARingOfSizesTakesItsTwoLargestNeighbours) {
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t i = 0; i < 60; ++i) sizes.push_back(64 * (1 + i % 7));
  const Planned planned(make_chain(sizes));
  EXPECT_EQ(planned.arena.size_bytes, 64u * (6 + 7));
}

TEST(PlanMemory, OffsetsAreMultiplesOfTheAlignment) {
  for (const std::uint64_t alignment : {1, 2, 256, 4096}) {
    ProgramBuilder builder;
    for (std::uint64_t i = 0; i < 20; ++i) {
      const std::uint64_t own = i % 2 == 0 ? alignment : 64;
      const BufferId buffer =
          builder.add_buffer({"b" + std::to_string(i), Role::kTemporary, 1 + 37 * i, own});
      builder.compute(kAmbient, "work", {builder.write(buffer)});
      builder.compute(kAmbient, "work", {builder.read(buffer)});
    }
    const Planned planned(*builder.build());
    for (std::size_t i = 0; i < planned.arena.offsets.size(); ++i) {
      EXPECT_EQ(planned.arena.offsets[i] % planned.program.buffers()[i].alignment, 0u);
    }
  }
}

// Two streams each with a chain: their buffers live together unless the second chain waits.
TEST(PlanMemory, AnotherStreamMayTakeBytesOnlyAfterAWait) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId x = builder.add_buffer({"x", Role::kTemporary, 1024, 64});
  const BufferId y = builder.add_buffer({"y", Role::kTemporary, 1024, 64});
  builder.compute(kAmbient, "work", {builder.write(x)});
  const StepId last_x = builder.compute(kAmbient, "work", {builder.read(x)});
  const StepId first_y = builder.compute(side, "work", {builder.write(y)});
  const Program program = *builder.build();
  const std::vector<StepId> order{StepId{0}, StepId{1}, StepId{2}};
  EXPECT_EQ(plan_memory(program, order, {}).size_bytes, 2048u);
  EXPECT_EQ(plan_memory(program, order, {}).lower_bound_bytes, 2048u);
  const std::vector<Wait> too_early{{first_y, StepId{0}}};
  EXPECT_EQ(plan_memory(program, order, too_early).size_bytes, 2048u);
  const std::vector<Wait> enough{{first_y, last_x}};
  EXPECT_EQ(plan_memory(program, order, enough).size_bytes, 1024u);
}

TEST(PlanMemory, UnusedAndEmptyBuffersTakeNothing) {
  ProgramBuilder builder;
  const BufferId input = builder.add_buffer({"input", Role::kInput, 64, 64});
  const BufferId unused = builder.add_buffer({"unused", Role::kTemporary, 64, 64});
  const BufferId empty = builder.add_buffer({"empty", Role::kTemporary, 0, 64});
  builder.compute(kAmbient, "work", {builder.read(input), builder.write(empty)});
  const Planned planned(*builder.build());
  EXPECT_EQ(planned.arena.size_bytes, 0u);
  EXPECT_EQ(planned.arena.naive_bytes, 0u);
  EXPECT_EQ(planned.arena.offsets[index_of(input)], kNotInArena);
  EXPECT_EQ(planned.arena.offsets[index_of(unused)], kNotInArena);
  EXPECT_EQ(planned.arena.offsets[index_of(empty)], 0u);
}

TEST(PlanMemory, AnEmptyProgramHasAnEmptyArena) {
  const Planned planned(*ProgramBuilder().build());
  EXPECT_EQ(planned.arena.size_bytes, 0u);
  EXPECT_TRUE(planned.arena.offsets.empty());
}

std::vector<std::uint32_t> all_of(const Lives& lives) {
  std::vector<std::uint32_t> all(lives.all.size());
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

std::uint64_t heaviest_by_trying_all(const Lives& lives) {
  std::uint64_t heaviest = 0;
  for (std::uint32_t subset = 0; subset < (1u << lives.all.size()); ++subset) {
    std::uint64_t sum = 0;
    bool antichain = true;
    for (std::size_t b = 0; b < lives.all.size() && antichain; ++b) {
      if ((subset >> b & 1) == 0) continue;
      sum += lives.all[b].size_bytes;
      for (std::size_t a = 0; a < b; ++a) {
        antichain =
            antichain && ((subset >> a & 1) == 0 || !lives.before(lives.all[a], lives.all[b]));
      }
    }
    if (antichain) heaviest = std::max(heaviest, sum);
  }
  return heaviest;
}

TEST(PlanMemoryBound, TheHeaviestAntichainIsThatOfAllSubsets) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Planned planned(small_program(seed, 12));
    const Clocks clocks(planned.program, planned.order, planned.waits);
    const Lives lives(planned.program, planned.order, clocks);
    ASSERT_LE(lives.all.size(), 14u);
    EXPECT_EQ(memory::find_heaviest_antichain(lives, all_of(lives)), heaviest_by_trying_all(lives));
  }
}

TEST(PlanMemoryBound, TheCheapBoundIsNeverAboveTheHeaviestAntichain) {
  int exact = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Planned planned(small_program(seed, 400));
    const Clocks clocks(planned.program, planned.order, planned.waits);
    const Lives lives(planned.program, planned.order, clocks);
    const std::uint64_t truth = memory::find_heaviest_antichain(lives, all_of(lives));
    EXPECT_LE(memory::find_peak_in_order(lives), truth);
    EXPECT_LE(planned.arena.lower_bound_bytes, truth);
    EXPECT_GT(planned.arena.lower_bound_bytes, truth / 2);
    exact += planned.arena.lower_bound_bytes == truth ? 1 : 0;
  }
  EXPECT_GE(exact, 10);
}

// The promise for the default random program, on which bench/ reports as well.
TEST(PlanMemory, TheMedianRandomProgramIsWithinFivePercentOfTheBound) {
  std::vector<double> ratios;
  for (std::uint64_t seed = 0; seed < 101; ++seed) {
    const ArenaLayout arena = Planned(random_program(seed)).arena;
    ratios.push_back(static_cast<double>(arena.size_bytes) /
                     static_cast<double>(arena.lower_bound_bytes));
  }
  std::nth_element(ratios.begin(), ratios.begin() + 50, ratios.end());
  EXPECT_LE(ratios[50], 1.05);
}

}  // namespace
}  // namespace anabranch
