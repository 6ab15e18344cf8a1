// SPDX-License-Identifier: Apache-2.0
// What is discovered once, and what recording from it asks.
#include "record/cuda/discover.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "record/cuda/cuda_recording_testing.h"
#include "record/cuda/stretches.h"

namespace anabranch::cuda {
namespace {

using ::testing::HasSubstr;
using testing::kBytes;

class DiscoverTest : public testing::CudaStepTest {
 protected:
  Result<Discovery> try_discover(const DiscoverOptions& options = {}) {
    return discover(*d, {captures[0].graph, captures[0].memory},
                    {captures[1].graph, captures[1].memory}, kinds, options);
  }
};

TEST_F(DiscoverTest, WithoutDeviceCodeTheStepIsAsItWasCapturedAndTakesNothing) {
  const std::size_t before = sim->live_objects();
  const auto found = try_discover();
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(sim->live_objects(), before);
  EXPECT_EQ(found->step.image.nodes.size(), kNodes);
  EXPECT_EQ(found->step.facts.size(), kNodes);
  EXPECT_EQ(found->slots.size(), 2u);
  EXPECT_EQ(found->units.size(), kinds.size());
  for (const NodeImage& node : found->step.image.nodes) EXPECT_FALSE(node.is_ours);
}

TEST_F(DiscoverTest, WithDeviceCodeCopiesAndFillsAreKernels) {
  const auto found = try_discover({.device_code = load_device_code()});
  ASSERT_TRUE(found.ok()) << found.error().message();
  std::size_t ours = 0;
  for (const NodeImage& node : found->step.image.nodes) {
    EXPECT_EQ(node.type, CuNodeType::kKernel);
    ours += node.is_ours;
  }
  EXPECT_EQ(ours, 2u);  // a fill and a copy
}

TEST_F(DiscoverTest, TheSecondCaptureMayGoBeforeAnythingIsRecorded) {
  const auto found = try_discover();
  ASSERT_TRUE(found.ok());
  EXPECT_CU(d->cuGraphDestroy(captures[1].graph));
  captures[1].graph = nullptr;
  EXPECT_TRUE(make_recording(*d, *found).ok());
}

TEST_F(DiscoverTest, NoFailingCallLeavesAnythingBehind) {
  const DeviceCode* const code = load_device_code();
  const auto found = try_discover({.device_code = code});
  ASSERT_TRUE(found.ok());
  EXPECT_GE(fail_each_call([&] { return try_discover({.device_code = code}); }).size(), 10u);
  const CudaRecordOptions options{.device_code = code};
  EXPECT_GE(fail_each_call([&] { return make_recording(*d, *found, options); }).size(), 40u);
}

TEST_F(DiscoverTest, NoFailingCallOfAStretchLeavesAnythingBehind) {
  const DeviceCode* const code = load_device_code();
  const auto found = try_discover({.device_code = code});
  ASSERT_TRUE(found.ok());
  const Discovery stretch = take_stretch(*found, 2, 5);
  const CudaRecordOptions options{.device_code = code};
  EXPECT_GE(fail_each_call([&] { return make_recording(*d, stretch, options); }).size(), 40u);
}

TEST_F(DiscoverTest, AStretchHasTheNodesOfAChildGraphThatIsTakenInOrNone) {
  const CuDevicePtr fixed = allocate(kBytes);
  for (auto& captured : captures) add_child(captured, fixed, captured.memory[1].address);
  const auto found = try_discover();
  ASSERT_TRUE(found.ok()) << found.error().message();
  const std::uint32_t cut = kNodes - 1;
  const auto one = make_recording(*d, take_stretch(*found, 0, cut));
  const auto other = make_recording(*d, take_stretch(*found, cut, kNodes + 1));
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ((*one)->node_count(), cut);
  EXPECT_EQ((*other)->node_count(), 2u);
  EXPECT_EQ((*one)->sites().size() + (*other)->sites().size(), 12u);
}

// Kernels whose last word is another number in each capture.
class UnsureStepTest : public DiscoverTest {
 protected:
  explicit UnsureStepTest(int kernels = 1) : kernels_(kernels) {
    destroy_captures();
    for (Captured& captured : captures) captured = capture();
  }
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) override {
    for (int i = 0; i < kernels_; ++i) {
      EXPECT_CU(add_one(on, memory[0].address, memory[1].address, testing::kWords - turn_++));
    }
  }

 private:
  const int kernels_;
  std::uint32_t turn_ = 0;
};

TEST_F(UnsureStepTest, WordsThatDifferAreCountedAndRefusedWhereTheyAreNotAccepted) {
  const auto found = try_discover();
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->unsure, 1u);
  const auto refused = make_recording(*d, *found);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), StatusCode::kCapturesDiffer);
  EXPECT_THAT(refused.error().message(), HasSubstr("kernel 0 'add_one'"));
  const auto accepted = make_recording(*d, *found, {.accept_unsure = true});
  ASSERT_TRUE(accepted.ok()) << accepted.error().message();
  EXPECT_EQ((*accepted)->step_counts().unsure, 1u);
}

class UnsureChainTest : public UnsureStepTest {
 protected:
  UnsureChainTest() : UnsureStepTest(3) {}
};

TEST_F(UnsureChainTest, StretchesOfEitherCaptureHaveTheSameSlots) {
  const auto found = try_discover();
  std::swap(captures[0], captures[1]);
  const auto exchanged = try_discover();
  ASSERT_TRUE(found.ok() && exchanged.ok());
  EXPECT_EQ(found->unsure, 3u);
  for (const auto& [begin, end] : {std::pair(0u, 1u), std::pair(1u, 3u)}) {
    std::vector<CudaSlot> slots[2];
    for (int of = 0; of < 2; ++of) {
      const Discovery stretch = take_stretch(of == 0 ? *found : *exchanged, begin, end);
      const auto made = make_recording(*d, stretch, {.accept_unsure = true});
      ASSERT_TRUE(made.ok()) << made.error().message();
      EXPECT_EQ((*made)->step_counts().unsure, begin == 0 ? 3u : 0u);
      slots[of].assign((*made)->slots().begin(), (*made)->slots().end());
      EXPECT_EQ(make_recording(*d, stretch).ok(), begin != 0);
    }
    EXPECT_TRUE(
        std::ranges::equal(slots[0], slots[1], {}, &CudaSlot::allocation, &CudaSlot::allocation));
  }
}

// A child graph at addresses that never move stays one node, unless numbers in it change.
TEST_F(DiscoverTest, NumbersInAChildGraphInWhichNoAddressMovesAreRefused) {
  const CuDevicePtr fixed = allocate(kBytes);
  Captured third = capture();
  std::uint32_t count = 1;
  for (Captured* captured : {&captures[0], &captures[1], &third}) {
    if (captured == &third) count = 2;
    EXPECT_CU(d->cuStreamBeginCapture(work_stream, CuCaptureMode::kThreadLocal));
    EXPECT_CU(add_one(work_stream, fixed, fixed, count));
    const CuGraph inside = end_capture(work_stream);
    CuGraphNode node = nullptr;
    EXPECT_CU(d->cuGraphAddChildGraphNode(&node, captured->graph, nullptr, 0, inside));
    EXPECT_CU(d->cuGraphDestroy(inside));
  }
  const Capture of_others{third.graph, third.memory};
  const auto refused = discover(*d, {captures[0].graph, captures[0].memory},
                                {captures[1].graph, captures[1].memory}, kinds, {}, &of_others);
  EXPECT_CU(d->cuGraphDestroy(third.graph));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("child graph"));
}

}  // namespace
}  // namespace anabranch::cuda
