// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/list_schedule.h"

#include <gmock/gmock.h>

#include <random>

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint32_t kNone = NodePlace::kNone;

struct Graph {
  std::vector<NodeCost> costs;
  std::vector<EdgeImage> edges;
  ReducedEdges reduced;

  Graph(std::initializer_list<std::uint64_t> ns, std::initializer_list<EdgeImage> arrows)
      : edges(arrows), reduced(ns.size()) {
    for (const std::uint64_t each : ns) costs.push_back({each});
    reduce();
  }
  explicit Graph(std::uint64_t seed) : reduced(kRandomNodes) {
    std::mt19937_64 random(seed);
    for (std::uint32_t node = 0; node < kRandomNodes; ++node) {
      const auto engine = random() % 8;
      costs.push_back({1 + random() % 9, static_cast<Engine>(engine < 4 ? engine : 0)});
      for (std::uint32_t other = 0; other < node; ++other) {
        if (random() % 10 == 0) edges.push_back({other, node, {}});
      }
    }
    reduce();
  }
  Schedule schedule(std::uint32_t lanes) const {
    return list_schedule(costs, reduced.edges(), reduced.before(), lanes);
  }
  // From its begin to the end of the graph.
  std::uint64_t rank(std::uint32_t node) const {
    std::uint64_t longest = 0;
    for (const EdgeImage& edge : edges) {
      if (edge.from == node) longest = std::max(longest, rank(edge.to));
    }
    return longest + costs[node].ns;
  }
  static constexpr std::uint32_t kRandomNodes = 16;

 private:
  void reduce() {
    std::vector<EdgeImage> to_node;
    for (std::uint32_t node = 0; node < costs.size(); ++node) {
      to_node.clear();
      for (const EdgeImage& edge : edges) {
        if (edge.to == node) to_node.push_back(edge);
      }
      reduced.add(to_node);
    }
  }
};

std::vector<std::uint64_t> begins(const Schedule& schedule) {
  std::vector<std::uint64_t> ns;
  for (const NodePlace& place : schedule.places) ns.push_back(place.begin_ns);
  return ns;
}
std::vector<std::uint32_t> lanes(const Schedule& schedule) {
  std::vector<std::uint32_t> numbers;
  for (const NodePlace& place : schedule.places) numbers.push_back(place.lane);
  return numbers;
}
std::vector<std::uint32_t> behind(const Schedule& schedule) {
  std::vector<std::uint32_t> nodes;
  for (const NodePlace& place : schedule.places) nodes.push_back(place.behind);
  return nodes;
}

TEST(ListSchedule, ALongLateNodeRunsWhereALaneWouldBeIdle) {
  // A backward of which one lane is enough, and an optimizer's kernels, which need its first parts.
  const Graph graph({10, 10, 10, 10, 10, 30, 5}, {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {0, 5}, {4, 6}});
  const Schedule found = graph.schedule(2);
  EXPECT_THAT(begins(found), ElementsAre(0, 10, 20, 30, 40, 10, 50));
  EXPECT_THAT(lanes(found), ElementsAre(0, 0, 0, 0, 0, 1, 0));
  EXPECT_EQ(found.lanes, 2u);
}

TEST(ListSchedule, TheCriticalPathGoesFirst) {
  // 0 and 1 come first in the graph, but the end waits for what comes behind 2.
  const Graph graph({10, 10, 10, 10, 10}, {{2, 3}, {3, 4}});
  EXPECT_THAT(begins(graph.schedule(2)), ElementsAre(0, 10, 0, 10, 20));
  const Graph long_one({10, 10, 25}, {});
  EXPECT_THAT(begins(long_one.schedule(2)), ElementsAre(0, 10, 0));
}

TEST(ListSchedule, NodesOfOneRankKeepTheirOrder) {
  EXPECT_THAT(begins(Graph({10, 10, 10, 10}, {}).schedule(2)), ElementsAre(0, 0, 10, 10));
}

TEST(ListSchedule, ANodeTakesTheLaneOfOneThatItComesBehindAnyway) {
  // Both lanes are free for 3 when 2 ends; of those that cost no edge, the one that is free last.
  const Graph graph({10, 20, 10, 10}, {{0, 2}, {1, 3}, {2, 3}});
  EXPECT_THAT(lanes(graph.schedule(8)), ElementsAre(0, 1, 0, 0));
  const Graph fork({10, 10, 10}, {{0, 1}, {0, 2}});
  EXPECT_THAT(behind(fork.schedule(8)), ElementsAre(kNone, 0, kNone));
  const Graph ancestor({10, 5, 10, 10}, {{0, 1}, {1, 2}, {1, 3}});
  EXPECT_EQ(ancestor.schedule(1).lanes, 1u);
}

TEST(ListSchedule, ALaneWhoseLastNodeComesBeforeByOthersCostsNoEdge) {
  // 4 comes behind 1 by way of 3, and 0 is nothing to it.
  const Graph graph({40, 10, 10, 10, 20}, {{1, 2}, {1, 3}, {3, 4}});
  const Schedule found = graph.schedule(3);
  EXPECT_THAT(lanes(found), ElementsAre(0, 1, 2, 1, 1));
}

TEST(ListSchedule, WhereAnEdgeItMustBeItIsFromWhatEndedFirst) {
  // 3 comes behind 2 alone, whose lane 4 takes; 0 ended before 1.
  const Graph graph({10, 20, 30, 10, 20}, {{2, 3}, {2, 4}});
  EXPECT_THAT(behind(graph.schedule(3)), ElementsAre(kNone, kNone, kNone, 0, 2));
}

