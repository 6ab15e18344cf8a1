// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/match_captures.h"

#include <gmock/gmock.h>

#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::AllOf;
using testing::copy;
using testing::fill;
using ::testing::HasSubstr;
using testing::image_of;
using testing::kernel;

std::string difference(const GraphImage& a, const GraphImage& b) {
  const Status status = match_captures(a, b);
  EXPECT_EQ(status.code(), StatusCode::kCapturesDiffer);
  return status.message();
}

TEST(MatchCaptures, GraphsThatDifferInAddressesAloneMatch) {
  const auto a = image_of({kernel("add", {1, 2}), fill(3), copy(4, 5)}, {{0, 1}, {1, 2}});
  const auto b = image_of({kernel("add", {6, 7}), fill(8), copy(9, 10)}, {{0, 1}, {1, 2}});
  EXPECT_TRUE(match_captures(a, b).ok());
}

TEST(MatchCaptures, AMissingNodeIsNamedByBothCounts) {
  EXPECT_THAT(difference(image_of({fill(1), fill(2)}), image_of({fill(1)})),
              HasSubstr("2 nodes and 1"));
}

TEST(MatchCaptures, AnotherKindOfNodeIsNamed) {
  EXPECT_THAT(difference(image_of({kernel("add", {})}), image_of({fill(1)})),
              AllOf(HasSubstr("kernel 0 'add'"), HasSubstr("it is fill 0 there")));
}

TEST(MatchCaptures, AnotherFunctionIsNamed) {
  auto a = image_of({kernel("add", {})}), b = image_of({kernel("mul", {})});
  b.nodes[0].kernel.launch.func = reinterpret_cast<CuFunction>(std::uintptr_t{8});
  EXPECT_THAT(difference(a, b), HasSubstr("kernel 0 'add' differs between two captures: 'mul'"));
}

TEST(MatchCaptures, EveryPartOfALaunchIsCompared) {
  const auto a = image_of({kernel("add", {1})});
  auto grid = a, block = a, shared = a, layout = a, attributes = a;
  grid.nodes[0].kernel.launch.grid_y = 7;
  block.nodes[0].kernel.launch.block_x = 64;
  shared.nodes[0].kernel.launch.shared_bytes = 48;
  layout.nodes[0].kernel.fields[0].bytes = 4;
  attributes.nodes[0].kernel.attributes.push_back({CuLaunchAttributeId::kCooperative, {}, {}});
  EXPECT_THAT(difference(a, grid), HasSubstr("grid 1x0x0 and 1x7x0"));
  EXPECT_THAT(difference(a, block), HasSubstr("block 1x0x0 and 64x0x0"));
  EXPECT_THAT(difference(a, shared), HasSubstr("0 and 48 bytes of shared memory"));
  EXPECT_THAT(difference(a, layout), HasSubstr("layout of parameters"));
  EXPECT_THAT(difference(a, attributes), HasSubstr("launch attributes"));
}

TEST(MatchCaptures, ValuesOfFillsAndShapesOfCopiesAreCompared) {
  auto a = image_of({fill(1), copy(2, 3)}), value = a, width = a, memory = a;
  value.nodes[0].fill.value = 1;
  width.nodes[1].copy.width_bytes = 8;
  memory.nodes[1].copy.src_memory_type = CuMemoryType::kHost;
  EXPECT_THAT(difference(a, value), HasSubstr("fill 0"));
  EXPECT_THAT(difference(a, width), HasSubstr("copy 1"));
  EXPECT_THAT(difference(a, memory), HasSubstr("copy 1"));
}

TEST(MatchCaptures, EdgesAndTheirDataAreCompared) {
  const auto nodes = std::vector{fill(1), fill(2), fill(3)};
  const auto a = image_of(nodes, {{0, 1}, {1, 2}});
  EXPECT_THAT(difference(a, image_of(nodes, {{0, 1}, {0, 2}})), HasSubstr("its edges"));
  EXPECT_THAT(difference(a, image_of(nodes, {{0, 1}})), HasSubstr("its edges"));
  EXPECT_THAT(difference(a, image_of(nodes, {{0, 1}, {1, 2, true}})), HasSubstr("its edges"));
}

}  // namespace
}  // namespace anabranch::cuda
