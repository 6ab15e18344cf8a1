// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/check_relaxed.h"

#include <gmock/gmock.h>

#include <random>

#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::AllOf;
using testing::Arrow;
using ::testing::HasSubstr;
using testing::image_of;
using testing::kernel;

// A kernel of which is known that it uses one unit; or only that it names it.
struct Node {
  std::uint32_t unit = 0;
  bool writes = false;
  bool is_known = true;
  std::uint32_t work = NodeFacts::kNoWork;
  std::uint64_t begin = 0, bytes = 0;  // which part of it; all where that is not known
};

// Nodes in the order in which they were captured, and what is left of that.
struct Case {
  StepGraph graph;
  std::vector<EdgeImage> made;

  Case(const std::vector<Node>& nodes, std::initializer_list<Arrow> was,
       std::initializer_list<Arrow> is) {
    std::vector<NodeImage> images(nodes.size(), kernel("k", {}));
    for (std::uint32_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      graph.facts.push_back({.is_known = node.is_known, .work = node.work});
      graph.sites.push_back(
          {i, Operand::kParam, 0, node.unit, node.begin, node.writes, node.bytes});
    }
    graph.image = image_of(std::move(images), was);
    made = image_of({}, is).edges;
  }
  Status check(const std::vector<TableWrite>& tables = {}) const {
    return check_relaxed(graph, made, tables);
  }
};

TEST(CheckRelaxed, AnOrderThatIsLostBetweenAWriterAndItsReaderIsRefusedWithBothNamed) {
  const Case lost({{7, true}, {7, false}}, {{0, 1}}, {});
  EXPECT_EQ(lost.check().code(), StatusCode::kRace);
  EXPECT_THAT(lost.check().message(), AllOf(HasSubstr("kernel 0 'k'"), HasSubstr("kernel 1 'k'"),
                                            HasSubstr("one of them writes")));
  EXPECT_FALSE(Case({{7, false}, {7, true}}, {{0, 1}}, {}).check().ok());
  EXPECT_FALSE(Case({{7, true}, {7, true}}, {{0, 1}}, {}).check().ok());
  EXPECT_TRUE(Case({{7, true}, {7, false}}, {{0, 1}}, {{0, 1}}).check().ok());
}

TEST(CheckRelaxed, WhatTheCaptureDidNotOrderIsNotAskedFor) {
  EXPECT_TRUE(Case({{7, true}, {7, true}}, {}, {}).check().ok());
  EXPECT_TRUE(Case({{7, true, false}, {7, true, false}}, {}, {}).check().ok());
}

TEST(CheckRelaxed, ReadersAndUsersOfOtherMemoryNeedNoOrder) {
  EXPECT_TRUE(Case({{7, false}, {7, false}}, {{0, 1}}, {}).check().ok());
  EXPECT_TRUE(Case({{7, true}, {8, true}}, {{0, 1}}, {}).check().ok());
}

TEST(CheckRelaxed, PartsOfOneUnitNeedNoOrder) {
  const auto check = [](std::uint64_t first_bytes, std::uint64_t second_bytes) {
    const Node first{7, true, true, NodeFacts::kNoWork, 0, first_bytes};
    const Node second{7, true, true, NodeFacts::kNoWork, 64, second_bytes};
    return Case({first, second}, {{0, 1}}, {}).check().ok();
  };
  EXPECT_TRUE(check(64, 8));
  EXPECT_FALSE(check(65, 8));
  EXPECT_FALSE(check(0, 8));
  EXPECT_FALSE(check(64, 0));
}

TEST(CheckRelaxed, CopiesThatShareBytesOfTheHostNeedTheirOrderIfOneWritesThem) {
  const auto check = [](HostBytes first, HostBytes second) {
    Case step({{7, true}, {8, true}}, {{0, 1}}, {});
    step.graph.facts[0].host_bytes = first;
    step.graph.facts[1].host_bytes = second;
    return step.check();
  };
  EXPECT_THAT(check({100, 200, true}, {199, 300, false}).message(),
              AllOf(HasSubstr("kernel 0 'k' and kernel 1 'k'"), HasSubstr("memory of the host")));
  EXPECT_FALSE(check({100, 200, false}, {50, 101, true}).ok());
  EXPECT_FALSE(check({100, 200, true}, {120, 130, true}).ok());
  EXPECT_TRUE(check({100, 200, false}, {100, 200, false}).ok());
  EXPECT_TRUE(check({100, 200, true}, {200, 300, true}).ok());
  EXPECT_TRUE(check({100, 200, true}, {50, 100, true}).ok());
}

