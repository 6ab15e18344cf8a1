// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/memory_window.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Nodes in the order of their capture, of which nothing but the window asks for an order.
struct Step {
  StepGraph graph;
  std::vector<std::uint64_t> unit_bytes;

  std::uint32_t unit(std::uint64_t bytes) {
    unit_bytes.push_back(bytes);
    return static_cast<std::uint32_t>(unit_bytes.size() - 1);
  }
  void node(const std::vector<std::uint32_t>& units) {
    const auto node = static_cast<std::uint32_t>(graph.facts.size());
    graph.facts.push_back({.is_known = true});
    for (const auto unit : units) graph.sites.push_back({node, Operand::kParam, 0, unit});
  }
  // Nodes that each one waits for, itself or by another.
  Reachability order(std::uint64_t bytes) const {
    MemoryWindow window(graph, unit_bytes, bytes);
    Reachability before(graph.facts.size());
    for (std::uint32_t node = 0; node < graph.facts.size(); ++node) {
      for (const std::uint32_t other : window.waits_of(node, before)) before.add({other, node});
    }
    return before;
  }
  std::vector<std::vector<std::uint32_t>> waits(std::uint64_t bytes) const {
    MemoryWindow window(graph, unit_bytes, bytes);
    Reachability before(graph.facts.size());
    std::vector<std::vector<std::uint32_t>> all;
    for (std::uint32_t node = 0; node < graph.facts.size(); ++node) {
      const auto waits = window.waits_of(node, before);
      all.emplace_back(waits.begin(), waits.end());
      for (const std::uint32_t other : all.back()) before.add({other, node});
      std::sort(all.back().begin(), all.back().end());
    }
    return all;
  }
};

// So many microbatches of a forward and a backward, which share what the forward saves.
Step microbatches(int count, std::uint64_t bytes) {
  Step step;
  for (int i = 0; i < count; ++i) {
    const auto saved = step.unit(bytes);
    step.node({saved});
    step.node({saved});
  }
  return step;
}

TEST(MemoryWindow, AMicrobatchWaitsForAsManyAsThereIsNoRoomFor) {
  // Nodes 2, 4 and 6 are forwards.
  EXPECT_THAT(microbatches(4, 100).waits(0),
              ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(0, 1), IsEmpty(), ElementsAre(2, 3),
                          IsEmpty(), ElementsAre(4, 5), IsEmpty()));
  EXPECT_THAT(microbatches(4, 100).waits(199),
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), IsEmpty(), ElementsAre(0, 1), IsEmpty(),
                          ElementsAre(0, 1, 2, 3), IsEmpty()));
}

TEST(MemoryWindow, WithRoomForAllOrWithoutABoundNobodyWaits) {
  for (const std::uint64_t bytes : {std::uint64_t{300}, kNoBound}) {
    EXPECT_THAT(microbatches(4, 100).waits(bytes), ::testing::Each(IsEmpty()));
  }
}

TEST(MemoryWindow, OnlyWhoIsTheFirstToUseAUnitWaits) {
  Step step = microbatches(1, 100);
  step.node({});
  EXPECT_THAT(step.waits(0), ::testing::Each(IsEmpty()));
  step.node({step.unit(0)});  // it is given, and takes nothing of the recording's
  EXPECT_THAT(step.waits(0), ::testing::Each(IsEmpty()));
  step.node({step.unit(1)});
  EXPECT_THAT(step.waits(0).back(), ElementsAre(0, 1));
}

TEST(MemoryWindow, WhatIsUsedForTheLastTimeFirstIsAwaitedFirst) {
  Step step;
  const auto lasting = step.unit(100), brief = step.unit(100);
  step.node({lasting});
  step.node({brief});
  step.node({lasting});
  step.node({step.unit(10)});
  EXPECT_THAT(step.waits(100).back(), ElementsAre(1));
  EXPECT_THAT(step.waits(99).back(), ElementsAre(0, 1, 2));
}

TEST(MemoryWindow, WhoBeginsEarlySaysNothingOfTheNodeThatItMayOvertake) {
  Step step;
  const auto used = step.unit(100);
  step.node({used});
  step.node({used});
  step.node({step.unit(100)});
  for (const bool begins_early : {false, true}) {
    EdgeImage edge{0, 1};
    edge.data.type = begins_early ? kEdgeProgrammatic : kEdgeDefault;
    Reachability before(3);
    before.add(edge);
    MemoryWindow window(step.graph, step.unit_bytes, 0);
    const auto waits = window.waits_of(2, before);
    EXPECT_EQ(waits.size(), begins_early ? 2u : 1u);
  }
}

// What units take that may be in use at once while the highest node that has begun is this one.
std::uint64_t most_bytes(const Step& step, std::uint32_t node, const Reachability& before) {
  std::uint64_t bytes = 0;
  for (std::uint32_t unit = 0; unit < step.unit_bytes.size(); ++unit) {
    bool is_born = false, is_used = false;
    for (const Site& site : step.graph.sites) {
      if (site.unit != unit) continue;
      is_born |= site.node <= node;
      is_used |= !before.contains(node, site.node);
    }
    if (is_born && is_used) bytes += step.unit_bytes[unit];
  }
  return bytes;
}

TEST(MemoryWindow, UnitsTakeNoMoreThanInCapturedOrderAndTheBound) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Step step;
    for (int i = 0; i < 24; ++i) {
      std::vector<std::uint32_t> units{step.unit(random() % 5)};
      for (int use = 0; use < 2; ++use) {
        units.push_back(static_cast<std::uint32_t>(random() % step.unit_bytes.size()));
      }
      step.node(units);
    }
    Reachability captured(24);
    for (std::uint32_t node = 1; node < 24; ++node) captured.add({node - 1, node});
    const std::uint64_t bytes = seed % 20;
    const Reachability order = step.order(bytes);
    for (std::uint32_t node = 0; node < 24; ++node) {
      if (step.unit_bytes[node] == 0) continue;  // it is no first one
      ASSERT_LE(most_bytes(step, node, order), most_bytes(step, node, captured) + bytes);
    }
  }
}

}  // namespace
}  // namespace anabranch::cuda
