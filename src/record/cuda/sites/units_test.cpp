// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/units.h"

#include <gmock/gmock.h>

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Allocations = std::vector<CaptureAllocation>;

UnitTable table_of(const Allocations& first, const Allocations& second) {
  auto made = UnitTable::make(first, second);
  EXPECT_TRUE(made.ok());
  return *std::move(made);
}

std::string difference(const Allocations& first, const Allocations& second) {
  const auto made = UnitTable::make(first, second);
  EXPECT_FALSE(made.ok());
  return made.ok() ? "" : made.error().message();
}

TEST(Units, AnAddressIsOneUnitAsLargeAsItsLargestTenant) {
  const UnitTable table = table_of({{0x1000, 64}, {0x2000, 8}, {0x1000, 256}},
                                   {{0x9000, 64}, {0x8000, 8}, {0x9000, 256}});
  ASSERT_EQ(table.units().size(), 2u);
  EXPECT_EQ(table.units()[0].bytes, 256u);
  EXPECT_EQ(table.find_in_second(0x8000).unit, 1u);
  EXPECT_THAT(table.unit_of(), ElementsAre(0, 1, 0));
}

TEST(Units, AWordIsFoundWithItsOffsetInEitherCapture) {
  const UnitTable table = table_of({{0x1000, 64}, {0x2000, 8}}, {{0x9000, 64}, {0x8000, 8}});
  EXPECT_EQ(table.find_in_first(0x1010).unit, 0u);
  EXPECT_EQ(table.find_in_first(0x1010).offset, 0x10u);
  EXPECT_EQ(table.find_in_second(0x8004).unit, 1u);
  EXPECT_EQ(table.find_in_second(0x8004).offset, 4u);
}

TEST(Units, AnEndPointerBelongsToTheUnitItEnds) {
  const UnitTable table = table_of({{0x1000, 64}}, {{0x9000, 64}});
  EXPECT_EQ(table.find_in_first(0x1040).unit, 0u);
  EXPECT_EQ(table.find_in_first(0x1041).unit, UnitTable::kNone);
}

TEST(Units, WordsOutsideAllUnitsAreInNone) {
  const UnitTable table = table_of({{0x1000, 64}}, {{0x9000, 64}});
  EXPECT_EQ(table.find_in_first(0).unit, UnitTable::kNone);
  EXPECT_EQ(table.find_in_first(0xfff).unit, UnitTable::kNone);
  EXPECT_EQ(table_of({}, {}).find_in_first(1).unit, UnitTable::kNone);
}

TEST(Units, CapturesThatAllocateDifferentlyAreRefused) {
  EXPECT_THAT(difference({{1, 8}}, {}), HasSubstr("1 times and 0"));
  EXPECT_THAT(difference({{1, 8}}, {{9, 16}}), HasSubstr("allocation 0 has 8 bytes and 16"));
}

// An allocator that splits blocks, beside one that does not.
TEST(Units, WhereOneUsesMemoryAgainInAnotherWayTheOneWithGapsSaysWhatIsOneUnit) {
  const Allocations apart{{0x1000, 64}, {0x2000, 64}, {0x1000, 256}, {0x3000, 16}},
      split{{0x9000, 64}, {0x9040, 64}, {0x9080, 256}, {0x9000, 16}};
  const UnitTable second = table_of(apart, split), first = table_of(split, apart);
  EXPECT_TRUE(second.tells_by_address(false) && first.tells_by_address(true));
  EXPECT_FALSE(second.tells_by_address(true) || first.tells_by_address(false));
  for (const UnitTable* table : {&second, &first}) {
    EXPECT_THAT(table->unit_of(), ElementsAre(0, 1, 0, 2));
    EXPECT_EQ(table->units()[0].bytes, 256u);
  }
  for (const auto& [at, other, unit, offset] :
       {std::tuple(0x1010u, 0x9010u, 0u, 16u), std::tuple(0x1010u, 0x9090u, 0u, 16u),
        std::tuple(0x3000u, 0x9000u, 2u, 0u), std::tuple(0x2040u, 0x9080u, 1u, 64u),
        std::tuple(0x3000u, 0x9040u, UnitTable::kNone, 0u)}) {
    for (const UnitTable::Hit hit : {second.find(at, other), first.find(other, at)}) {
      EXPECT_EQ(hit.unit, unit);
      EXPECT_EQ(hit.offset, offset);
    }
  }
}

TEST(Units, AUnitIsAlignedAsAllItsAddressesAre) {
  const UnitTable table =
      table_of({{0x1000, 8}, {0x2000, 8}, {0x1000, 8}}, {{0x9200, 8}, {0xa000, 8}, {0x9400, 8}});
  EXPECT_EQ(table.units()[0].alignment, 0x200u);
  EXPECT_EQ(table.units()[1].alignment, 0x2000u);
}

TEST(Units, UnitsWithoutAGapInEitherAreRefusedSinceAnEndPointerCouldBeEither) {
  EXPECT_THAT(difference({{0x1000, 64}, {0x1040, 64}}, {{0x9000, 64}, {0x9040, 64}}),
              HasSubstr("touch"));
}

TEST(Units, WhereUnitsTouchInOneTheOtherTellsWhoseAnEndPointerIs) {
  const Allocations apart{{0x1000, 64}, {0x2000, 64}}, touching{{0x9000, 64}, {0x9040, 64}};
  const UnitTable second = table_of(apart, touching), first = table_of(touching, apart);
  for (const auto& [at, unit, offset] :
       {std::tuple(0x1000u, 0u, 0u), std::tuple(0x1040u, 0u, 64u), std::tuple(0x2000u, 1u, 0u)}) {
    const std::uint64_t other = (unit == 0 ? 0x9000 : 0x9040) + offset;
    for (const UnitTable::Hit hit : {second.find(at, other), first.find(other, at)}) {
      EXPECT_EQ(hit.unit, unit);
      EXPECT_EQ(hit.offset, offset);
    }
  }
  EXPECT_EQ(second.find(0x1000, 0x9040).unit, UnitTable::kNone);
  EXPECT_EQ(second.find(0x1001, 0x9000).unit, UnitTable::kNone);
  EXPECT_EQ(second.find(0x3000, 0x9000).unit, UnitTable::kNone);
}

}  // namespace
}  // namespace anabranch::cuda
