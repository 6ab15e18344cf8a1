// SPDX-License-Identifier: Apache-2.0
#include "record/graph_overlap.h"

#include <gmock/gmock.h>

#include <random>

#include "record/graph_testing.h"

namespace anabranch::cuda {
namespace {

using testing::Arrow;
using ::testing::ElementsAre;
using testing::image_of;
using ::testing::IsEmpty;
using testing::kernel;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// A kernel that reads and writes units; or one of which nothing is known but what it names.
struct Node {
  std::vector<std::uint32_t> reads, writes;
  bool is_known = true;
};

struct Case {
  GraphImage image;
  std::vector<Site> sites;

  Case(const std::vector<Node>& nodes, std::initializer_list<Arrow> arrows) {
    std::vector<NodeImage> images;
    for (std::uint32_t i = 0; i < nodes.size(); ++i) {
      images.push_back(kernel("k", {}));
      images.back().is_known = nodes[i].is_known;
      for (const auto unit : nodes[i].reads) add_site(i, unit, !nodes[i].is_known);
      for (const auto unit : nodes[i].writes) add_site(i, unit, true);
    }
    image = image_of(std::move(images), arrows);
  }
  // Captured one behind the other.
  explicit Case(const std::vector<Node>& nodes) : Case(nodes, {}) {
    for (std::uint32_t i = 1; i < nodes.size(); ++i) image.edges.push_back({i - 1, i, {}});
  }
  void add_site(std::uint32_t node, std::uint32_t unit, bool writes) {
    sites.push_back({node, Operand::kParam, 0, unit, 0, writes});
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> overlap(
      std::uint32_t lanes = 8, const std::vector<TableWrite>& tables = {}) {
    used = overlap_nodes(image, sites, tables, lanes);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
    for (const EdgeImage& edge : image.edges) edges.emplace_back(edge.from, edge.to);
    return edges;
  }
  std::uint32_t used = 0;
};

TEST(GraphOverlap, BranchesThatShareNothingNeedNotWaitForOneAnother) {
  Case step({{{0}, {1}}, {{0}, {2}}, {{1}, {3}}, {{2}, {4}}, {{3, 4}, {5}}});
  EXPECT_THAT(step.overlap(), ElementsAre(Pair(0, 2), Pair(1, 3), Pair(2, 4), Pair(3, 4)));
  EXPECT_EQ(step.used, 2u);
}

TEST(GraphOverlap, AWriterComesBehindReadersAndWriters) {
  Case step({{{}, {0}}, {{0}, {1}}, {{0}, {2}}, {{}, {0}}});
  EXPECT_THAT(step.overlap(), ElementsAre(Pair(0, 1), Pair(0, 2), Pair(1, 3), Pair(2, 3)));
  Case twice({{{}, {0}}, {{}, {0}}});
  EXPECT_THAT(twice.overlap(), ElementsAre(Pair(0, 1)));
}

TEST(GraphOverlap, OneLaneKeepsTheCapturedOrder) {
  Case step({{{}, {0}}, {{}, {1}}, {{}, {2}}});
  EXPECT_THAT(step.overlap(1), ElementsAre(Pair(0, 1), Pair(1, 2)));
  EXPECT_EQ(step.used, 1u);
}

TEST(GraphOverlap, NoMoreNodesRunSideBySideThanThereAreLanes) {
  Case step({{{}, {0}}, {{}, {1}}, {{}, {2}}, {{}, {3}}, {{}, {4}}});
  EXPECT_THAT(step.overlap(2), ElementsAre(Pair(0, 2), Pair(1, 3), Pair(2, 4)));
}

TEST(GraphOverlap, ALaneIsLeftFreeForWhatCanBeginEarlier) {
  // 3 can only begin behind 2, which ends last: on that one's lane, and 4 takes the other.
  Case step({{{}, {0}}, {{}, {1}}, {{0}, {2}}, {{2}, {3}}, {{}, {4}}});
  EXPECT_THAT(step.overlap(2), ElementsAre(Pair(0, 2), Pair(2, 3), Pair(1, 4)));
}

TEST(GraphOverlap, AnUnknownNodeComesBehindAllAndBeforeAll) {
  Case step({{{}, {0}}, {{}, {1}}, {{}, {}, false}, {{}, {2}}, {{}, {3}}});
  EXPECT_THAT(step.overlap(), ElementsAre(Pair(0, 2), Pair(1, 2), Pair(2, 3), Pair(2, 4)));
}

TEST(GraphOverlap, WhatTheCaptureDidNotOrderStaysUnordered) {
  // A collective on a stream of its own, beside kernels of which all is known.
  Case step({{{}, {0}}, {{}, {9}, false}, {{0}, {1}}, {{1}, {2}}, {{2}, {9}}},
            {{0, 1}, {0, 2}, {2, 3}, {1, 4}, {3, 4}});
  EXPECT_THAT(step.overlap(),
              ElementsAre(Pair(0, 1), Pair(0, 2), Pair(2, 3), Pair(1, 4), Pair(3, 4)));
}

TEST(GraphOverlap, TheNodesOfOneWorkStayInOrder) {
  Case step({{{}, {0}}, {{}, {1}}, {{}, {2}}, {{}, {3}}});
  step.image.nodes[1].work = step.image.nodes[3].work = 7;
  EXPECT_THAT(step.overlap(), ElementsAre(Pair(1, 3)));
}

TEST(GraphOverlap, WhereOneLaneHasAllTheEdgesAreThoseOfTheCapture) {
  Case step({{{}, {0}}, {{0}, {1}}, {{1}, {2}}}, {{0, 1}, {0, 2}, {1, 2}});
  EXPECT_THAT(step.overlap(), ElementsAre(Pair(0, 1), Pair(0, 2), Pair(1, 2)));
  EXPECT_EQ(step.used, 1u);
}

TEST(GraphOverlap, AProgrammaticLaunchKeepsItsPlaceAndItsEdge) {
  Case step({{{}, {0}}, {{}, {1}}, {{}, {2}}, {{}, {3}}}, {{0, 1}, {1, 2, true}, {2, 3}});
  EXPECT_THAT(step.overlap(), ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, 3)));
  EXPECT_EQ(step.image.edges[1].data.type, kEdgeProgrammatic);
  EXPECT_EQ(step.image.edges[0].data.type, kEdgeDefault);
}

TEST(GraphOverlap, WhoeverReadsATableMayReachAnything) {
  Case step({{{}, {0}}, {{}, {1}, false}, {{1}, {2}}, {{}, {3}}});
  TableWrite table;
  table.node = 1;
  table.unit = 1;
  EXPECT_THAT(step.overlap(8, {table}), ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, 3)));
}

