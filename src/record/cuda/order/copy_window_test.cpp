// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/copy_window.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <utility>

#include "record/cuda/order/copy_window_testing.h"
#include "record/cuda/order/reachability.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

using Step = testing::StreamedStep;

// Nodes 0, 2, ... are copies of so many bytes, and 1, 3, ... read each what the one before brought.
Step layers_of(std::initializer_list<std::uint64_t> bytes) {
  Step step;
  for (const std::uint64_t each : bytes) step.kernel({step.copy_new(each)});
  return step;
}

TEST(CopyWindow, WhatFitsNeedNotWait) {
  EXPECT_THAT(layers_of({100, 100, 100, 100}).edges(400), IsEmpty());
  EXPECT_THAT(layers_of({}).edges(0), IsEmpty());
}

TEST(CopyWindow, ACopyComesBehindTheReadersOfWhatWouldNotFitBesideIt) {
  EXPECT_THAT(layers_of({100, 100, 100, 100}).edges(399), ElementsAre(Pair(1, 6)));
  EXPECT_THAT(layers_of({10, 10, 10, 10, 10, 10}).edges(45),
              ElementsAre(Pair(1, 8), Pair(3, 8), Pair(8, 10)));
}

TEST(CopyWindow, OneAlwaysComesWhileTheOneBeforeAndWhatIsSmallAreUsed) {
  EXPECT_THAT(layers_of({100, 100, 100, 100, 100}).edges(0),
              ElementsAre(Pair(1, 6), Pair(6, 8), Pair(3, 8)));
  // Weights and biases.
  EXPECT_THAT(layers_of({100, 1, 100, 1}).edges(0), IsEmpty());
  EXPECT_THAT(layers_of({100, 1, 100, 1, 100, 1}).edges(0), ElementsAre(Pair(1, 8), Pair(8, 10)));
}

TEST(CopyWindow, WhatTheCaptureItselfHasThereAtOnceIsBesideTheBound) {
  Step step;  // each weight was captured two layers ahead, and the first is read by all
  std::vector<std::uint32_t> weights;
  for (int i = 0; i < 3; ++i) weights.push_back(step.copy_new(100));
  for (int i = 1; i < 5; ++i) {
    step.kernel({weights[0], weights[i]});
    weights.push_back(step.copy_new(100));
  }
  // Nodes 4, 6, 8 and 10 are the copies behind 3, 5, 7 and 9, which read the second to the fifth.
  EXPECT_THAT(step.edges(0), IsEmpty());
  step.kernel({weights[0], weights[5], weights[6]});
  EXPECT_THAT(step.edges(0), ElementsAre(Pair(3, 8), Pair(8, 10), Pair(5, 10)));
}

TEST(CopyWindow, WhatNobodyReadsAndCopiesToTheHostCountForNothing) {
  Step step;
  step.copy_new(100);
  const auto first = step.copy_new(100), second = step.copy_new(100);
  step.kernel({first});
  step.copy(second, 100, true);
  step.kernel({step.copy_new(100)});
  EXPECT_THAT(step.edges(0), IsEmpty());
  step.kernel({step.copy_new(100)});
  EXPECT_THAT(step.edges(0), ElementsAre(Pair(3, 7)));
}

TEST(CopyWindow, AUnitThatIsBroughtInPartsIsReadAsOne) {
  Step step;
  const auto unit = step.add_unit(200);
  step.copy(unit, 100);
  step.copy(unit, 100);
  step.kernel({unit});
  step.copy(unit, 100);  // again
  step.kernel({unit});
  step.kernel({step.copy_new(50)});
  EXPECT_THAT(step.edges(350), IsEmpty());
  EXPECT_THAT(step.edges(349), ElementsAre(Pair(2, 5)));
}

// Copies by brute force.
struct Oracle {
  const Step& step;
  Reachability before;

  Oracle(const Step& of, const std::vector<EdgeImage>& edges)
      : step(of), before(of.graph.facts.size()) {
    for (const EdgeImage& edge : edges) before.add(edge);
  }
  bool is_copy(const Site& site) const { return !step.graph.facts[site.node].host_bytes.empty(); }
  std::vector<std::uint32_t> readers(const Site& copy) const {
    std::vector<std::uint32_t> nodes;
    for (const Site& site : step.graph.sites) {
      if (site.unit == copy.unit && !is_copy(site)) nodes.push_back(site.node);
    }
    return nodes;
  }
  // Whether `other` was read for the last time before the copy was captured, and may be there.
  bool is_there(const Site& other, const Site& copy) const {
    const auto nodes = readers(other);
    const auto may_run = [&](std::uint32_t node) { return !before.contains(copy.node, node); };
    return is_copy(other) && other.node < copy.node && !nodes.empty() && nodes.back() < copy.node &&
           std::any_of(nodes.begin(), nodes.end(), may_run);
  }
  void expect_bound(const Site& copy, std::uint64_t ahead_bytes) const {
    std::uint64_t bytes = copy.bytes, largest = 0;
    for (const Site& other : step.graph.sites) {
      if (is_there(other, copy)) bytes += other.bytes;
      largest = std::max(largest, other.bytes);
    }
    ASSERT_LE(bytes, std::max(ahead_bytes, kLeastCopiesInWindow * largest)) << "node " << copy.node;
  }
};

TEST(CopyWindow, WhatIsThereNeverTakesMoreThanItMay) {
  std::size_t waits = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Step step;
    std::vector<std::uint32_t> brought;
    for (int i = 0; i < 40; ++i) {
      if (random() % 2 == 0) {
        brought.push_back(step.copy_new(1 + random() % 100));
      } else if (!brought.empty()) {
        step.kernel({brought[random() % brought.size()], brought.back()});
      }
    }
    const std::uint64_t ahead = random() % 600;
    const auto edges = find_window_edges(step.graph, step.units.size(), ahead);
    const auto is_earlier = [](const EdgeImage& a, const EdgeImage& b) { return a.to < b.to; };
    ASSERT_TRUE(std::is_sorted(edges.begin(), edges.end(), is_earlier));
    const Oracle oracle(step, edges);
    for (const Site& site : step.graph.sites) {
      if (!oracle.is_copy(site) || oracle.readers(site).empty()) continue;
      oracle.expect_bound(site, ahead);
      if (HasFatalFailure()) return;
    }
    waits += edges.size();
  }
  EXPECT_GT(waits, 1000u);
}

}  // namespace
}  // namespace anabranch::cuda
