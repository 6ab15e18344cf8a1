// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/address_mentions.h"

#include <gmock/gmock.h>

#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using testing::copy;
using ::testing::ElementsAre;
using testing::fill;
using testing::from_host;
using testing::image_of;
using ::testing::IsEmpty;
using testing::kernel;
using testing::to_host;

// What is named of 0x100..0x120, 0x120..0x130 and 0x200..0x210, as "range node".
std::vector<std::string> named(const GraphImage& image) {
  const std::vector<CaptureRange> ranges = {{0x100, 0x20}, {0x120, 0x10}, {0x200, 0x10}};
  std::vector<std::string> all;
  for (const CaptureMention& mention : find_mentions(image, ranges)) {
    all.push_back(std::to_string(mention.range) + " " + mention.node);
  }
  return all;
}

TEST(AddressMentions, EachRangeHasTheFirstNodeThatNamesIt) {
  EXPECT_THAT(named(image_of({kernel("add", {7, 0x208}), kernel("mul", {0x200, 0x100})})),
              ElementsAre("2 kernel 0 'add'", "0 kernel 1 'mul'"));
}

TEST(AddressMentions, TheEndOfARangeIsNotInIt) {
  EXPECT_THAT(named(image_of({kernel("add", {0xff, 0x130, 0x1ff, 0x210})})), IsEmpty());
  EXPECT_THAT(named(image_of({kernel("add", {0x120, 0x11f})})),
              ElementsAre("1 kernel 0 'add'", "0 kernel 0 'add'"));
}

TEST(AddressMentions, CopiesAndFillsNameMemoryOnEitherSide) {
  EXPECT_THAT(named(image_of({copy(0x100, 0x120)})), ElementsAre("1 copy 0", "0 copy 0"));
  EXPECT_THAT(named(image_of({fill(0x200)})), ElementsAre("2 fill 0"));
  EXPECT_THAT(named(image_of({to_host(8, 0x100), from_host(0x120, 8)})),
              ElementsAre("0 copy 0", "1 copy 1"));
}

TEST(AddressMentions, TablesOfAddressesAreLookedThrough) {
  NodeImage table = from_host(8, 16, 24);
  table.source_bytes = kernel("", {1, 0x108}).kernel.params;
  table.source_bytes.resize(20);  // half a word at the end
  EXPECT_THAT(named(image_of({table})), ElementsAre("0 copy 0"));
}

TEST(AddressMentions, StructsByValueAreLookedThrough) {
  NodeImage node = kernel("add", {1, 2, 0x120});
  node.kernel.fields = {{0, 24}};
  EXPECT_THAT(named(image_of({node})), ElementsAre("1 kernel 0 'add'"));
}

TEST(AddressMentions, ChildGraphsAreLookedInto) {
  NodeImage node;
  node.type = CuNodeType::kGraph;
  node.child = std::make_shared<const GraphImage>(image_of({fill(1), kernel("add", {0x200})}));
  EXPECT_THAT(named(image_of({node, fill(0x100)})), ElementsAre("2 kernel 1 'add'", "0 fill 1"));
}

TEST(AddressMentions, OfWhatTwoCapturesNameCountsWhatBothHaveAtOnePlace) {
  const std::vector<CaptureRange> ranges = {{0x100, 0x20}, {0x120, 0x10}, {0x200, 0x10}};
  const auto agreed = [&ranges](const GraphImage& one, const GraphImage& other) {
    std::vector<std::uint32_t> all;
    for (const CaptureMention& each : find_mentions(one, ranges, &other)) all.push_back(each.range);
    return all;
  };
  const auto first = image_of({kernel("add", {0x100, 0x208}), copy(0x120, 8)});
  EXPECT_THAT(agreed(first, image_of({kernel("add", {0x200, 0x208}), copy(8, 0x100)})),
              ElementsAre(2));
  EXPECT_THAT(agreed(first, image_of({kernel("add", {0x208, 0x100}), copy(0x120, 16)})),
              ElementsAre(1));
  EXPECT_THAT(agreed(first, image_of({kernel("add", {1}), copy(16, 16)})), ElementsAre(0, 2));
  EXPECT_THAT(agreed(first, image_of({kernel("add", {1, 2})})), ElementsAre(0, 2, 1));
}

}  // namespace
}  // namespace anabranch::cuda
