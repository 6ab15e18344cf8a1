// SPDX-License-Identifier: Apache-2.0
#include "record/host/lane_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/random_program.h"
#include "record/record_testing.h"

namespace anabranch::host {
namespace {

using testing::must;
using testing::plan_of;

struct Edge {
  std::uint32_t from = 0, to = 0;
};

std::vector<std::uint32_t> positions_of(const Plan& plan) {
  std::vector<std::uint32_t> position(plan.order().size());
  for (std::uint32_t p = 0; p < position.size(); ++p) position[index_of(plan.order()[p])] = p;
  return position;
}

// Whether `to` starts only after `from`: brute force over lane order and waits.
class Reach {
 public:
  Reach(const LaneSchedule& schedule, const std::vector<Edge>& waits)
      : after_(schedule.lane.size(), std::vector<bool>(schedule.lane.size())) {
    for (std::uint32_t p = 0; p < schedule.lane.size(); ++p) {
      for (std::uint32_t q = 0; q < p; ++q) {
        if (schedule.lane[q] == schedule.lane[p]) add(q, p);
      }
      for (const Edge& wait : waits) {
        if (wait.to == p) add(wait.from, p);
      }
    }
  }
  bool operator()(const Edge& edge) const { return after_[edge.to][edge.from]; }

 private:
  void add(std::uint32_t from, std::uint32_t to) {
    after_[to][from] = true;
    for (std::uint32_t q = 0; q < from; ++q) {
      if (after_[from][q]) after_[to][q] = true;
    }
  }
  std::vector<std::vector<bool>> after_;
};

std::vector<Edge> waits_in(const LaneSchedule& schedule, const std::vector<std::uint32_t>& at) {
  std::vector<Edge> edges;
  for (std::uint32_t p = 0; p < schedule.lane.size(); ++p) {
    for (std::uint32_t w = schedule.first_wait[p]; w < schedule.first_wait[p + 1]; ++w) {
      edges.push_back({at[index_of(schedule.waits[w].on)], p});
    }
  }
  return edges;
}

void for_random_plans(const std::function<void(const Plan&, std::uint32_t lanes)>& test) {
  RandomProgramOptions options;
  options.steps = 50;
  options.streams = 6;
  options.syncs = 10;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Plan plan = must(make_plan(random_program(seed, options)));
    for (const std::uint32_t lanes : {1, 2, 4, 8}) test(plan, lanes);
  }
}

TEST(LaneSchedule, KeepsEveryWaitOfThePlan) {
  for_random_plans([](const Plan& plan, std::uint32_t lanes) {
    const LaneSchedule schedule = make_lane_schedule(plan, assign_lanes(plan, lanes));
    const std::vector<std::uint32_t> at = positions_of(plan);
    const Reach reach(schedule, waits_in(schedule, at));
    for (const Wait& wait : plan.waits()) {
      EXPECT_TRUE(reach({at[index_of(wait.on)], at[index_of(wait.step)]}));
    }
  });
}

TEST(LaneSchedule, KeepsNoWaitThatOthersImply) {
  for_random_plans([](const Plan& plan, std::uint32_t lanes) {
    const LaneSchedule schedule = make_lane_schedule(plan, assign_lanes(plan, lanes));
    const std::vector<Edge> waits = waits_in(schedule, positions_of(plan));
    for (std::size_t i = 0; i < waits.size(); ++i) {
      std::vector<Edge> others = waits;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(Reach(schedule, others)(waits[i]));
    }
  });
}

TEST(LaneSchedule, PointsOfALaneCountUpAndEachIsWaitedFor) {
  for_random_plans([](const Plan& plan, std::uint32_t max_lanes) {
    const LaneAssignment lanes = assign_lanes(plan, max_lanes);
    const LaneSchedule schedule = make_lane_schedule(plan, lanes);
    std::vector<std::uint32_t> reached(lanes.lane_count);
    for (std::size_t p = 0; p < schedule.lane.size(); ++p) {
      if (schedule.point[p] == 0) continue;
      EXPECT_EQ(schedule.point[p], ++reached[schedule.lane[p]]);
      const bool awaited =
          std::any_of(schedule.waits.begin(), schedule.waits.end(), [&](const LaneWait& wait) {
            return wait.on == plan.order()[p] && wait.lane == schedule.lane[p] &&
                   wait.point == schedule.point[p];
          });
      EXPECT_TRUE(awaited);
    }
    EXPECT_EQ(schedule.most_points, *std::max_element(reached.begin(), reached.end()));
  });
}

// By brute force: whether everything before a position comes before everything from it on.
std::vector<bool> cuts_of(const LaneSchedule& schedule, const Reach& reach) {
  const auto count = static_cast<std::uint32_t>(schedule.lane.size());
  std::vector<bool> cuts(count + 1, true);
  for (std::uint32_t from = 0; from < count; ++from) {
    for (std::uint32_t to = from + 1; to < count; ++to) {
      if (reach({from, to})) continue;
      for (std::uint32_t p = from + 1; p <= to; ++p) cuts[p] = false;
    }
  }
  return cuts;
}

TEST(LaneSchedule, PhasesEndWhereverEverythingBeforeComesBeforeEverythingAfter) {
  for_random_plans([](const Plan& plan, std::uint32_t lanes) {
    const LaneSchedule schedule = make_lane_schedule(plan, assign_lanes(plan, lanes));
    const std::vector<bool> cuts =
        cuts_of(schedule, Reach(schedule, waits_in(schedule, positions_of(plan))));
    std::uint32_t next = 0;
    for (const Phase& phase : schedule.phases) {
      EXPECT_EQ(phase.begin, next);
      EXPECT_TRUE(cuts[phase.begin] && cuts[phase.end]);
      for (std::uint32_t p = phase.begin + 1; p < phase.end; ++p) {
        EXPECT_EQ(cuts[p], phase.one_lane);
      }
      next = phase.end;
    }
    EXPECT_EQ(next, schedule.lane.size());
  });
}

TEST(LaneSchedule, NeighbouringPhasesOfOneLaneAreOne) {
  for_random_plans([](const Plan& plan, std::uint32_t lanes) {
    const LaneSchedule schedule = make_lane_schedule(plan, assign_lanes(plan, lanes));
    for (std::size_t i = 1; i < schedule.phases.size(); ++i) {
      EXPECT_FALSE(schedule.phases[i - 1].one_lane && schedule.phases[i].one_lane);
    }
    if (lanes == 1) {
      EXPECT_EQ(schedule.phases.size(), 1u);
    }
  });
}

TEST(LaneSchedule, OneLaneWaitsForNothing) {
  const Plan plan = must(make_plan(random_program(3)));
  ASSERT_FALSE(plan.waits().empty());
  EXPECT_TRUE(make_lane_schedule(plan, assign_lanes(plan, 1)).waits.empty());
}

}  // namespace
}  // namespace anabranch::host
