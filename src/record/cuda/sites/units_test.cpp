// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/units.h"

#include <gmock/gmock.h>

namespace anabranch::cuda {
namespace {

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
  EXPECT_EQ(table.units()[1].second_address, 0x8000u);
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
  EXPECT_THAT(difference({{0x1000, 8}, {0x1000, 8}}, {{0x9000, 8}, {0xa000, 8}}),
              HasSubstr("allocation 1 takes memory used before in one only"));
  EXPECT_THAT(difference({{0x1000, 8}, {0x2000, 8}}, {{0x9000, 8}, {0x9000, 8}}),
              HasSubstr("allocation 1 takes memory used before in one only"));
}

TEST(Units, UnitsWithoutAGapAreRefusedSinceAnEndPointerCouldBeEither) {
  EXPECT_THAT(difference({{0x1000, 64}, {0x1040, 64}}, {{0x9000, 64}, {0xa000, 64}}),
              HasSubstr("touch"));
  EXPECT_THAT(difference({{0x1000, 64}, {0x2000, 64}}, {{0x9000, 64}, {0x9020, 64}}),
              HasSubstr("touch"));
}

}  // namespace
}  // namespace anabranch::cuda