TEST(GraphOverlap, ATableThatNeverMovesMayBeReadByAnyone) {
  Case step({{{}, {0}}, {{}, {}, false}, {{}, {2}}, {{}, {3}}});
  TableWrite table;
  table.node = 1;
  EXPECT_THAT(step.overlap(8, {table}), ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, 3)));
}

// Who comes before whom, by brute force.
using Matrix = std::vector<std::vector<bool>>;

Matrix closure(std::size_t nodes,
               const std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) {
  Matrix before(nodes, std::vector<bool>(nodes));
  for (const auto& [from, to] : edges) before[from][to] = true;
  for (std::size_t k = 0; k < nodes; ++k) {
    for (std::size_t i = 0; i < nodes; ++i) {
      for (std::size_t j = 0; before[i][k] && j < nodes; ++j) {
        if (before[k][j]) before[i][j] = true;
      }
    }
  }
  return before;
}

TEST(GraphOverlap, TheOrderIsWhatMemoryAsksForAndNoEdgeIsTooMuch) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint32_t end) {
      return static_cast<std::uint32_t>(random() % end);
    };
    std::vector<Node> nodes(12);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> captured;
    for (std::uint32_t i = 0; i < nodes.size(); ++i) {
      nodes[i] = {{below(5)}, {below(5)}, below(6) != 0};
      for (std::uint32_t j = 0; j < i; ++j) {
        if (j + 1 == i ? seed % 2 == 0 : below(4) == 0) captured.emplace_back(j, i);
      }
    }
    Case step(nodes, {});
    for (const auto& [from, to] : captured) step.image.edges.push_back({from, to, {}});
    const auto edges = step.overlap(static_cast<std::uint32_t>(nodes.size()));
    const Matrix was = closure(nodes.size(), captured), is = closure(nodes.size(), edges);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> asked;
    for (std::uint32_t j = 0; j < nodes.size(); ++j) {
      for (std::uint32_t i = 0; i < j; ++i) {
        const auto &a = nodes[i], &b = nodes[j];
        const bool conflict = a.writes == b.writes || a.writes == b.reads || a.reads == b.writes ||
                              !a.is_known || !b.is_known;
        if (was[i][j] && conflict) asked.emplace_back(i, j);
      }
    }
    // Every node can have a lane of its own, and lanes only follow what is ordered anyway.
    const Matrix least = closure(nodes.size(), asked);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (std::size_t j = 0; j < nodes.size(); ++j) {
        ASSERT_EQ(is[i][j], least[i][j]) << "seed " << seed << ": " << i << " before " << j;
      }
    }
    for (std::size_t i = 0; i < edges.size(); ++i) {
      auto others = edges;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      const auto [from, to] = edges[i];
      ASSERT_FALSE(closure(nodes.size(), others)[from][to]) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace anabranch::cuda
