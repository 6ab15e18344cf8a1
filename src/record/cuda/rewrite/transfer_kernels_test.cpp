// SPDX-License-Identifier: Apache-2.0
// Which copies and fills become kernels, and what these are given.
#include "record/cuda/rewrite/transfer_kernels.h"

#include <gmock/gmock.h>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;

class TransfersTest : public sim::SimTest {
 protected:
  explicit TransfersTest(const sim::SimOptions& options = {})
      : SimTest(options), code(*DeviceCode::load(*d, sim::add_device_code(*sim).c_str())) {}

  void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

  template <typename Params>
  static Params params_of(const KernelImage& kernel) {
    Params params;
    EXPECT_EQ(kernel.params.size(), sizeof params);
    std::memcpy(&params, kernel.params.data(), sizeof params);
    return params;
  }
  static std::uint64_t threads_of(const KernelImage& kernel) {
    const CuKernelNodeParams& p = kernel.launch;
    return std::uint64_t{p.grid_x} * p.grid_y * p.grid_z * p.block_x * p.block_y * p.block_z;
  }
  static std::uint64_t blocks_of(const KernelImage& kernel) {
    return std::uint64_t{kernel.launch.grid_x} * kernel.launch.grid_y * kernel.launch.grid_z;
  }

  const std::unique_ptr<DeviceCode> code;
};

CuMemcpy3D box_of(std::uint64_t width, std::uint64_t height, std::uint64_t depth) {
  CuMemcpy3D copy{};
  copy.src_memory_type = copy.dst_memory_type = CuMemoryType::kDevice;
  copy.src_device = 0x10000;
  copy.dst_device = 0x20000;
  copy.src_pitch = copy.dst_pitch = copy.width_bytes = width;
  copy.src_height = copy.dst_height = copy.height = height;
  copy.depth = depth;
  return copy;
}

TEST_F(TransfersTest, TheOriginOfABoxIsPartOfItsAddresses) {
  CuMemcpy3D copy = box_of(8, 3, 2);
  copy.src_pitch = 16;
  copy.src_height = 5;
  copy.src_x_bytes = 4, copy.src_y = 1, copy.src_z = 2;
  copy.dst_pitch = 32;
  copy.dst_height = 4;
  copy.dst_x_bytes = 1, copy.dst_y = 2, copy.dst_z = 3;
  const auto params = params_of<CopyParams>(copy_kernel(*code, copy));
  EXPECT_EQ(params.from, 0x10000u + 2 * 80 + 1 * 16 + 4);
  EXPECT_EQ(params.to, 0x20000u + 3 * 128 + 2 * 32 + 1);
  EXPECT_EQ(params.from_slice, 80u);
  EXPECT_EQ(params.to_slice, 128u);
  EXPECT_EQ(params.width_bytes, 8u);
  EXPECT_EQ(params.height, 3u);
  EXPECT_EQ(params.depth, 2u);
}

TEST_F(TransfersTest, RowsThatJoinAreCopiedAsOne) {
  const auto joined = params_of<CopyParams>(copy_kernel(*code, box_of(24, 3, 5)));
  EXPECT_EQ(joined.width_bytes, 24u * 3 * 5);
  EXPECT_EQ(joined.height * joined.depth, 1u);
  CuMemcpy3D apart = box_of(24, 3, 5);
  apart.src_height = 4;
  const auto layers = params_of<CopyParams>(copy_kernel(*code, apart));
  EXPECT_EQ(layers.width_bytes, 24u * 3);
  EXPECT_EQ(layers.height, 5u);
  EXPECT_EQ(layers.from_pitch, 96u);
  EXPECT_EQ(layers.to_pitch, 72u);
  const auto filled = params_of<FillParams>(fill_kernel(*code, {0x20000, 16, 9, 4, 4, 10}));
  EXPECT_EQ(filled.width_bytes, 160u);
  EXPECT_EQ(filled.height, 1u);
}

TEST_F(TransfersTest, AFillsWordHoldsItsValueAsOftenAsItFits) {
  const auto word_of = [&](unsigned value, unsigned element_bytes) {
    return params_of<FillParams>(fill_kernel(*code, {0x20000, 0, value, element_bytes, 4, 1})).word;
  };
  EXPECT_EQ(word_of(0xab, 1), 0xababababu);
  EXPECT_EQ(word_of(0xabcd, 2), 0xabcdabcdu);
  EXPECT_EQ(word_of(0x89abcdef, 4), 0x89abcdefu);
}

