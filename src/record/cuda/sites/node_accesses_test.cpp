// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/node_accesses.h"

#include <gmock/gmock.h>

#include "device/sim/sim_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;

constexpr std::uint64_t kBytes = 256;
constexpr std::uint32_t kNoWork = NodeFacts::kNoWork;

std::vector<std::uint32_t> works_of(const NodeAccesses& accesses) {
  std::vector<std::uint32_t> works;
  for (const NodeFacts& node : accesses.facts) works.push_back(node.work);
  return works;
}
std::vector<bool> known_of(const NodeAccesses& accesses) {
  std::vector<bool> known;
  for (const NodeFacts& node : accesses.facts) known.push_back(node.is_known);
  return known;
}

// Kernels captured on one stream, each given two of a few places; and allocations, which say which
// place they take.
class NodeAccessesTest : public sim::SimTest {
 protected:
  NodeAccessesTest() {
    stream_ = stream();
    for (CuDevicePtr& place : places_) place = allocate(4 * kBytes);
    EXPECT_CU(d->cuStreamBeginCapture(stream_, CuCaptureMode::kRelaxed));
  }

  void allocate_at(std::size_t place, std::uint64_t bytes = kBytes) {
    allocations_.push_back({places_[place], bytes});
  }
  void begin() { before_ = static_cast<std::uint32_t>(allocations_.size()); }
  void queue(std::size_t in, std::size_t out) {
    EXPECT_CU(add_one(stream_, places_[in], places_[out]));
    const auto node = static_cast<std::uint32_t>(found_.size() / 2);
    found_.push_back({node, Operand::kParam, 0, static_cast<std::uint32_t>(in), 0});
    found_.push_back({node, Operand::kParam, 8, static_cast<std::uint32_t>(out), 0});
  }
  std::uint32_t mark() { return *marks_.mark(stream_, allocations_.size() - before_); }
  void note(std::vector<CaptureUse> uses, bool has_scratch = false, bool independent = false,
            bool in_turn = false) {
    works_.push_back(
        {mark(), static_cast<std::uint32_t>(uses.size()), has_scratch, independent, in_turn});
    uses_.insert(uses_.end(), uses.begin(), uses.end());
  }
  void note_in_turn(std::vector<CaptureUse> uses) { note(std::move(uses), false, false, true); }
  CaptureUse reads(std::size_t place) { return {places_[place] + 4, false}; }
  CaptureUse writes(std::size_t place) { return {places_[place], true}; }

  // Units by place are those of first allocation, so tests allocate places in their order.
  NodeAccesses find(bool with_notes = true) {
    const GraphImage image = *read_graph(*d, end_capture(stream_));
    const auto units = UnitTable::make(allocations_, allocations_);
    EXPECT_TRUE(units.ok());
    const Notes notes{&marks_, before_, works_, uses_};
    NodeAccesses found =
        find_accesses(allocations_, *units, false, with_notes ? &notes : nullptr, image, found_);
    sites_ = found.sites;
    return found;
  }
  std::vector<std::uint32_t> units_of_sites() const {
    std::vector<std::uint32_t> units;
    for (const Site& site : sites_) units.push_back(site.unit);
    return units;
  }

  CuDevicePtr places_[4] = {};
  std::vector<Site> sites_;

 private:
  std::vector<FoundSite> found_;
  CuStream stream_ = nullptr;
  CaptureMarks marks_{*d};
  std::uint32_t before_ = 0;
  std::vector<CaptureAllocation> allocations_;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
};

TEST_F(NodeAccessesTest, WithoutNotesAnAddressIsOneUnitThatAnyoneMayWrite) {
  allocate_at(0);
  begin();
  allocate_at(1);
  queue(0, 1);
  allocate_at(1, 2 * kBytes);
  queue(0, 1);
  const NodeAccesses found = find(false);
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(found.unit_of, ElementsAre(0, 1, 1));
  EXPECT_EQ(found.units[1].bytes, 2 * kBytes);
  EXPECT_THAT(works_of(found), ElementsAre(kNoWork, kNoWork));
  EXPECT_THAT(known_of(found), ElementsAre(false, false));
  EXPECT_TRUE(sites_[0].writes);
}

TEST_F(NodeAccessesTest, NotedWorkReadsAndWritesWhatItSays) {
  allocate_at(0);
  allocate_at(1);
  begin();
  queue(1, 0);
  mark();
  queue(0, 1);
  note({reads(0), writes(1)});
  queue(0, 1);
  const NodeAccesses found = find();
  EXPECT_THAT(works_of(found), ElementsAre(kNoWork, 0, kNoWork));
  EXPECT_THAT(known_of(found), ElementsAre(false, true, false));
  EXPECT_TRUE(sites_[0].writes && sites_[1].writes);
  EXPECT_FALSE(sites_[2].writes);
  EXPECT_TRUE(sites_[3].writes);
  EXPECT_TRUE(sites_[4].writes && sites_[5].writes);
}

