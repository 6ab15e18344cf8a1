// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/early_edges.h"

#include <gmock/gmock.h>

#include <random>

#include "record/cuda/image/graph_image_testing.h"
#include "record/cuda/order/reachability.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using testing::image_of;
using ::testing::IsEmpty;
using testing::kernel;
using ::testing::Pair;

GraphImage closed(std::size_t nodes, std::initializer_list<testing::Arrow> arrows) {
  GraphImage image = image_of(std::vector<NodeImage>(nodes, kernel("k", {})), arrows);
  close_early_edges(image);
  return image;
}

// Those that the capture does not have.
std::vector<std::pair<std::uint32_t, std::uint32_t>> added(const GraphImage& image) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (const EdgeImage& edge : image.edges) {
    if (!edge.is_ours) continue;
    EXPECT_FALSE(is_early(edge));
    edges.emplace_back(edge.from, edge.to);
  }
  return edges;
}

TEST(EarlyEdges, WhatComesBehindAKernelComesBehindThoseThatItMayHaveOvertaken) {
  const GraphImage image = closed(4, {{0, 1}, {1, 2, true}, {2, 3}});
  EXPECT_THAT(added(image), ElementsAre(Pair(1, 3)));
  EXPECT_TRUE(std::ranges::is_sorted(
      image.edges, {}, [](const EdgeImage& edge) { return std::pair(edge.to, edge.from); }));
  EXPECT_EQ(image.edges.size(), 4u);
}

TEST(EarlyEdges, OneBehindAnotherIsClosedAtTheEndOfAll) {
  EXPECT_THAT(added(closed(5, {{0, 1, true}, {1, 2, true}, {2, 3, true}, {3, 4}})),
              ElementsAre(Pair(0, 4), Pair(1, 4), Pair(2, 4)));
}

TEST(EarlyEdges, EveryNodeBehindAKernelIsClosedAndNoneBehindThese) {
  EXPECT_THAT(added(closed(5, {{0, 1, true}, {1, 2}, {1, 3}, {2, 4}, {3, 4}})),
              ElementsAre(Pair(0, 2), Pair(0, 3)));
}

TEST(EarlyEdges, AnEdgeThatIsThereStaysAsItIs) {
  EXPECT_THAT(added(closed(3, {{0, 1, true}, {0, 2}, {1, 2}})), IsEmpty());
  // The capture says that the last may begin with the first.
  const GraphImage image = closed(3, {{0, 1, true}, {0, 2, true}, {1, 2}});
  EXPECT_THAT(added(image), IsEmpty());
  EXPECT_TRUE(is_early(image.edges[1]));
}

TEST(EarlyEdges, WithoutThemAnImageStaysAsItIs) {
  EXPECT_THAT(added(closed(3, {{0, 1}, {1, 2}})), IsEmpty());
}

TEST(EarlyEdges, APortThatIsNotTheEndMakesOneTooWhateverItsType) {
  EdgeImage edge{0, 1};
  EXPECT_FALSE(is_early(edge));
  edge.data.from_port = kPortLaunchOrder;
  EXPECT_TRUE(is_early(edge));
  edge.data = {kPortProgrammatic, 0, kEdgeProgrammatic, {}};
  EXPECT_TRUE(is_early(edge));
}

// By brute force: who has ended when another begins, where no kernel waits for those that it may
// overtake.
TEST(Reachability, ANodeHasEndedIfAPathFromItBeginsWithAWholeEdge) {
  constexpr std::uint32_t kNodes = 70;  // more than a word has bits
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    Reachability before(kNodes);
    std::vector<std::vector<bool>> leads(kNodes, std::vector<bool>(kNodes)), is_whole = leads;
    for (std::uint32_t to = 0; to < kNodes; ++to) {
      leads[to][to] = true;
      for (std::uint32_t from = 0; from < to; ++from) {
        if (random() % 20 != 0) continue;
        EdgeImage edge{from, to};
        edge.data.type = random() % 2 ? kEdgeProgrammatic : kEdgeDefault;
        before.add(edge);
        is_whole[from][to] = !is_early(edge);
        for (std::uint32_t first = 0; first <= from; ++first) {
          if (leads[first][from]) leads[first][to] = true;
        }
      }
    }
    for (std::uint32_t from = 0; from < kNodes; ++from) {
      for (std::uint32_t to = from + 1; to < kNodes; ++to) {
        bool has_ended = false;
        for (std::uint32_t next = from + 1; next <= to; ++next) {
          has_ended |= is_whole[from][next] && leads[next][to];
        }
        ASSERT_EQ(before.contains(to, from), has_ended) << from << " before " << to;
      }
    }
  }
}

TEST(ReducedEdges, AnEarlyEdgeStaysUnlessItsFirstNodeHasEnded) {
  ReducedEdges reduced(4);
  EdgeImage early{0, 1};
  early.data.type = kEdgeProgrammatic;
  std::vector<EdgeImage> to_node{early};
  reduced.add(to_node);
  to_node = {{0, 2}, {1, 2}};
  reduced.add(to_node);
  early = {1, 3, early.data};
  to_node = {{0, 3}, early, {1, 3}, {2, 3}};
  reduced.add(to_node);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (const EdgeImage& edge : reduced.edges()) edges.emplace_back(edge.from, edge.to);
  // Of 1 and 0 the second is not implied at node 2; at node 3 both are, by way of it.
  EXPECT_THAT(edges, ElementsAre(Pair(0, 1), Pair(0, 2), Pair(1, 2), Pair(2, 3)));
}

}  // namespace
}  // namespace anabranch::cuda