TEST(CheckRelaxed, AnOrderMayBeKeptByWayOfOthers) {
  EXPECT_TRUE(
      Case({{7, true}, {8, true}, {7, false}}, {{0, 1}, {0, 2}}, {{0, 1}, {1, 2}}).check().ok());
}

TEST(CheckRelaxed, NodesOfWhichNotAllIsKnownKeepTheirPlace) {
  EXPECT_FALSE(Case({{7, false, false}, {8, false}}, {{0, 1}}, {}).check().ok());
  const Case step({{7, false}, {8, false, false}}, {{0, 1}}, {});
  EXPECT_THAT(step.check().message(), HasSubstr("is not known"));
}

TEST(CheckRelaxed, AnEarlyLaunchKeepsItsEdgeUnlessTheOtherHasEnded) {
  const std::vector<Node> nodes{{7, false}, {8, false}, {9, false}};
  const Case lost(nodes, {{0, 1, true}, {1, 2}}, {{1, 2}});
  EXPECT_THAT(lost.check().message(), HasSubstr("the second may wait for the first"));
  EXPECT_TRUE(Case(nodes, {{0, 1, true}, {1, 2}}, {{0, 1, true}, {1, 2}}).check().ok());
  EXPECT_TRUE(Case(nodes, {{0, 1, true}, {1, 2}}, {{0, 1}, {1, 2}}).check().ok());
  EXPECT_TRUE(Case(nodes, {{0, 2, true}, {0, 1}, {1, 2}}, {{0, 1}, {1, 2}}).check().ok());
}

TEST(CheckRelaxed, WhatComesBehindAnEarlyLaunchHasNotWaitedForTheOther) {
  const std::vector<Node> nodes{{7, false}, {8, false}, {9, false}};
  const std::initializer_list<Arrow> captured{{0, 1, true}, {0, 2}, {1, 2}};
  EXPECT_TRUE(Case(nodes, captured, captured).check().ok());
  EXPECT_FALSE(Case(nodes, captured, {{0, 1, true}, {1, 2}}).check().ok());
  EXPECT_FALSE(Case(nodes, captured, {{0, 1, true}, {0, 2, true}, {1, 2}}).check().ok());
}

TEST(CheckRelaxed, TheNodesOfOneWorkKeepTheirOrder) {
  EXPECT_THAT(Case({{7, false, true, 3}, {8, false, true, 3}}, {{0, 1}}, {}).check().message(),
              HasSubstr("of one piece of work"));
  EXPECT_TRUE(Case({{7, false, true, 3}, {8, false, true, 4}}, {{0, 1}}, {}).check().ok());
}

TEST(CheckRelaxed, CollectivesKeepTheirOrder) {
  constexpr auto kInTurn = NodeFacts::kInTurn;
  EXPECT_FALSE(
      Case({{7, false, true, kInTurn}, {8, false, true, kInTurn}}, {{0, 1}}, {}).check().ok());
  EXPECT_TRUE(Case({{7, false, true, kInTurn}, {8, false, true, 4}}, {{0, 1}}, {}).check().ok());
}

TEST(CheckRelaxed, WhoeverReadsATableMayReachAnything) {
  const Case step({{7, false}, {8, false}}, {{0, 1}}, {});
  TableWrite table;
  table.unit = 8;
  EXPECT_FALSE(step.check({table}).ok());
  table.unit = 9;
  EXPECT_TRUE(step.check({table}).ok());
  table.unit = TableWrite::kNowhere;
  EXPECT_FALSE(step.check({table}).ok());
}

// Who has ended when whom begins, by brute force.
using Matrix = std::vector<std::vector<bool>>;