TEST_F(NodeAccessesTest, WhatNotedWorkNamesBesidesItMayWrite) {
  allocate_at(0);
  allocate_at(1);
  begin();
  mark();
  queue(0, 1);
  note({reads(0)});
  EXPECT_EQ(find().facts[0].work, 0u);
  EXPECT_FALSE(sites_[0].writes);
  EXPECT_TRUE(sites_[1].writes);
}

TEST_F(NodeAccessesTest, WorkThatWritesMemoryThatIsNoUnitIsUnknown) {
  allocate_at(0);
  allocate_at(1);
  begin();
  mark();
  queue(0, 1);
  note({reads(0), writes(1), {places_[3], true}});
  mark();
  queue(0, 1);
  note({reads(0), writes(1), {places_[3], false}});
  const NodeAccesses found = find();
  EXPECT_THAT(works_of(found), ElementsAre(kNoWork, 1));
  EXPECT_THAT(known_of(found), ElementsAre(false, true));
}

TEST_F(NodeAccessesTest, IndependentWorkIsKnownAndItsNodesKeepNoOrder) {
  allocate_at(0);
  allocate_at(1);
  begin();
  mark();
  queue(0, 1);
  queue(1, 0);
  note({reads(0), writes(1)}, false, true);
  mark();
  queue(0, 1);
  note({reads(0), writes(1), {places_[3], true}}, false, true);  // which is no unit
  const NodeAccesses found = find();
  EXPECT_THAT(works_of(found), ElementsAre(kNoWork, kNoWork, kNoWork));
  EXPECT_THAT(known_of(found), ElementsAre(true, true, false));
}

TEST_F(NodeAccessesTest, WhatIsLeftOverInTheParametersOfIndependentWorkIsNoSite) {
  allocate_at(0);
  allocate_at(1);
  begin();
  mark();
  allocate_at(2);
  queue(0, 1);
  queue(0, 2);  // which it has allocated itself
  note({reads(0)}, false, true);
  queue(0, 1);
  note({reads(0)});
  const NodeAccesses found = find();
  EXPECT_THAT(known_of(found), ElementsAre(true, true, true));
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 0, 2, 0, 1));
  EXPECT_TRUE(sites_[2].writes && sites_[4].writes);
}

TEST_F(NodeAccessesTest, AllWorksInTurnAreOneInTheirOrder) {
  allocate_at(0);
  allocate_at(1);
  begin();
  mark();
  queue(0, 1);
  note_in_turn({reads(0), writes(1)});
  mark();
  queue(0, 1);
  note({reads(0), writes(1)});
  mark();
  queue(1, 0);
  note_in_turn({reads(1), writes(0)});
  const NodeAccesses found = find();
  EXPECT_THAT(works_of(found), ElementsAre(NodeFacts::kInTurn, 1, NodeFacts::kInTurn));
  EXPECT_THAT(known_of(found), ElementsAre(true, true, true));
  EXPECT_FALSE(sites_[0].writes || sites_[4].writes);
  EXPECT_TRUE(sites_[1].writes && sites_[5].writes);
}

TEST_F(NodeAccessesTest, WorkInTurnThatNamesNotAllThatItUsesIsUnknown) {
  for (std::size_t place = 0; place < 3; ++place) allocate_at(place);
  begin();
  mark();
  queue(0, 1);
  note_in_turn({reads(0), reads(2), writes(1)});
  mark();
  queue(0, 1);
  note({reads(0), reads(2), writes(1)});
  mark();
  queue(0, 1);
  note_in_turn({reads(0), writes(1), {places_[3], false}});  // which is no unit
  const NodeAccesses found = find();
  EXPECT_THAT(known_of(found), ElementsAre(false, true, true));
  EXPECT_THAT(works_of(found), ElementsAre(kNoWork, 1, NodeFacts::kInTurn));
  EXPECT_TRUE(sites_[0].writes && sites_[1].writes);
}

TEST_F(NodeAccessesTest, TheNodesOfIndependentWorkShareItsScratch) {
  allocate_at(0);
  begin();
  allocate_at(1);
  mark();
  queue(0, 1);
  queue(0, 1);
  note({reads(0)}, true, true);
  (void)find();
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 2, 0, 2));
  EXPECT_TRUE(sites_[1].writes && sites_[3].writes);
}