TEST(ListSchedule, NobodyComesBehindALaterNodeOnALane) {
  // On one lane: 3, 0, 2, 1 by their ways to the end.
  const Graph graph({30, 10, 20, 40}, {});
  const Schedule found = graph.schedule(1);
  EXPECT_THAT(begins(found), ElementsAre(40, 90, 70, 0));
  EXPECT_THAT(behind(found), ElementsAre(kNone, 0, 0, kNone));
}

TEST(ListSchedule, ANodeWithoutALaneBeginsAsSoonAsItMay) {
  Graph graph({10, 10, 10, 10}, {{0, 3}});
  graph.costs[1].engine = graph.costs[3].engine = Engine::kNone;
  const Schedule found = graph.schedule(1);
  EXPECT_THAT(begins(found), ElementsAre(0, 0, 10, 10));
  EXPECT_THAT(lanes(found), ElementsAre(0, kNone, 0, kNone));
}

TEST(ListSchedule, CopiesOfEitherWayHaveALaneBesideThoseOfKernels) {
  // Two copies each way, and a kernel behind the first to the device.
  Graph graph({10, 10, 10, 10, 10}, {{0, 2}});
  graph.costs[0].engine = graph.costs[1].engine = Engine::kToDevice;
  graph.costs[3].engine = graph.costs[4].engine = Engine::kToHost;
  const Schedule found = graph.schedule(2);
  EXPECT_THAT(begins(found), ElementsAre(0, 10, 10, 0, 10));
  EXPECT_THAT(lanes(found), ElementsAre(2, 2, 0, 3, 3));
  EXPECT_THAT(behind(found), ElementsAre(kNone, 0, kNone, kNone, 3));
  EXPECT_EQ(found.lanes, 3u);
}

TEST(ListSchedule, AnEmptyGraphHasNoLanes) {
  const Schedule found = Graph({}, {}).schedule(4);
  EXPECT_THAT(found.places, IsEmpty());
  EXPECT_EQ(found.lanes, 0u);
}

TEST(ListSchedule, AKernelTakesLongerTheMoreItGoesThrough) {
  EXPECT_EQ(estimate_ns(0), kLeastKernelNs);
  EXPECT_EQ(estimate_ns(240'000'000), kLeastKernelNs + 60'000);
  EXPECT_EQ(estimate_copy_ns(240'000'000), kLeastKernelNs + 4'800'000);
}

std::uint64_t ready_at(const Graph& graph, const Schedule& schedule, std::uint32_t node) {
  std::uint64_t ns = 0;
  for (const EdgeImage& edge : graph.edges) {
    if (edge.to == node) ns = std::max(ns, schedule.places[edge.from].end_ns);
  }
  return ns;
}

// Whoever waits does so while all lanes for it are taken by nodes that began before or are no less
// urgent.
void expect_no_lane_is_idle(const Graph& graph, const Schedule& found, std::uint32_t lanes) {
  for (std::uint32_t node = 0; node < graph.costs.size(); ++node) {
    const NodePlace& place = found.places[node];
    const Engine engine = graph.costs[node].engine;
    if (engine == Engine::kNone) {
      ASSERT_EQ(place.begin_ns, ready_at(graph, found, node));
      continue;
    }
    for (std::uint64_t ns = ready_at(graph, found, node); ns < place.begin_ns; ++ns) {
      std::uint32_t busy = 0;
      for (std::uint32_t other = 0; other < graph.costs.size(); ++other) {
        const NodePlace& there = found.places[other];
        const bool is_beside = graph.costs[other].engine != engine;
        if (is_beside || there.begin_ns > ns || there.end_ns <= ns) continue;
        ++busy;
        if (there.begin_ns < ns) continue;
        const auto rank = graph.rank(other), own = graph.rank(node);
        ASSERT_TRUE(rank > own || (rank == own && other < node)) << other << " before " << node;
      }
      ASSERT_EQ(busy, engine == Engine::kKernels ? lanes : 1) << node << " waits at " << ns;
    }
  }
}

// The last before it there that has a lower number, by brute force.
std::uint32_t expected_behind(const Schedule& found, std::uint32_t node) {
  std::uint32_t last = kNone;
  for (std::uint32_t other = 0; other < node; ++other) {
    const NodePlace &there = found.places[other], &place = found.places[node];
    if (place.lane == kNone || there.lane != place.lane || there.begin_ns > place.begin_ns)
      continue;
    if (last == kNone || found.places[last].begin_ns < there.begin_ns) last = other;
  }
  return last;
}

TEST(ListSchedule, ALaneTakesTheMostUrgentNodeThatIsReadyAndIsIdleOnlyIfNoneIs) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph(seed);
    const auto lanes = static_cast<std::uint32_t>(1 + seed % 4);
    const Schedule found = graph.schedule(lanes);
    ASSERT_LE(found.lanes, lanes + 2);
    for (std::uint32_t node = 0; node < graph.costs.size(); ++node) {
      const NodePlace& place = found.places[node];
      ASSERT_EQ(place.end_ns, place.begin_ns + graph.costs[node].ns);
      ASSERT_GE(place.begin_ns, ready_at(graph, found, node));
      ASSERT_EQ(place.lane != kNone, graph.costs[node].engine != Engine::kNone);
      ASSERT_EQ(place.behind, expected_behind(found, node)) << node;
      for (std::uint32_t other = 0; other < node && place.lane != kNone; ++other) {
        const NodePlace& there = found.places[other];
        ASSERT_TRUE(there.lane != place.lane || there.end_ns <= place.begin_ns ||
                    place.end_ns <= there.begin_ns);
      }
    }
    expect_no_lane_is_idle(graph, found, lanes);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace anabranch::cuda
