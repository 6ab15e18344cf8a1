// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/stretches.h"

#include <gmock/gmock.h>

#include <algorithm>

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A backward of layers. Each reads what was saved for it and what the layer before has passed on,
// passes on as much itself, and leaves a gradient.
class Backward {
 public:
  explicit Backward(std::uint32_t layers, std::uint64_t saved, std::uint64_t gradient) {
    std::uint32_t last = add(UnitKind::kGiven, kMiB);  // that comes from the loss
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const std::uint32_t read = add(UnitKind::kGiven, saved);
      const std::uint32_t made = add(UnitKind::kTemporary, kMiB);
      let_go.push_back(read);
      name(layer, {read, last, made, add(UnitKind::kFresh, gradient)});
      last = made;
    }
    step.step.image.nodes.resize(layers);
    step.step.facts.resize(layers);
  }

  Discovery step;
  std::vector<std::uint32_t> let_go;

  // Memory that is no allocation.
  void add_scratch(std::initializer_list<std::uint32_t> nodes) {
    const auto unit = static_cast<std::uint32_t>(step.units.size());
    const std::uint64_t address = (std::uint64_t{unit} + 1) << 32;
    step.units.push_back({address, address, kMiB});
    step.kinds.push_back(UnitKind::kTemporary);
    for (const std::uint32_t node : nodes) {
      step.step.sites.push_back({node, Operand::kParam, 128, unit});
    }
  }

  // A temporary of one layer alone.
  void add_workspace(std::uint32_t layer, std::uint64_t bytes) {
    name(layer, {add(UnitKind::kTemporary, bytes)});
  }

  // What a launch in such stretches takes at its peak of what it is let go of and what it makes.
  std::uint64_t peak(const std::vector<std::uint32_t>& ends) const {
    std::uint64_t held = 0, most = 0;
    for (const std::uint32_t unit : let_go) held += step.units[unit].bytes;
    std::uint32_t begin = 0;
    for (const std::uint32_t end : ends) {
      const Discovery stretch = take_stretch(step, begin, end);
      for (const CudaSlot& slot : stretch.slots) {
        if (stretch.kinds[slot.unit] == UnitKind::kFresh) held += slot.bytes;
      }
      most = std::max(most, held + largest_temporary(stretch));
      for (std::uint32_t layer = begin; layer < end; ++layer) {
        held -= step.units[let_go[layer]].bytes;
      }
      begin = end;
    }
    return most;
  }

 private:
  static std::uint64_t largest_temporary(const Discovery& stretch) {
    std::uint64_t most = 0;
    for (const Site& site : stretch.step.sites) {
      if (stretch.kinds[site.unit] != UnitKind::kTemporary) continue;
      most = std::max(most, stretch.units[site.unit].bytes);
    }
    return most;
  }
  std::uint32_t add(UnitKind kind, std::uint64_t bytes) {
    const auto unit = static_cast<std::uint32_t>(step.units.size());
    const std::uint64_t address = (std::uint64_t{unit} + 1) << 32;
    step.units.push_back({address, address, bytes});
    step.unit_of.push_back(unit);
    step.kinds.push_back(kind);
    return unit;
  }
  void name(std::uint32_t node, std::initializer_list<std::uint32_t> units) {
    std::uint32_t offset = 0;
    for (const std::uint32_t unit : units) {
      step.step.sites.push_back({node, Operand::kParam, offset += 8, unit});
    }
  }
};

TEST(Stretches, ABackwardThatFitsIntoWhatItIsLetGoOfIsCutIntoFew) {
  const Backward backward(64, 20 * kMiB, 16 * kMiB);
  const auto ends = find_stretches(backward.step, backward.let_go);
  EXPECT_GT(ends.size(), 1u);
  EXPECT_LE(ends.size(), kMostStretches);
  EXPECT_EQ(ends.back(), 64u);
  EXPECT_TRUE(std::ranges::is_sorted(ends));
  const std::uint64_t saved = 64 * 20 * kMiB;
  EXPECT_EQ(backward.peak({64}), saved + (64 * 16 + 1) * kMiB);
  EXPECT_LT(backward.peak(ends), saved + saved / 8);
}

TEST(Stretches, EachTakesMoreThanTheNodesDoByAShareAtMostWhereFewAreEnough) {
  const Backward backward(64, 30 * kMiB, 16 * kMiB);
  const auto ends = find_stretches(backward.step, backward.let_go);
  ASSERT_LE(ends.size(), kMostStretches);
  const std::uint64_t named = 64 * (30 + 16) * kMiB + kMiB;
  const std::uint64_t one_by_one = (64 * 30 + 16 + 1) * kMiB;
  EXPECT_LE(backward.peak(ends), one_by_one + named / kStretchShare + 2 * kMiB);
}

TEST(Stretches, WhatIsMadeBehindALargeTemporaryIsNotThereYet) {
  Backward backward(64, 20 * kMiB, 16 * kMiB);
  backward.add_workspace(9, 256 * kMiB);
  const auto ends = find_stretches(backward.step, backward.let_go);
  EXPECT_LE(ends.size(), kMostStretches);
  const std::uint64_t named = 64 * (20 + 16) * kMiB + kMiB;
  const std::uint64_t one_by_one = (55 * 20 + 10 * 16 + 256 + 2) * kMiB;
  EXPECT_LE(backward.peak(ends), one_by_one + named / kStretchShare + 20 * kMiB);
}

