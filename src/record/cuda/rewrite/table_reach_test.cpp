// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/rewrite/table_reach.h"

#include <gmock/gmock.h>

#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using testing::image_of;
using ::testing::IsEmpty;

using Units = std::vector<std::vector<std::uint32_t>>;

// A table of one word at `at` of the unit that it is written to, which has bytes of more.
TableWrite table(std::uint32_t node, std::uint32_t unit, std::vector<std::uint32_t> names,
                 std::uint64_t at = 0, std::uint64_t bytes = 64) {
  return {node, unit, at, at + bytes, at, at + 8, std::move(names)};
}

// The units of nodes, sorted, once tables are looked into.
Units read_by(Units named, std::initializer_list<testing::Arrow> arrows,
              const std::vector<TableWrite>& tables) {
  std::vector<NodeImage> nodes(named.size());
  add_units_of_tables(image_of(std::move(nodes), arrows), tables, named);
  for (auto& units : named) {
    std::sort(units.begin(), units.end());
    units.erase(std::unique(units.begin(), units.end()), units.end());
  }
  return named;
}

TEST(TableReach, NodesBehindATableThatNameItsMemoryNameWhatItNames) {
  // Node 0 has the memory before the table does.
  EXPECT_THAT(read_by({{5}, {5}, {5}, {}}, {{0, 1}, {1, 2}, {2, 3}}, {table(1, 5, {7, 8})}),
              ElementsAre(ElementsAre(5), ElementsAre(5), ElementsAre(5, 7, 8), IsEmpty()));
}

TEST(TableReach, ANodeBesideATableMayReadIt) {
  EXPECT_THAT(read_by({{}, {5}, {5}}, {{0, 1}, {0, 2}}, {table(1, 5, {7})}),
              ElementsAre(IsEmpty(), ElementsAre(5), ElementsAre(5, 7)));
}

TEST(TableReach, ATableOverAnotherEndsIt) {
  EXPECT_THAT(
      read_by({{5}, {5}, {5}, {5}}, {{0, 1}, {1, 2}, {2, 3}}, {table(0, 5, {7}), table(2, 5, {8})}),
      ElementsAre(ElementsAre(5), ElementsAre(5, 7), ElementsAre(5), ElementsAre(5, 8)));
}

TEST(TableReach, ATableOverPartOfAnothersAddressesDoesNotEndIt) {
  TableWrite both = table(0, 5, {7, 9});
  both.last = 16;
  EXPECT_THAT(read_by({{5}, {5}, {5}}, {{0, 1}, {1, 2}}, {both, table(1, 5, {8}, 0, 8)}),
              ElementsAre(ElementsAre(5), ElementsAre(5), ElementsAre(5, 7, 8, 9)));
}

TEST(TableReach, ATableOnAnotherBranchDoesNotEndIt) {
  // 0 -> 1, and 0 -> 2 -> 3: nobody knows whether node 1 reads before or after node 2 writes.
  EXPECT_THAT(
      read_by({{5}, {5}, {5}, {5}}, {{0, 1}, {0, 2}, {2, 3}}, {table(0, 5, {7}), table(2, 5, {8})}),
      ElementsAre(ElementsAre(5), ElementsAre(5, 7, 8), ElementsAre(5), ElementsAre(5, 8)));
}

TEST(TableReach, ANodeThatMayHaveBeenOvertakenMayReadATableThatComesBehindTheOther) {
  EXPECT_THAT(read_by({{5}, {5}, {5}}, {{0, 1, true}, {1, 2}}, {table(2, 5, {7})}),
              ElementsAre(ElementsAre(5, 7), ElementsAre(5), ElementsAre(5)));
}

TEST(TableReach, ANodeThatBeginsBeforeATableHasEndedMayReadTheOneBefore) {
  EXPECT_THAT(read_by({{5}, {5}, {5}, {5}}, {{0, 1}, {1, 2, true}, {1, 3}, {2, 3}},
                      {table(0, 5, {7}), table(1, 5, {8})}),
              ElementsAre(ElementsAre(5), ElementsAre(5), ElementsAre(5, 7, 8), ElementsAre(5, 8)));
}

TEST(TableReach, ATableInATableIsFollowed) {
  EXPECT_THAT(read_by({{6}, {5}, {5}}, {{0, 1}, {1, 2}}, {table(0, 6, {9}), table(1, 5, {6})}),
              ElementsAre(ElementsAre(6), ElementsAre(5), ElementsAre(5, 6, 9)));
}

TEST(TableReach, ATableWhereNothingMovesIsReadByAllBehindIt) {
  EXPECT_THAT(read_by({{}, {}, {3}}, {{0, 1}, {1, 2}}, {table(1, TableWrite::kNowhere, {7})}),
              ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(3, 7)));
}

}  // namespace
}  // namespace anabranch::cuda
