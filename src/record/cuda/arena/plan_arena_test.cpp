// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/arena/plan_arena.h"

#include <gmock/gmock.h>

#include "record/cuda/image/graph_image_testing.h"
#include "record/cuda/order/copy_window_testing.h"
#include "record/cuda/order/early_edges.h"
#include "record/cuda/order/relax_order.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using testing::fill;
using testing::image_of;
using ::testing::IsEmpty;
using enum UnitKind;

constexpr std::uint64_t kBytes = 4096;

// Nodes, the units each names, and all units of one size.
ArenaPlan plan_of(std::vector<std::vector<std::uint32_t>> units_of_node,
                  std::initializer_list<testing::Arrow> arrows, std::vector<UnitKind> kinds) {
  std::vector<Site> sites;
  std::vector<NodeImage> nodes;
  for (std::uint32_t node = 0; node < units_of_node.size(); ++node) {
    nodes.push_back(fill(0));
    for (const std::uint32_t unit : units_of_node[node]) {
      sites.push_back({node, Operand::kDestination, 0, unit, 0});
    }
  }
  const std::vector<Unit> units(kinds.size(), Unit{0, 0, kBytes});
  GraphImage image = image_of(std::move(nodes), arrows);
  close_early_edges(image);
  auto plan = plan_arena(image, sites, units, kinds);
  EXPECT_TRUE(plan.ok());
  return *std::move(plan);
}

bool share(const ArenaPlan& plan, std::uint32_t a, std::uint32_t b) {
  return plan.parts.arena.offsets[a] == plan.parts.arena.offsets[b];
}

TEST(PlanArena, AChainIsOneStreamAndAUnitTakesThePlaceOfADeadOne) {
  const ArenaPlan plan =
      plan_of({{0}, {0, 1}, {1, 2}}, {{0, 1}, {1, 2}}, {kTemporary, kTemporary, kTemporary});
  EXPECT_THAT(plan.program.streams(), ::testing::SizeIs(1));
  EXPECT_THAT(plan.parts.waits, IsEmpty());
  EXPECT_TRUE(share(plan, 0, 2));
  EXPECT_EQ(plan.parts.arena.size_bytes, 2 * kBytes);
}

TEST(PlanArena, UnitsOfBranchesThatMayRunTogetherNeverShare) {
  const ArenaPlan plan =
      plan_of({{}, {0}, {1}, {}}, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}, {kTemporary, kTemporary});
  EXPECT_FALSE(share(plan, 0, 1));
  EXPECT_THAT(plan.parts.waits,
              ElementsAre(Wait{StepId(2), StepId(0)}, Wait{StepId(3), StepId(2)}));
  EXPECT_THAT(*find_races(plan.program, plan.parts), IsEmpty());
}

TEST(PlanArena, MemoryOfTheCallerIsNotInTheArena) {
  const ArenaPlan plan = plan_of({{0, 1}}, {}, {kGiven, kTemporary});
  EXPECT_EQ(plan.parts.arena.offsets[0], kNotInArena);
  EXPECT_EQ(plan.parts.arena.size_bytes, kBytes);
}

TEST(PlanArena, AUnitThatNoNodeNamesTakesNoMemory) {
  EXPECT_EQ(plan_of({{}}, {}, {kTemporary}).parts.arena.size_bytes, 0u);
}

TEST(PlanArena, ANodeLaunchedBeforeItsPredecessorEndsDoesNotTakeItsMemory) {
  // 0 -> 1 starts early, so unit 0 still lives when unit 1 is written; at node 2 it is dead.
  const ArenaPlan plan =
      plan_of({{0}, {1}, {2}}, {{0, 1, true}, {1, 2}}, {kTemporary, kTemporary, kTemporary});
  EXPECT_FALSE(share(plan, 0, 1));
  EXPECT_TRUE(share(plan, 0, 2) || share(plan, 1, 2));
  EXPECT_EQ(plan.parts.arena.size_bytes, 2 * kBytes);
}

TEST(PlanArena, AMissingEdgeBetweenTwoNodesOfOneUnitIsARace) {
  const ArenaPlan plan = plan_of({{0}, {0}}, {}, {kTemporary});
  const auto races = *find_races(plan.program, plan.parts);
  ASSERT_EQ(races.size(), 1u);
  EXPECT_EQ(races[0].missing, (Wait{StepId(1), StepId(0)}));
}

TEST(PlanArena, FreshMemoryHoldsWhatIsOverBeforeItsFirstNode) {
  const ArenaPlan plan =
      plan_of({{0}, {0, 1}, {2}}, {{0, 1}, {1, 2}}, {kTemporary, kTemporary, kFresh});
  EXPECT_THAT(plan.loans, ElementsAre(Loan{BufferId(0), BufferId(2), 0}));
  EXPECT_EQ(plan.parts.arena.offsets[0], kNotInArena);
  EXPECT_EQ(plan.parts.arena.offsets[2], kNotInArena);
  EXPECT_EQ(plan.parts.arena.size_bytes, kBytes);
}

TEST(PlanArena, FreshMemoryHoldsNothingThatANodeBesideItsFirstMayUse) {
  EXPECT_THAT(plan_of({{}, {0}, {1}}, {{0, 1}, {0, 2}}, {kTemporary, kFresh}).loans, IsEmpty());
}

