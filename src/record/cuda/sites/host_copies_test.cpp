// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/host_copies.h"

#include <gtest/gtest.h>

#include <vector>

#include "device/sim/sim_testing.h"
#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using testing::from_host;
using testing::image_of;
using testing::to_host;

constexpr std::uint64_t kHost = 0x7000'0000'0000, kDevice = 4096;

// A node and the sites that were found in it.
struct Case {
  StepGraph step;
  std::vector<std::uint32_t> tables;

  Case(NodeImage node, std::vector<Operand> moved)
      : step{image_of({std::move(node)}), std::vector<NodeFacts>(1), {}} {
    for (const Operand operand : moved) step.sites.push_back({0, operand, 0, 3, 64});
  }
};

class HostCopies : public sim::SimTest {
 protected:
  const NodeFacts& find(Case& copy) {
    EXPECT_TRUE(find_host_copies(*d, copy.tables, copy.step).ok());
    return copy.step.facts[0];
  }
  bool is_told(Case copy) {
    const NodeFacts& node = find(copy);
    EXPECT_EQ(node.is_known, !node.host_bytes.empty());
    return node.is_known;
  }
};

TEST_F(HostCopies, ACopyToTheDeviceReadsTheHostAndWritesItsUnit) {
  Case copy(from_host(kDevice, kHost, 100), {Operand::kDestination});
  const NodeFacts& node = find(copy);
  EXPECT_TRUE(node.is_known);
  EXPECT_EQ(node.host_bytes.begin, kHost);
  EXPECT_EQ(node.host_bytes.end, kHost + 100);
  EXPECT_FALSE(node.host_bytes.is_written);
  EXPECT_EQ(copy.step.sites[0], (Site{0, Operand::kDestination, 0, 3, 64, true, 100}));
}

TEST_F(HostCopies, ACopyToTheHostWritesThereAndReadsItsUnit) {
  Case copy(to_host(kHost, kDevice, 100), {Operand::kSource});
  copy.step.image.nodes[0].copy.dst_x_bytes = 8;
  const NodeFacts& node = find(copy);
  EXPECT_TRUE(node.is_known);
  EXPECT_EQ(node.host_bytes.begin, kHost + 8);
  EXPECT_EQ(node.host_bytes.end, kHost + 108);
  EXPECT_TRUE(node.host_bytes.is_written);
  EXPECT_EQ(copy.step.sites[0], (Site{0, Operand::kSource, 0, 3, 64, false, 100}));
}

TEST_F(HostCopies, WhereTheAddressesSayTheKindOfMemoryTheDriverIsAsked) {
  void* pinned = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&pinned, 64, 0));
  const auto host = reinterpret_cast<std::uint64_t>(pinned);
  const CuDevicePtr device = allocate(64);
  const auto copy = [](std::uint64_t to, std::uint64_t from) {
    NodeImage node = testing::copy(to, from);
    node.copy.src_memory_type = node.copy.dst_memory_type = CuMemoryType::kUnified;
    return node;
  };
  EXPECT_TRUE(is_told({copy(device, host), {Operand::kDestination}}));
  EXPECT_TRUE(is_told({copy(host, device), {Operand::kSource}}));
  EXPECT_FALSE(is_told({copy(device, device), {Operand::kDestination}}));
  EXPECT_FALSE(is_told({copy(host, host), {Operand::kDestination}}));
  for (const std::uint64_t n : {1, 2}) {
    sim->fail_call(n, CuResult::kOutOfMemory);
    Case failing(copy(device, host), {Operand::kDestination});
    EXPECT_FALSE(find_host_copies(*d, failing.tables, failing.step).ok());
  }
  EXPECT_CU(d->cuMemFreeHost(pinned));
}

TEST_F(HostCopies, WhatIsNotCertainStaysUnknown) {
  const NodeImage whole = from_host(kDevice, kHost);
  EXPECT_TRUE(is_told({whole, {Operand::kDestination}}));
  EXPECT_FALSE(is_told({whole, {}}));  // the device's side never moves
  // The host's side is memory of a unit as well.
  EXPECT_FALSE(is_told({whole, {Operand::kSource, Operand::kDestination}}));
  EXPECT_FALSE(is_told({whole, {Operand::kSource}}));
  NodeImage rows = whole;
  rows.copy.height = 2;
  rows.copy.src_pitch = rows.copy.dst_pitch = 64;
  EXPECT_FALSE(is_told({rows, {Operand::kDestination}}));
  NodeImage inside = whole;
  inside.copy.dst_x_bytes = 8;
  EXPECT_FALSE(is_told({inside, {Operand::kDestination}}));
  EXPECT_FALSE(is_told({testing::copy(kDevice, kDevice), {Operand::kDestination}}));
  EXPECT_FALSE(is_told({testing::fill(kDevice), {Operand::kDestination}}));
}

TEST_F(HostCopies, TwoThatShareAByteClashIfOneWritesIt) {
  const HostBytes read{100, 200, false}, written{199, 300, true}, behind{200, 300, true};
  EXPECT_TRUE(may_clash(read, written));
  EXPECT_TRUE(may_clash(written, read));
  EXPECT_TRUE(may_clash(written, behind));
  EXPECT_FALSE(may_clash(read, behind));
  EXPECT_FALSE(may_clash(read, read));
}

TEST_F(HostCopies, ATableIsTheRecordingsAndNotTheHosts) {
  Case table(from_host(kDevice, kHost), {Operand::kDestination});
  table.tables = {0};
  EXPECT_FALSE(is_told(table));
}

}  // namespace
}  // namespace anabranch::cuda