Matrix closure(std::size_t nodes, const std::vector<EdgeImage>& edges) {
  Matrix leads(nodes, std::vector<bool>(nodes)), before = leads;
  for (std::size_t i = 0; i < nodes; ++i) leads[i][i] = true;
  for (const EdgeImage& edge : edges) leads[edge.from][edge.to] = true;
  for (std::size_t k = 0; k < nodes; ++k) {
    for (std::size_t i = 0; i < nodes; ++i) {
      for (std::size_t j = 0; leads[i][k] && j < nodes; ++j) {
        if (leads[k][j]) leads[i][j] = true;
      }
    }
  }
  for (const EdgeImage& edge : edges) {
    for (std::size_t j = 0; !is_early(edge) && j < nodes; ++j) {
      if (leads[edge.to][j]) before[edge.from][j] = true;
    }
  }
  return before;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}
  std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }
  // Each possible edge once in so many.
  std::vector<EdgeImage> edges(std::uint32_t nodes, std::uint32_t once_in) {
    std::vector<EdgeImage> made;
    for (std::uint32_t to = 1; to < nodes; ++to) {
      for (std::uint32_t from = 0; from < to; ++from) {
        if (below(once_in) == 0) made.push_back({from, to, {}});
      }
    }
    return made;
  }

 private:
  std::mt19937_64 random_;
};

bool need_order(const Node& a, const Node& b) {
  bool share = false;
  for (std::uint64_t byte = 0; a.unit == b.unit && (a.writes || b.writes) && byte < 16; ++byte) {
    const auto touches = [&](const Node& node) {
      return node.bytes == 0 || (byte >= node.begin && byte < node.begin + node.bytes);
    };
    share |= touches(a) && touches(b);
  }
  return share || !a.is_known || !b.is_known || (a.work == b.work && a.work != NodeFacts::kNoWork);
}

TEST(CheckRelaxed, WhetherAnOrderIsKeptAgreesWithBruteForce) {
  constexpr std::uint32_t kNodes = 70;  // more than a word has bits
  std::uint32_t kept = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Random random(seed);
    std::vector<Node> nodes;
    for (std::uint32_t i = 0; i < kNodes; ++i) {
      nodes.push_back({random.below(15), random.below(3) == 0, random.below(100) != 0,
                       random.below(20) == 0 ? random.below(8) : NodeFacts::kNoWork,
                       random.below(12), random.below(5)});
    }
    Case step(nodes, {}, {});
    step.graph.image.edges = random.edges(kNodes, 30);
    std::vector<bool> is_bound(kNodes);  // at either end of an early edge
    for (EdgeImage& edge : step.graph.image.edges) {
      if (seed % 2 == 0 || random.below(20) != 0) continue;
      edge.data.type = kEdgeProgrammatic;
      is_bound[edge.from] = is_bound[edge.to] = true;
    }
    step.made = step.graph.image.edges;
    for (std::uint32_t i = 0; i <= seed % 3; ++i) {
      step.made.erase(step.made.begin() +
                      random.below(static_cast<std::uint32_t>(step.made.size())));
    }
    const Matrix was = closure(kNodes, step.graph.image.edges), is = closure(kNodes, step.made);
    bool is_kept = true;
    for (std::uint32_t i = 0; i < kNodes; ++i) {
      for (std::uint32_t j = 0; j < kNodes; ++j) {
        const bool is_needed = is_bound[i] || is_bound[j] || need_order(nodes[i], nodes[j]);
        if (was[i][j] && !is[i][j] && is_needed) is_kept = false;
      }
    }
    for (const EdgeImage& edge : step.graph.image.edges) {
      const bool is_there = std::ranges::any_of(step.made, [&](const EdgeImage& other) {
        return other.from == edge.from && other.to == edge.to;
      });
      if (is_early(edge) && !is_there && !is[edge.from][edge.to]) is_kept = false;
    }
    ASSERT_EQ(step.check().ok(), is_kept) << "seed " << seed << ": " << step.check().message();
    kept += is_kept;
  }
  EXPECT_GT(kept, 50u);
  EXPECT_LT(kept, 350u);
}

}  // namespace
}  // namespace anabranch::cuda
