// SPDX-License-Identifier: Apache-2.0
// A step over microbatches, as its notes tell it: each has a forward that saves something in each
// layer, and a backward that adds to the gradients. Nothing else is shared.
#include <gmock/gmock.h>

#include <algorithm>

#include "record/cuda/arena/plan_arena.h"
#include "record/cuda/image/graph_image_testing.h"
#include "record/cuda/order/check_relaxed.h"
#include "record/cuda/order/list_schedule.h"
#include "record/cuda/order/relax_order.h"

namespace anabranch::cuda {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr std::uint64_t kSaved = 8 << 20;  // by a layer for its backward
constexpr std::uint32_t kLayers = 3;

struct Step {
  StepGraph graph;
  std::vector<Unit> units;
  std::vector<UnitKind> kinds;
  std::vector<std::uint32_t> weights, gradients;  // of the model that was added last

  std::uint32_t unit(std::uint64_t bytes, UnitKind kind) {
    units.push_back({0, 0, bytes});
    kinds.push_back(kind);
    return static_cast<std::uint32_t>(units.size() - 1);
  }
  std::uint32_t node(const std::vector<std::uint32_t>& reads,
                     const std::vector<std::uint32_t>& writes, bool is_known = true) {
    const auto node = static_cast<std::uint32_t>(graph.facts.size());
    graph.image.nodes.push_back(testing::kernel("k", {}));
    graph.facts.push_back({.is_known = is_known});
    for (const auto unit : reads) graph.sites.push_back({node, Operand::kParam, 0, unit, 0, false});
    for (const auto unit : writes) graph.sites.push_back({node, Operand::kParam, 8, unit, 0, true});
    if (node != 0) graph.image.edges.push_back({node - 1, node, {}});
    return node;
  }
  void add_model() {
    weights.clear();
    gradients.clear();
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      weights.push_back(unit(4096, UnitKind::kGiven));
      gradients.push_back(unit(4096, UnitKind::kTemporary));
    }
  }
  // Its nodes: the first, and how many. The first microbatch makes the gradients.
  std::pair<std::uint32_t, std::uint32_t> microbatch(bool is_first) {
    const auto begin = static_cast<std::uint32_t>(graph.facts.size());
    std::vector<std::uint32_t> saved{unit(4096, UnitKind::kGiven)};
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      saved.push_back(unit(kSaved, UnitKind::kTemporary));
      node({weights[layer], saved[layer]}, {saved.back()});
    }
    std::uint32_t gradient = saved.back();
    for (std::uint32_t layer = kLayers; layer-- > 0;) {
      const auto made = is_first ? gradients[layer] : unit(4096, UnitKind::kTemporary);
      node({gradient, saved[layer]}, {made});
      if (!is_first) node({made}, {gradients[layer]});  // added
      const auto below = unit(4096, UnitKind::kTemporary);
      node({gradient, weights[layer]}, {below});
      gradient = below;
    }
    return {begin, static_cast<std::uint32_t>(graph.facts.size()) - begin};
  }
  void optimizer() {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      node({gradients[layer]}, {weights[layer]});
    }
  }

  Reachability relaxed(std::uint32_t lanes, std::uint64_t parallel_bytes = kNoBound) {
    std::vector<std::uint64_t> own_bytes;
    for (std::uint32_t i = 0; i < units.size(); ++i) {
      own_bytes.push_back(kinds[i] == UnitKind::kTemporary ? units[i].bytes : 0);
    }
    RelaxedOrder found = relax_order(graph, {}, units, {lanes, 0, parallel_bytes, own_bytes});
    EXPECT_TRUE(check_relaxed(graph, found.edges).ok());
    order = std::move(found.edges);
    Reachability before(graph.facts.size());
    for (const EdgeImage& edge : order) before.add(edge);
    return before;
  }
  std::uint64_t arena_bytes() const {
    const GraphImage image{graph.image.nodes, order.empty() ? graph.image.edges : order};
    const auto plan = plan_arena(image, graph.sites, units, kinds);
    return plan.ok() ? plan->parts.arena.size_bytes : kNoBound;
  }
  // Of nodes that take as long as is estimated, each as soon as those before it have ended.
  std::uint64_t time_ns() const {
    std::vector<std::uint64_t> ends(graph.facts.size(), estimate_ns(kSaved));
    for (const EdgeImage& edge : order.empty() ? graph.image.edges : order) {
      ends[edge.to] = std::max(ends[edge.to], ends[edge.from] + estimate_ns(kSaved));
    }
    return *std::max_element(ends.begin(), ends.end());
  }
  std::vector<EdgeImage> order;  // once it is relaxed
};