TEST_F(TransfersTest, TheGridHasAThreadAWordAndIsBounded) {
  for (const std::uint64_t bytes : {0, 1, 16, 100, 4096, 100'000, 1 << 20}) {
    const KernelImage kernel = copy_kernel(*code, box_of(bytes, 1, 1));
    EXPECT_GE(threads_of(kernel), bytes / 16);
    EXPECT_LE(threads_of(kernel), bytes / 16 + 2 * kTransferBlock);
  }
  for (const std::uint64_t bytes : {std::uint64_t{64} << 20, std::uint64_t{1} << 40}) {
    EXPECT_EQ(blocks_of(copy_kernel(*code, box_of(bytes, 1, 1))), 8u * 132);
  }
  CuMemcpy3D odd = box_of(4096, 1, 1);
  odd.src_device += 1;
  EXPECT_EQ(threads_of(copy_kernel(*code, odd)), 4096u);
}

TEST_F(TransfersTest, NarrowRowsShareABlock) {
  CuMemcpy3D column = box_of(4, 1000, 1);
  column.src_pitch = 64;
  const KernelImage kernel = copy_kernel(*code, column);
  EXPECT_EQ(kernel.launch.block_x, 1u);
  EXPECT_EQ(kernel.launch.block_y, kTransferBlock);
  EXPECT_EQ(kernel.launch.grid_y, 4u);
  CuMemcpy3D deep = box_of(4, 3, 5000);
  deep.src_pitch = deep.dst_pitch = 64;
  deep.src_height = 4;
  EXPECT_LE(blocks_of(copy_kernel(*code, deep)), 8u * 132);
}

// What becomes of one copy, what is known of it, and the sites that it had.
struct Replaced {
  NodeImage node;
  NodeFacts facts;
  std::vector<Site> sites;
};

class ReplacedTransfersTest : public TransfersTest {
 protected:
  ReplacedTransfersTest() : TransfersTest({.device_count = 2}) {}
  Replaced replace(const NodeImage& node, std::vector<Site> sites) {
    StepGraph step{testing::image_of({testing::kernel("before", {1}), node}),
                   std::vector<NodeFacts>(2), std::move(sites)};
    expect_ok(replace_transfers(*d, *code, step));
    return {step.image.nodes[1], step.facts[1], step.sites};
  }
  Replaced replace(const NodeImage& node) {
    return replace(node, {{1, Operand::kDestination, 0, 0, 0}});
  }
};

TEST_F(ReplacedTransfersTest, SitesOfOperandsMoveIntoTheParameters) {
  NodeImage copy = testing::copy(allocate(64), allocate(64));
  copy.copy.src_x_bytes = 4;
  copy.copy.dst_x_bytes = 8;
  const auto copied = replace(copy, {{0, Operand::kParam, 0, 3, 7},
                                     {1, Operand::kSource, 0, 0, 100},
                                     {1, Operand::kDestination, 0, 1, 200}});
  EXPECT_TRUE(copied.node.is_ours);
  EXPECT_TRUE(copied.facts.is_known);
  EXPECT_EQ(copied.node.type, CuNodeType::kKernel);
  EXPECT_EQ(copied.node.kernel.launch.func, code->copy());
  EXPECT_THAT(copied.sites,
              ElementsAre(Site{0, Operand::kParam, 0, 3, 7},
                          Site{1, Operand::kParam, offsetof(CopyParams, from), 0, 104, false, 16},
                          Site{1, Operand::kParam, offsetof(CopyParams, to), 1, 208, true, 16}));
  const auto filled = replace(testing::fill(allocate(64)));
  EXPECT_EQ(filled.node.kernel.launch.func, code->fill());
  EXPECT_THAT(filled.sites,
              ElementsAre(Site{1, Operand::kParam, offsetof(FillParams, to), 0, 0, true, 64}));
}

TEST_F(ReplacedTransfersTest, SitesSayBetweenWhichBytesABoxLies) {
  NodeImage copy = testing::copy(allocate(4096), allocate(4096));
  copy.copy.width_bytes = 8;
  copy.copy.height = 3;
  copy.copy.depth = 2;
  copy.copy.src_pitch = 16;
  copy.copy.src_height = 4;
  copy.copy.dst_pitch = 32;
  copy.copy.dst_height = 3;
  const auto copied =
      replace(copy, {{1, Operand::kSource, 0, 0, 0}, {1, Operand::kDestination, 0, 1, 0}});
  EXPECT_EQ(copied.sites[0].bytes, (4 + 2) * 16 + 8u);
  EXPECT_EQ(copied.sites[1].bytes, (3 + 2) * 32 + 8u);
  NodeImage rows = testing::fill(allocate(4096));
  rows.fill.pitch = 100;
  rows.fill.height = 5;
  EXPECT_EQ(replace(rows).sites[0].bytes, 4 * 100 + 64u);
}

TEST_F(ReplacedTransfersTest, WhatHasNoSiteStaysAsItIs) {
  const auto untouched = replace(testing::copy(allocate(64), allocate(64)), {});
  EXPECT_FALSE(untouched.node.is_ours);
  EXPECT_EQ(untouched.node.type, CuNodeType::kMemcpy);
}

TEST_F(ReplacedTransfersTest, MemoryOfUnsaidKindIsAskedFor) {
  NodeImage copy = testing::copy(allocate(64), allocate(64));
  copy.copy.src_memory_type = copy.copy.dst_memory_type = CuMemoryType::kUnified;
  EXPECT_TRUE(replace(copy).node.is_ours);
  void* pinned = nullptr;
  EXPECT_CU(d->cuMemHostAlloc(&pinned, 64, 0));
  copy.copy.src_device = reinterpret_cast<CuDevicePtr>(pinned);
  EXPECT_FALSE(replace(copy).node.is_ours);
}

TEST_F(ReplacedTransfersTest, MemoryThatIsGoneIsWhatTheNodeSays) {
  NodeImage copy = testing::copy(allocate(64), allocate(64));
  EXPECT_CU(d->cuMemFree(copy.copy.src_device));
  EXPECT_CU(d->cuMemFree(copy.copy.dst_device));
  EXPECT_TRUE(replace(copy).node.is_ours);
  copy.copy.src_memory_type = CuMemoryType::kUnified;
  EXPECT_FALSE(replace(copy).node.is_ours);
}

TEST_F(ReplacedTransfersTest, TheHostsMemoryArraysAndOtherDevicesAreLeftToTheDriver) {
  const NodeImage good = testing::copy(allocate(64), allocate(64));
  ASSERT_TRUE(replace(good).node.is_ours);
  NodeImage host = good, array = good, pinned = good, other = good;
  host.copy.src_memory_type = CuMemoryType::kHost;
  array.copy.dst_memory_type = CuMemoryType::kArray;
  void* made = nullptr;
  EXPECT_CU(d->cuMemHostAlloc(&made, 64, 0));
  pinned.copy.src_device = reinterpret_cast<CuDevicePtr>(made);
  CuContext there = nullptr;
  EXPECT_CU(d->cuDevicePrimaryCtxRetain(&there, 1));
  EXPECT_CU(d->cuCtxSetCurrent(there));
  other.copy.dst_device = allocate(64);
  EXPECT_CU(d->cuCtxSetCurrent(context));
  for (const NodeImage& node : {host, array, pinned, other}) {
    EXPECT_FALSE(replace(node).node.is_ours);
    EXPECT_EQ(replace(node).sites[0].operand, Operand::kDestination);
  }
  EXPECT_FALSE(replace(testing::fill(pinned.copy.src_device)).node.is_ours);
}

TEST_F(ReplacedTransfersTest, ABoxThatDoesNotFitItsPitchIsLeftToTheDriver) {
  NodeImage narrow = testing::copy(allocate(64), allocate(64));
  narrow.copy.height = 2;
  narrow.copy.src_pitch = 64;
  narrow.copy.dst_pitch = 8;
  EXPECT_FALSE(replace(narrow).node.is_ours);
  NodeImage flat = testing::copy(allocate(64), allocate(64));
  flat.copy.depth = 0;
  EXPECT_FALSE(replace(flat).node.is_ours);
}

}  // namespace
}  // namespace anabranch::cuda
