// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/arena/placement.h"

#include <gmock/gmock.h>

#include "record/cuda/arena/arena_parts.h"
#include "record/cuda/arena/check_places.h"
#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using testing::image_of;
using ::testing::IsEmpty;
using enum UnitKind;

constexpr std::uint64_t kBytes = 4096;

// Units of one size, of which each allocation names one.
NodeAccesses accesses_of(std::vector<std::uint32_t> unit_of, std::uint64_t alignment = kBytes) {
  NodeAccesses accesses;
  for (const std::uint32_t unit : unit_of) {
    if (unit == accesses.units.size()) accesses.units.push_back({0, alignment, kBytes});
  }
  accesses.unit_of = std::move(unit_of);
  return accesses;
}

std::vector<UnitKind> kinds_of(std::vector<std::uint32_t> unit_of, std::vector<UnitKind> kinds,
                               std::uint64_t alignment = kBytes) {
  return kinds_of_units(accesses_of(std::move(unit_of), alignment), kinds);
}

TEST(Placement, AUnitIsGivenIfAnyOfItsAllocationsWasAndElseFreshIfOneWas) {
  EXPECT_THAT(kinds_of({0, 1, 2}, {kTemporary, kGiven, kFresh}),
              ElementsAre(kTemporary, kGiven, kFresh));
  EXPECT_THAT(kinds_of({0, 0, 1, 1}, {kTemporary, kFresh, kFresh, kGiven}),
              ElementsAre(kFresh, kGiven));
}

TEST(Placement, FreshMemoryThatPromisesLessAlignmentThanTheArenaLendsNothing) {
  EXPECT_THAT(kinds_of({0}, {kFresh}, 512), ElementsAre(kFresh));
  EXPECT_THAT(kinds_of({0}, {kFresh}, 256), ElementsAre(kGiven));
}

TEST(Placement, SlotsAreTheGivenUnitsThatANodeNames) {
  const NodeAccesses accesses = accesses_of({0, 1, 2, 2}, 256);
  const std::vector<UnitKind> kinds{kGiven, kGiven, kFresh};
  const std::vector<Site> sites{{0, Operand::kParam, 0, 2}, {0, Operand::kParam, 8, 0}};
  const auto slots = find_slots(accesses.units, accesses.unit_of, kinds, sites);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[0].unit, 0u);
  EXPECT_EQ(slots[1].unit, 2u);
  EXPECT_EQ(slots[1].allocation, 3u);  // the last of those that are the unit
  EXPECT_EQ(slots[1].bytes, kBytes);
  EXPECT_EQ(slots[1].alignment, 256u);
}

// Unit 0 is given, units 1 and 2 are temporaries, and unit 3 is a result that node 2 writes last.
class PlacedUnits : public ::testing::Test {
 protected:
  const std::vector<Unit> units{4, Unit{kBytes, kBytes, kBytes}};
  const std::vector<Site> sites{{0, Operand::kParam, 0, 0, 8}, {0, Operand::kParam, 8, 1, 16},
                                {1, Operand::kParam, 0, 1, 0}, {1, Operand::kParam, 8, 2, 0},
                                {2, Operand::kParam, 0, 2, 0}, {2, Operand::kParam, 8, 3, 0}};
  const GraphImage image = image_of(std::vector<NodeImage>(3, testing::fill(0)), {{0, 1}, {1, 2}});
  const std::vector<CudaSlot> slots{{0, 0, kBytes, 256}, {3, 3, kBytes, 512}};

  Placement place(UnitKind result) const {
    const std::vector<UnitKind> kinds{kGiven, kTemporary, kTemporary, result};
    auto placed = place_units(image, sites, units, kinds, slots, {}, kLeastPartBytes);
    EXPECT_TRUE(placed.ok());
    return *std::move(placed);
  }
  static std::vector<std::uint32_t> sources_of(const Placement& placement) {
    std::vector<std::uint32_t> sources;
    for (const PlacedSite& site : placement.sites) sources.push_back(site.source);
    return sources;
  }
};

TEST_F(PlacedUnits, SlotsComeFirstAndThenThePartsOfTheArena) {
  const Placement placed = place(kGiven);
  EXPECT_THAT(sources_of(placed), ElementsAre(0, 2, 2, 2, 2, 1));
  EXPECT_THAT(placed.with_bytes, ElementsAre(0, 1, 2));
  ASSERT_EQ(placed.rules.size(), 3u);
  EXPECT_EQ(placed.rules[0].mask(), 255u);
  EXPECT_EQ(placed.rules[2].bytes(), 2 * kBytes);
  EXPECT_EQ(placed.rules[2].mask(), kPartAlignment - 1);
  // Where a site meant a byte within its unit it means that byte of the unit's place.
  EXPECT_EQ(placed.sites[0].shift, 8u);
  EXPECT_EQ(placed.sites[1].shift, placed.arena.offsets[1] + 16);
}

TEST_F(PlacedUnits, ATemporaryThatIsOverBeforeAFreshResultLiesInItsSlot) {
  const Placement placed = place(kFresh);
  EXPECT_THAT(sources_of(placed), ElementsAre(0, 1, 1, 2, 2, 1));
  EXPECT_EQ(placed.rules[2].bytes(), kBytes);
}

// A matrix padded for a product, and the product, before the result that is cut out of it.
TEST(Placement, ALargeResultGrowsByA64thForATemporaryAndBySoMuchOnly) {
  constexpr std::uint64_t kLarge = std::uint64_t{1} << 20;
  const std::vector<Site> sites{{0, Operand::kParam, 0, 0, 0}, {1, Operand::kParam, 0, 1, 0}};
  const GraphImage image = image_of(std::vector<NodeImage>(2, testing::fill(0)), {{0, 1}});
  const std::vector<UnitKind> kinds{kTemporary, kFresh};
  const auto bytes_of_sources = [&](std::uint64_t temporary, std::uint64_t result) {
    const std::vector<Unit> units{{kLarge, kLarge, temporary}, {4 * kLarge, 4 * kLarge, result}};
    const std::vector<CudaSlot> slots{{1, 1, result, 512}};
    const auto placed = place_units(image, sites, units, kinds, slots, {}, kLeastPartBytes);
    EXPECT_TRUE(placed.ok());
    const PlacedStep step{sites, placed->sites, units, kinds, placed->slots, placed->rules};
    EXPECT_TRUE(check_places(image, step).ok());
    std::vector<std::uint64_t> bytes;
    for (const SourceRule& rule : placed->rules) bytes.push_back(rule.bytes());
    EXPECT_EQ(placed->slots[0].bytes, bytes[0]);
    return bytes;
  };
  const std::uint64_t most = kLarge + kLarge / 64;
  EXPECT_THAT(bytes_of_sources(kLarge, kLarge), ElementsAre(kLarge));
  EXPECT_THAT(bytes_of_sources(most, kLarge), ElementsAre(most));
  EXPECT_THAT(bytes_of_sources(most + 1, kLarge), ElementsAre(kLarge, most + 1));
  EXPECT_THAT(bytes_of_sources(kBytes, kLarge),
              ElementsAre(kLarge));  // who needs no more gets no more
  EXPECT_THAT(bytes_of_sources(kBytes + 1, kBytes), ElementsAre(kBytes, kBytes + 1));
}

}  // namespace
}  // namespace anabranch::cuda
