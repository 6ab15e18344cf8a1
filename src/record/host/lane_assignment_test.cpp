// SPDX-License-Identifier: Apache-2.0
#include "record/host/lane_assignment.h"

#include <gmock/gmock.h>

#include <string>

#include "record/record_testing.h"

namespace anabranch::host {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Lt;
using testing::plan_of;

constexpr StreamId kA{1}, kB{2}, kC{3};

// Steps that pass one buffer each from stream to stream.
class Steps {
 public:
  explicit Steps(int streams) {
    for (int i = 0; i < streams; ++i) builder_.add_stream("side " + std::to_string(i));
  }
  explicit Steps(std::initializer_list<std::int32_t> priorities) {
    for (const std::int32_t priority : priorities) {
      const auto number = std::to_string(builder_.build()->streams().size());
      builder_.add_stream("side " + number, StreamOrigin::kPlaced, priority);
    }
  }
  // A step that reads what `from` wrote.
  BufferId add(StreamId stream, std::vector<BufferId> from = {}, std::uint64_t bytes = 64) {
    const BufferId result = builder_.add_buffer({"t", Role::kTemporary, bytes, 64});
    std::vector<Access> accesses{builder_.write(result)};
    for (const BufferId buffer : from) accesses.push_back(builder_.read(buffer));
    builder_.compute(stream, "f", accesses);
    return result;
  }
  LaneAssignment lanes(std::uint32_t max_lanes) const {
    return assign_lanes(plan_of(builder_), max_lanes);
  }

 private:
  ProgramBuilder builder_;
};

TEST(LaneAssignment, TwoBranchesTakeTheCallerAndOneWorker) {
  Steps steps(2);
  const BufferId x = steps.add(kAmbient);
  steps.add(kAmbient, {steps.add(kA, {x}), steps.add(kB, {x})});
  EXPECT_THAT(steps.lanes(8).lane_of_stream, ElementsAre(0, 0, 1));
}

TEST(LaneAssignment, BranchesThatForkAndJoinAgainAndAgainTakeTheSameLanes) {
  Steps steps(2);
  BufferId x = steps.add(kAmbient);
  for (int block = 0; block < 5; ++block) {
    x = steps.add(kAmbient, {steps.add(kA, {x}), steps.add(kB, {x})});
  }
  EXPECT_THAT(steps.lanes(8).lane_of_stream, ElementsAre(0, 0, 1));
}

TEST(LaneAssignment, TheHeavierBranchStaysWithTheCaller) {
  Steps steps(2);
  const BufferId x = steps.add(kAmbient);
  steps.add(kAmbient, {steps.add(kA, {x}), steps.add(kB, {x}, 1 << 20)});
  EXPECT_THAT(steps.lanes(8).lane_of_stream, ElementsAre(0, 1, 0));
}

TEST(LaneAssignment, AStreamBesideTheAmbientOneHasALaneOfItsOwn) {
  Steps steps(1);
  const BufferId x = steps.add(kAmbient);
  const BufferId y = steps.add(kA, {x});
  const BufferId z = steps.add(kAmbient, {x});
  steps.add(kAmbient, {y, z});
  EXPECT_THAT(steps.lanes(8).lane_of_stream, ElementsAre(0, 1));
}

TEST(LaneAssignment, SideStreamsThatFollowEachOtherShareAWorker) {
  Steps steps(3);
  const BufferId x = steps.add(kAmbient);
  const BufferId a = steps.add(kA, {x});
  const BufferId b = steps.add(kB, {a});
  const BufferId c = steps.add(kC, {x});
  const BufferId z = steps.add(kAmbient, {x});
  steps.add(kAmbient, {z, b, c});
  EXPECT_THAT(steps.lanes(8).lane_of_stream, ElementsAre(0, 1, 1, 2));
}

TEST(LaneAssignment, MoreStreamsThanLanesShareThemByLoad) {
  Steps steps(6);
  const BufferId x = steps.add(kAmbient);
  std::vector<BufferId> ends{steps.add(kAmbient, {x})};
  for (std::uint32_t s = 1; s <= 6; ++s) ends.push_back(steps.add(StreamId{s}, {x}));
  steps.add(kAmbient, ends);
  const LaneAssignment lanes = steps.lanes(3);
  EXPECT_EQ(lanes.lane_count, 3u);
  EXPECT_THAT(lanes.lane_of_stream, ElementsAre(0, 1, 2, 1, 2, 1, 2));
}

TEST(LaneAssignment, TheMoreUrgentStreamHasTheLaneToItself) {
  const auto lanes_by = [](std::initializer_list<std::int32_t> priorities) {
    Steps steps(priorities);
    const BufferId x = steps.add(kAmbient);
    std::vector<BufferId> ends{steps.add(kAmbient, {x})};
    for (const StreamId stream : {kA, kB, kC}) ends.push_back(steps.add(stream, {x}));
    ends.push_back(steps.add(kA, {x}, 1 << 20));
    steps.add(kAmbient, ends);
    return steps.lanes(3).lane_of_stream;
  };
  EXPECT_THAT(lanes_by({0, 0, 0}), ElementsAre(0, 1, 2, 2));
  EXPECT_THAT(lanes_by({0, 0, -1}), ElementsAre(0, 2, 1, 1));
  EXPECT_THAT(lanes_by({1, 0, 0}), ElementsAre(0, 1, 1, 2));
}

TEST(LaneAssignment, OneLaneTakesEverything) {
  Steps steps(2);
  const BufferId x = steps.add(kAmbient);
  steps.add(kAmbient, {steps.add(kA, {x}), steps.add(kB, {x})});
  const LaneAssignment lanes = steps.lanes(1);
  EXPECT_EQ(lanes.lane_count, 1u);
  EXPECT_THAT(lanes.lane_of_stream, Each(0));
}

TEST(LaneAssignment, StreamsWithoutStepsTakeNoWorker) {
  Steps steps(3);
  steps.add(kAmbient, {steps.add(kAmbient)});
  EXPECT_EQ(steps.lanes(8).lane_count, 1u);
  EXPECT_THAT(steps.lanes(8).lane_of_stream, Each(Lt(1u)));
}

TEST(LaneAssignment, AnEmptyProgramHasOneLane) { EXPECT_EQ(Steps(0).lanes(8).lane_count, 1u); }

}  // namespace
}  // namespace anabranch::host