Step step_of(std::uint32_t microbatches) {
  Step step;
  step.add_model();
  for (std::uint32_t i = 0; i < microbatches; ++i) step.microbatch(i == 0);
  step.optimizer();
  return step;
}

bool are_apart(const Reachability& before, std::uint32_t a, std::uint32_t b) {
  return !before.contains(a, b) && !before.contains(b, a);
}

TEST(Microbatches, NoForwardWaitsForAnotherMicrobatch) {
  Step step;
  step.add_model();
  std::vector<std::uint32_t> forwards;
  for (std::uint32_t i = 0; i < 8; ++i) forwards.push_back(step.microbatch(i == 0).first);
  step.optimizer();
  const Reachability before = step.relaxed(8);
  for (const std::uint32_t forward : forwards) {
    EXPECT_THAT(before.row(forward), Each(0u)) << forward;
  }
}

TEST(Microbatches, AdditionsToAGradientKeepTheirOrder) {
  Step step;
  step.add_model();
  std::vector<std::uint32_t> additions;  // to the gradient of the last layer
  for (std::uint32_t i = 0; i < 8; ++i) {
    additions.push_back(step.microbatch(i == 0).first + kLayers + (i != 0));
  }
  step.optimizer();
  const Reachability before = step.relaxed(8);
  for (std::uint32_t i = 1; i < 8; ++i) {
    EXPECT_TRUE(before.contains(additions[i], additions[i - 1])) << i;
  }
}

TEST(Microbatches, EightSideBySideTakeAFractionOfTheTime) {
  Step step = step_of(8);
  const std::uint64_t in_turn = step.time_ns();
  (void)step.relaxed(8);
  EXPECT_LT(3 * step.time_ns(), in_turn);
}

TEST(Microbatches, AKernelOfWhichNothingIsKnownBetweenThemKeepsThemInTurn) {
  Step step;
  step.add_model();
  const auto first = step.microbatch(true);
  step.node({}, {}, false);
  const auto second = step.microbatch(false);
  EXPECT_TRUE(step.relaxed(8).contains(second.first, first.first));
}

TEST(Microbatches, WithoutABoundEachForwardHoldsMemoryAndWithOneAsManyRunAsFit) {
  constexpr std::uint64_t kOfOne = kLayers * kSaved;
  Step step = step_of(8);
  const std::uint64_t in_turn = step.arena_bytes(), time = step.time_ns();
  (void)step.relaxed(8);
  EXPECT_GE(step.arena_bytes(), 8 * kOfOne);
  std::uint64_t slower = time;
  for (const std::uint64_t spare : {kOfOne, 2 * kOfOne, 4 * kOfOne}) {
    (void)step.relaxed(8, spare);
    EXPECT_LE(step.arena_bytes(), in_turn + spare + spare / 16);
    EXPECT_LT(step.time_ns(), slower) << spare;
    slower = step.time_ns();
  }
}

TEST(Microbatches, TwoModelsOfOneStepRunSideBySide) {
  Step step;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> models;
  for (int model = 0; model < 2; ++model) {
    const auto begin = static_cast<std::uint32_t>(step.graph.facts.size());
    step.add_model();
    step.microbatch(true);
    step.optimizer();
    models.emplace_back(begin, static_cast<std::uint32_t>(step.graph.facts.size()));
  }
  const Reachability before = step.relaxed(8);
  for (std::uint32_t a = models[0].first; a < models[0].second; ++a) {
    for (std::uint32_t b = models[1].first; b < models[1].second; ++b) {
      ASSERT_TRUE(are_apart(before, a, b)) << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace anabranch::cuda