TEST(Stretches, WhatIsNotLetGoOfIsNoReasonToCut) {
  const Backward backward(64, 20 * kMiB, 16 * kMiB);
  EXPECT_THAT(find_stretches(backward.step, {}), ElementsAre(64));
}

TEST(Stretches, ALittleMemoryIsNoReasonToCut) {
  const Backward backward(64, kMiB / 16, kMiB / 16);
  EXPECT_THAT(find_stretches(backward.step, backward.let_go), ElementsAre(64));
}

TEST(Stretches, AStepWithoutNodesHasNone) {
  const Backward backward(0, kMiB, kMiB);
  EXPECT_THAT(find_stretches(backward.step, backward.let_go), IsEmpty());
}

TEST(Stretches, AStepWithTablesOrNumbersIsOne) {
  const Backward backward(64, 20 * kMiB, 16 * kMiB);
  const auto expect_one = [&](auto change) {
    Discovery step = backward.step;
    change(step);
    EXPECT_THAT(find_stretches(step, backward.let_go), ElementsAre(64));
  };
  expect_one([](Discovery& step) { step.tables.resize(1); });
  expect_one([](Discovery& step) { step.step.numbers.resize(1); });
}

TEST(Stretches, TheFirstOneHasTheWordsThatAreUnsure) {
  Backward backward(64, 20 * kMiB, 16 * kMiB);
  const auto ends = find_stretches(backward.step, backward.let_go);
  backward.step.unsure = 3;
  EXPECT_EQ(find_stretches(backward.step, backward.let_go), ends);
  EXPECT_EQ(take_stretch(backward.step, 0, ends[0]).unsure, 3u);
  EXPECT_EQ(take_stretch(backward.step, ends[0], ends[1]).unsure, 0u);
}

TEST(Stretches, NodesThatShareScratchMemoryAreInOne) {
  Backward backward(64, 20 * kMiB, 16 * kMiB);
  const auto ends = find_stretches(backward.step, backward.let_go);
  ASSERT_GT(ends.size(), 2u);
  for (const std::uint32_t end : {ends[0], ends[1]}) backward.add_scratch({end - 1, end, end + 1});
  const auto others = find_stretches(backward.step, backward.let_go);
  EXPECT_GT(others.size(), 1u);
  EXPECT_LE(others.size(), kMostStretches);
  for (const std::uint32_t end : {ends[0], ends[1]}) {
    EXPECT_FALSE(std::ranges::count(others, end));
    EXPECT_FALSE(std::ranges::count(others, end + 1));
  }
  std::uint32_t begin = 0;
  for (const std::uint32_t end : others) {
    for (const CudaSlot& slot : take_stretch(backward.step, begin, end).slots) {
      EXPECT_EQ(backward.step.unit_of[slot.allocation], slot.unit);
    }
    begin = end;
  }
}

TEST(Stretches, CopiesFromTheHostDoNotKeepAStepWhole) {
  const Backward backward(64, 20 * kMiB, 16 * kMiB);
  Discovery step = backward.step;
  step.step.facts[3].host_bytes = {0, 8};
  EXPECT_EQ(find_stretches(step, backward.let_go), find_stretches(backward.step, backward.let_go));
}

TEST(Stretches, OneHasItsOwnNodesAndWhatTheyName) {
  const Backward backward(6, kMiB, kMiB);
  Discovery whole = backward.step;
  whole.step.image.edges = {{0, 2}, {2, 3, {}, true}, {3, 4}, {1, 5}};
  const Discovery stretch = take_stretch(whole, 2, 4);
  EXPECT_TRUE(stretch.is_stretch);
  EXPECT_EQ(stretch.step.image.nodes.size(), 2u);
  ASSERT_EQ(stretch.step.image.edges.size(), 1u);
  EXPECT_EQ(stretch.step.image.edges[0].from, 0u);
  EXPECT_EQ(stretch.step.image.edges[0].to, 1u);
  EXPECT_TRUE(stretch.step.image.edges[0].is_ours);
  std::vector<UnitKind> kinds;
  for (const CudaSlot& slot : stretch.slots) kinds.push_back(stretch.kinds[slot.unit]);
  using enum UnitKind;
  // What node 1 has passed on; of node 2 what was saved and its gradient; of node 3 also what it
  // passes on itself.
  EXPECT_THAT(kinds, ElementsAre(kGiven, kGiven, kFresh, kGiven, kFresh, kFresh));
}

TEST(Stretches, MemoryThatAnEarlierOneHasWrittenIsNotFresh) {
  Backward backward(4, kMiB, kMiB);
  const std::uint32_t gradient = backward.let_go[0] + 2;
  ASSERT_EQ(backward.step.kinds[gradient], UnitKind::kFresh);
  backward.step.step.sites.push_back({3, Operand::kParam, 64, gradient});
  EXPECT_EQ(take_stretch(backward.step, 0, 2).kinds[gradient], UnitKind::kFresh);
  EXPECT_EQ(take_stretch(backward.step, 2, 4).kinds[gradient], UnitKind::kGiven);
}

}  // namespace
}  // namespace anabranch::cuda
