// SPDX-License-Identifier: Apache-2.0
// Reading captured graphs, on the simulated driver.
#include "record/cuda/image/graph_image.h"

#include <gmock/gmock.h>

#include <numeric>

#include "device/sim/sim_testing.h"
#include "record/cuda/image/copy_box.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GraphImageTest : public sim::SimTest {
 protected:
  void begin(CuStream on) { ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kThreadLocal)); }
  GraphImage read(CuGraph graph) {
    auto image = read_graph(*d, graph);
    EXPECT_TRUE(image.ok()) << (image.ok() ? "" : image.error().message());
    return image.ok() ? *std::move(image) : GraphImage{};
  }
};

std::uint64_t word(const KernelImage& kernel, std::size_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, kernel.params.data() + offset, sizeof value);
  return value;
}

TEST_F(GraphImageTest, AKernelHasItsNameShapeAndParameters) {
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(add_one(on, 0x1234, 0x5678, 9));
  const GraphImage image = read(end_capture(on));
  ASSERT_EQ(image.nodes.size(), 1u);
  const KernelImage& kernel = image.nodes[0].kernel;
  EXPECT_EQ(kernel.name, "add_one");
  EXPECT_EQ(kernel.launch.block_x, 32u);
  EXPECT_THAT(kernel.fields, ElementsAre(ParamField{0, 8}, ParamField{8, 8}, ParamField{16, 4}));
  EXPECT_EQ(word(kernel, 0), 0x1234u);
  EXPECT_EQ(word(kernel, 8), 0x5678u);
  EXPECT_FALSE(kernel.packed);
  EXPECT_EQ(describe_node(image, 0), "kernel 0 'add_one'");
}

TEST_F(GraphImageTest, PackedParametersAreReadLikeTheOthers) {
  const CuFunction function = load(sim::add_one_kernel());
  struct {
    std::uint64_t in = 0x1234, out = 0x5678;
    std::uint32_t count = 9, pad = 0;
  } block;
  std::size_t size = 20;
  void* extra[] = {params_buffer_key(), &block, params_size_key(), &size, kParamsEnd};
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(d->cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, nullptr, extra));
  const GraphImage image = read(end_capture(on));
  EXPECT_TRUE(image.nodes[0].kernel.packed);
  EXPECT_EQ(image.nodes[0].kernel.params.size(), 20u);
  EXPECT_EQ(word(image.nodes[0].kernel, 8), 0x5678u);
}

TEST_F(GraphImageTest, PackedParametersMayEndBeforeThoseOfTheFunctionDo) {
  const CuFunction function =
      load({.name = "long", .params = sim::layout_of({8, 8, 8}), .run = [](const auto&) {}});
  const std::uint64_t block[] = {0x1234, 0x5678};
  std::size_t size = 12;
  void* extra[] = {params_buffer_key(), const_cast<std::uint64_t*>(block), params_size_key(), &size,
                   kParamsEnd};
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(d->cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, nullptr, extra));
  const GraphImage image = read(end_capture(on));
  EXPECT_EQ(image.nodes[0].kernel.params.size(), 12u);
  EXPECT_EQ(image.nodes[0].kernel.fields, (std::vector<ParamField>{{0, 8}, {8, 4}}));
}

TEST_F(GraphImageTest, CopiesFillsAndEdgesAreRead) {
  const CuDevicePtr a = allocate(64), b = allocate(64);
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(d->cuMemsetD32Async(a, 7, 16, on));
  ASSERT_CU(d->cuMemcpyDtoDAsync(b, a, 64, on));
  const GraphImage image = read(end_capture(on));
  ASSERT_EQ(image.nodes.size(), 2u);
  EXPECT_EQ(image.nodes[0].fill.dst, a);
  EXPECT_EQ(image.nodes[0].fill.value, 7u);
  EXPECT_EQ(image.nodes[1].copy.src_device, a);
  EXPECT_EQ(image.nodes[1].copy.dst_device, b);
  ASSERT_EQ(image.edges.size(), 1u);
  EXPECT_EQ(image.edges[0].from, 0u);
  EXPECT_EQ(image.edges[0].to, 1u);
}

TEST_F(GraphImageTest, ForkedWorkStandsInAnOrderThatCanRun) {
  const CuStream on = stream(), side = stream();
  const CuEvent fork = event(), join = event();
  begin(on);
  ASSERT_CU(launch(noting("first"), on));
  ASSERT_CU(d->cuEventRecord(fork, on));
  ASSERT_CU(d->cuStreamWaitEvent(side, fork, 0));
  ASSERT_CU(launch(noting("left"), on));
  ASSERT_CU(launch(noting("right"), side));
  ASSERT_CU(d->cuEventRecord(join, side));
  ASSERT_CU(d->cuStreamWaitEvent(on, join, 0));
  ASSERT_CU(launch(noting("last"), on));
  const GraphImage image = read(end_capture(on));
  std::vector<std::string> names;
  for (const NodeImage& node : image.nodes) names.push_back(node.kernel.name);
  EXPECT_THAT(names, ElementsAre("first", "left", "right", "last"));
  EXPECT_EQ(image.edges.size(), 4u);
  for (const EdgeImage& edge : image.edges) EXPECT_LT(edge.from, edge.to);
}