TEST(PlanArena, FreshMemoryOfANodeThatMayBeginEarlyHoldsNothingOfTheNodeBefore) {
  EXPECT_THAT(plan_of({{0}, {1}}, {{0, 1, true}}, {kTemporary, kFresh}).loans, IsEmpty());
  EXPECT_EQ(plan_of({{0}, {}, {1}}, {{0, 1, true}, {1, 2}}, {kTemporary, kFresh}).loans.size(), 1u);
}

TEST(PlanArena, FreshMemoryThatNoNodeNamesHoldsNothing) {
  EXPECT_THAT(plan_of({{0}}, {}, {kTemporary, kFresh}).loans, IsEmpty());
}

TEST(PlanArena, GivenMemoryHoldsNothingElse) {
  EXPECT_THAT(plan_of({{0}, {1}}, {{0, 1}}, {kTemporary, kGiven}).loans, IsEmpty());
}

// Unit 0 is named by node 0 and by the table (node 1, in unit 1); unit 2 comes before the table is
// read (node 3) and unit 3 after.
TEST(PlanArena, KeepsWhatATableNames) {
  std::vector<Site> sites;
  const std::vector<std::vector<std::uint32_t>> named{{0}, {0, 1}, {2}, {1}, {3}};
  for (std::uint32_t node = 0; node < named.size(); ++node) {
    for (const std::uint32_t unit : named[node]) {
      sites.push_back({node, Operand::kDestination, 0, unit, 0});
    }
  }
  const std::vector<Unit> units(4, Unit{0, 0, 512});
  const std::vector<UnitKind> kinds(4, UnitKind::kTemporary);
  const auto image = image_of(std::vector<NodeImage>(5, fill(0)), {{0, 1}, {1, 2}, {2, 3}, {3, 4}});
  const std::vector<TableWrite> tables{{1, 1, 0, 64, 0, 8, {0}}};
  const auto plan = plan_arena(image, sites, units, kinds, tables);
  ASSERT_TRUE(plan.ok());
  const auto& at = plan->parts.arena.offsets;
  EXPECT_NE(at[0], at[2]);
  EXPECT_EQ(plan->parts.arena.size_bytes, 3 * 512u);
  EXPECT_THAT(*find_races(plan->program, plan->parts), IsEmpty());
  EXPECT_EQ(plan_arena(image, sites, units, kinds)->parts.arena.size_bytes, 2 * 512u);
}

TEST(PlanArena, AStepOfManyLayersTakesMemoryForThoseThatAreAhead) {
  constexpr std::uint64_t kUnbound = ~std::uint64_t{0};
  constexpr std::uint64_t kWeight = 32 << 20, kActivation = 1 << 20, kLayers = 64;
  const auto arena_bytes = [&](std::uint64_t ahead_bytes) {
    testing::StreamedStep step;
    std::uint32_t x = step.add_unit(kActivation);
    step.kernel({}, {x});
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      const auto weight = step.copy_new(kWeight);
      const auto y = step.add_unit(kActivation);
      step.kernel({x, weight}, {y});
      x = y;
    }
    StepGraph& graph = step.graph;
    RelaxedOrder order = relax_order(graph, {}, step.units, {4, ahead_bytes});
    EXPECT_EQ(order.lanes, 2u);
    graph.image.edges = std::move(order.edges);
    const std::vector<UnitKind> kinds(step.units.size(), UnitKind::kTemporary);
    const auto plan = plan_arena(graph.image, graph.sites, step.units, kinds);
    return plan.ok() ? plan->parts.arena.size_bytes : kUnbound;
  };
  for (const std::uint64_t ahead : {4 * kWeight, 5 * kWeight + 1, 16 * kWeight}) {
    EXPECT_LE(arena_bytes(ahead), ahead + 2 * kActivation);
  }
  EXPECT_LE(arena_bytes(0), kLeastCopiesInWindow * kWeight + 2 * kActivation);
  EXPECT_GE(arena_bytes(kUnbound), kLayers * kWeight);
}

TEST(PlanArena, TwoBranchesOfProductsSideBySideTakeTheScratchOfOneMore) {
  constexpr std::uint64_t kScratch = 32 << 20, kValue = 64 << 10;
  const auto arena_bytes = [&](std::uint32_t lanes) {
    testing::StreamedStep step;
    const std::uint32_t x = step.add_unit(kValue);
    step.kernel({}, {x});
    std::vector<std::uint32_t> ends;
    for (int branch = 0; branch < 2; ++branch) {
      ends.push_back(x);
      for (int product = 0; product < 150; ++product) {
        const std::uint32_t y = step.add_unit(kValue);
        step.kernel({ends.back()}, {y, step.add_unit(kScratch)});
        ends.back() = y;
      }
    }
    step.kernel(ends, {step.add_unit(kValue)});
    StepGraph& graph = step.graph;
    RelaxedOrder order = relax_order(graph, {}, step.units, {lanes});
    EXPECT_EQ(order.lanes, lanes == 1 ? 1u : 2u);
    graph.image.edges = std::move(order.edges);
    const std::vector<UnitKind> kinds(step.units.size(), UnitKind::kTemporary);
    const auto plan = plan_arena(graph.image, graph.sites, step.units, kinds);
    EXPECT_TRUE(plan.ok());
    return plan->parts.arena.size_bytes;
  };
  EXPECT_LT(arena_bytes(1), kScratch + 8 * kValue);
  EXPECT_GT(arena_bytes(4), 2 * kScratch);
  EXPECT_LT(arena_bytes(4), 2 * kScratch + 8 * kValue);
}

}  // namespace
}  // namespace anabranch::cuda