TEST_F(NodeAccessesTest, NodeAccessesOfAnAddressAreToldApartByTheMarks) {
  allocate_at(0);
  begin();
  allocate_at(1, 2 * kBytes);
  mark();
  queue(0, 1);
  note({reads(0), writes(1)});
  allocate_at(1);
  mark();
  queue(0, 1);
  note({reads(0), writes(1)});
  const NodeAccesses found = find();
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 1, 0, 2));
  EXPECT_THAT(found.unit_of, ElementsAre(0, 1, 2));
  EXPECT_EQ(found.units[1].bytes, 2 * kBytes);
  EXPECT_EQ(found.units[2].bytes, kBytes);
}

TEST_F(NodeAccessesTest, MemoryThatWorkAllocatesIsItsOwn) {
  allocate_at(0);
  begin();
  allocate_at(1);
  mark();
  queue(0, 1);
  note({reads(0), writes(1)});
  mark();
  allocate_at(1);  // its result, where another was
  queue(0, 1);
  note({reads(0), writes(1)});
  (void)find();
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 1, 0, 2));
}

TEST_F(NodeAccessesTest, WhatWorkAllocatesWhereItsResultComesToLieIsAsLarge) {
  allocate_at(0);
  begin();
  allocate_at(1);
  mark();
  queue(0, 1);
  note({reads(0), writes(1)});
  mark();
  allocate_at(1, 4 * kBytes);  // used between
  queue(0, 1);
  allocate_at(1);
  queue(0, 1);
  note({reads(0), writes(1)});
  const NodeAccesses found = find();
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 1, 0, 2, 0, 2));
  EXPECT_EQ(found.units[1].bytes, kBytes);
  EXPECT_EQ(found.units[2].bytes, 4 * kBytes);
}

TEST_F(NodeAccessesTest, AWorkspaceThatWorkAllocatesIsScratchOfThoseBehindIt) {
  allocate_at(0);
  begin();
  for (int i = 0; i < 3; ++i) {
    mark();
    if (i == 0) allocate_at(1);
    queue(0, 1);
    note({reads(0)}, true);
  }
  (void)find();
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 1, 0, 2, 0, 3));
}

TEST_F(NodeAccessesTest, AnUnknownNodeMeansAllNodeAccessesThatThereWereMeanwhile) {
  allocate_at(0);
  begin();
  allocate_at(1);
  mark();
  queue(0, 1);
  note({reads(0), writes(1)});
  allocate_at(1);
  allocate_at(1);
  queue(0, 1);  // of the three, it may be any
  allocate_at(1);
  mark();
  allocate_at(1);
  mark();
  queue(0, 1);
  note({reads(0), writes(1)});
  const NodeAccesses found = find();
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 1, 0, 1, 0, 2));
  EXPECT_THAT(found.unit_of, ElementsAre(0, 1, 1, 1, 1, 2));
}

TEST_F(NodeAccessesTest, ScratchIsAnotherUnitForEachWork) {
  allocate_at(0);
  begin();
  allocate_at(1, 3 * kBytes);
  for (int i = 0; i < 2; ++i) {
    mark();
    queue(0, 1);
    queue(0, 1);
    note({reads(0)}, true);
  }
  const NodeAccesses found = find();
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 2, 0, 2, 0, 3, 0, 3));
  EXPECT_EQ(found.units[2].bytes, 3 * kBytes);
  EXPECT_TRUE(sites_[1].writes);
}

TEST_F(NodeAccessesTest, GivenMemoryIsNobodysScratch) {
  allocate_at(0);
  allocate_at(1);
  begin();
  for (int i = 0; i < 2; ++i) {
    mark();
    queue(0, 1);
    note({reads(0)}, true);
  }
  (void)find();
  EXPECT_THAT(units_of_sites(), ElementsAre(0, 1, 0, 1));
}

TEST_F(NodeAccessesTest, MarksAreOfOneCapture) {
  const auto outside = CaptureMarks(*d).mark(stream(), 0);
  ASSERT_FALSE(outside.ok());
  EXPECT_EQ(outside.error().code(), StatusCode::kNotRecordable);
  CaptureMarks marks(*d);
  for (const bool is_first : {true, false}) {
    const CuStream one = stream();
    EXPECT_CU(d->cuStreamBeginCapture(one, CuCaptureMode::kThreadLocal));
    EXPECT_EQ(marks.mark(one, 0).ok(), is_first);
  }
}

}  // namespace
}  // namespace anabranch::cuda