TEST_F(GraphImageTest, WhatACopyReadsFromPinnedMemoryIsReadAtOnce) {
  void* made = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&made, 64, 0));
  auto* const pinned = static_cast<std::uint8_t*>(made);
  std::iota(pinned, pinned + 64, std::uint8_t{1});
  const CuDevicePtr to = allocate(64);
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(d->cuMemcpyHtoDAsync(to, pinned + 2, 3, on));
  ASSERT_CU(d->cuMemcpyAsync(to, reinterpret_cast<CuDevicePtr>(pinned + 62), 2, on));
  const GraphImage image = read(end_capture(on));
  std::fill_n(pinned, 64, std::uint8_t{0});
  EXPECT_THAT(image.nodes[0].source_bytes, ElementsAre(std::byte{3}, std::byte{4}, std::byte{5}));
  EXPECT_THAT(image.nodes[1].source_bytes, ElementsAre(std::byte{63}, std::byte{64}));
}

TEST_F(GraphImageTest, WhatACopyReadsFromPinnedMemoryThatStaysIsNotKept) {
  void* made = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&made, 64, 0));
  const auto pinned = reinterpret_cast<CuDevicePtr>(made);
  const CuDevicePtr to = allocate(64);
  const CuStream on = stream();
  begin(on);
  for (const int at : {7, 8, 31, 32, 40, 47, 48}) {
    ASSERT_CU(d->cuMemcpyAsync(to, pinned + at, 1, on));
  }
  const CaptureRange staying[] = {{pinned + 8, 24}, {pinned + 40, 8}};
  const auto image = read_graph(*d, end_capture(on), staying);
  ASSERT_TRUE(image.ok());
  std::vector<bool> is_kept;
  for (const NodeImage& node : image->nodes) is_kept.push_back(!node.source_bytes.empty());
  EXPECT_THAT(is_kept, ElementsAre(true, false, false, true, false, false, true));
}

TEST_F(GraphImageTest, OfOtherMemoryThanPinnedNothingIsRead) {
  std::vector<std::uint8_t> pageable(64, 1);
  void* gone = nullptr;
  void* large = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&gone, 64, 0));
  ASSERT_CU(d->cuMemHostAlloc(&large, kMostSourceBytes + 1, 0));
  const CuDevicePtr to = allocate(kMostSourceBytes + 1);
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(d->cuMemcpyHtoDAsync(to, pageable.data(), 64, on));
  ASSERT_CU(d->cuMemcpyHtoDAsync(to, gone, 64, on));
  ASSERT_CU(d->cuMemcpyHtoDAsync(to, large, kMostSourceBytes + 1, on));
  ASSERT_CU(d->cuMemcpyDtoDAsync(to, to + 64, 64, on));
  const CuGraph graph = end_capture(on);
  ASSERT_CU(d->cuMemFreeHost(gone));
  const GraphImage image = read(graph);
  ASSERT_EQ(image.nodes.size(), 4u);
  for (const NodeImage& node : image.nodes) EXPECT_TRUE(node.source_bytes.empty());
}

TEST_F(GraphImageTest, NodesWhoseAddressesCannotChangeAreRefusedByName) {
  for (const CuNodeType type : {CuNodeType::kMemAlloc, CuNodeType::kMemFree,
                                CuNodeType::kConditional, CuNodeType::kBatchMemOp}) {
    CuGraph graph = nullptr;
    ASSERT_CU(d->cuGraphCreate(&graph, 0));
    sim->add_opaque_node(graph, type);
    const auto image = read_graph(*d, graph);
    ASSERT_FALSE(image.ok());
    EXPECT_EQ(image.error().code(), StatusCode::kNotRecordable);
    EXPECT_THAT(image.error().message(), HasSubstr("addresses that cannot be changed"));
  }
}

TEST_F(GraphImageTest, ADriverWithoutParameterLayoutsIsRefusedWithItsReason) {
  start({.driver_version = 12030});
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(launch(noting("k"), on));
  const auto image = read_graph(*d, end_capture(on));
  ASSERT_FALSE(image.ok());
  EXPECT_THAT(image.error().message(), HasSubstr(d->why_off(Feature::kParamInfo)));
}

TEST_F(GraphImageTest, AnyFailingCallIsAStatusThatNamesIt) {
  const CuDevicePtr memory = allocate(64);
  void* pinned = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&pinned, 64, 0));
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(d->cuMemsetD32Async(memory, 7, 16, on));
  ASSERT_CU(d->cuMemcpyHtoDAsync(memory, pinned, 64, on));
  ASSERT_CU(add_one(on, memory, memory));
  const CuGraph graph = end_capture(on);
  for (std::uint64_t n = 1;; ++n) {
    sim->fail_call(n, CuResult::kOutOfMemory);
    const auto image = read_graph(*d, graph);
    const std::string failed = sim->failed_call();
    if (failed.empty()) break;
    if (failed == "cuFuncGetName") continue;  // a nicety
    ASSERT_FALSE(image.ok()) << failed;
    EXPECT_THAT(image.error().message(), HasSubstr(failed));
  }
}

}  // namespace
}  // namespace anabranch::cuda
