// SPDX-License-Identifier: Apache-2.0
// A step of another size, of one capture: its kernels are known from two captures of the first.
#include "record/cuda/sites/kernel_layouts.h"

#include <gmock/gmock.h>

#include <cstring>

#include "record/cuda/cuda_recording_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::HasSubstr;

class OneCaptureTest : public testing::CudaStepTest {
 protected:
  static constexpr std::uint32_t kFewer = 48;

  OneCaptureTest() {
    sim->add_kernel({.name = "add_many", .params = sim::layout_of({8, 8, 8}), .run = run_add_many});
    destroy_captures();
    for (Captured& captured : captures) captured = capture_of(testing::kWords);
    known_ = discover(*d, {captures[0].graph, captures[0].memory},
                      {captures[1].graph, captures[1].memory}, kinds);
    EXPECT_TRUE(known_.ok()) << known_.error().message();
    destroy_captures();
    captures[0] = capture_of(kFewer);
    auto image = read_graph(*d, captures[0].graph);
    EXPECT_TRUE(image.ok());
    image_ = *std::move(image);
  }

  Captured capture_of(std::uint32_t words) {
    words_ = words;
    return capture();
  }
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) override {
    const auto at = [&](std::size_t i) { return CuDevicePtr{memory[i].address}; };
    EXPECT_CU(d->cuMemsetD32Async(at(2), 0, words_, on));
    EXPECT_CU(add_many(on, at(0), at(2), words_));
    EXPECT_CU(d->cuMemcpyDtoDAsync(at(4), at(2), words_ * sizeof(std::uint32_t), on));
    EXPECT_CU(add_one(on, at(4), at(3), words_));
    EXPECT_CU(add_one(on, at(3), at(1), words_));
  }
  static constexpr std::uint32_t kAdds = 3;

  CuResult add_many(CuStream on, CuDevicePtr in, CuDevicePtr out, std::uint64_t count) {
    if (!add_many_) add_many_ = load("add_many");
    void* params[] = {&in, &out, &count};
    return d->cuLaunchKernel(add_many_, words_ / 16, 1, 1, 16, 1, 1, 0, on, params, nullptr);
  }
  static void run_add_many(const sim::KernelCall& call) {
    const auto count = call.param<std::uint64_t>(16);
    const auto* in = call.memory<std::uint32_t>(call.param<CuDevicePtr>(0), count);
    auto* out = call.memory<std::uint32_t>(call.param<CuDevicePtr>(8), count);
    for (std::uint64_t i = 0; in && out && i < count; ++i) out[i] = in[i] + 1;
  }

  Result<Discovery> try_known(const DiscoverOptions& options = {}) {
    return discover_known(*d, {captures[0].graph, captures[0].memory, &image_}, known_->layouts,
                          kinds, options);
  }
  void expect_refused(const std::string& with) {
    const auto refused = try_known();
    ASSERT_FALSE(refused.ok()) << with;
    EXPECT_EQ(refused.error().code(), StatusCode::kCapturesDiffer);
    EXPECT_THAT(refused.error().message(), HasSubstr(with));
  }
  void capture_another(const std::function<void(const std::vector<CaptureAllocation>&)>& queue) {
    destroy_captures();
    Captured made;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      made.memory.push_back({allocate(testing::kBytes), testing::kBytes});
    }
    EXPECT_CU(d->cuStreamBeginCapture(work_stream, CuCaptureMode::kThreadLocal));
    queue(made.memory);
    made.graph = end_capture(work_stream);
    for (const CaptureAllocation& memory : made.memory) EXPECT_CU(d->cuMemFree(memory.address));
    captures[0] = std::move(made);
    auto image = read_graph(*d, captures[0].graph);
    ASSERT_TRUE(image.ok());
    image_ = *std::move(image);
  }

  // What two captures of it tell is all that is known then.
  template <typename Queue>
  void learn(Queue& queue) {
    capture_another(queue);
    const Captured first = std::exchange(captures[0], {});
    capture_another(queue);
    known_ =
        discover(*d, {first.graph, first.memory}, {captures[0].graph, captures[0].memory}, kinds);
    EXPECT_CU(d->cuGraphDestroy(first.graph));
    ASSERT_TRUE(known_.ok()) << known_.error().message();
  }

  std::uint32_t words_ = 0;
  Result<Discovery> known_ = Status(StatusCode::kRecordFailed, "");
  GraphImage image_;  // of the capture of another size

 private:
  CuFunction add_many_ = nullptr;
};

TEST_F(OneCaptureTest, AStepOfAnotherSizeIsLaunchedFromOneCapture) {
  for (const DeviceCode* const code :
       {static_cast<const DeviceCode*>(nullptr), load_device_code()}) {
    const auto found = try_known({.device_code = code});
    ASSERT_TRUE(found.ok()) << found.error().message();
    EXPECT_EQ(found->unsure, 0u);
    EXPECT_EQ(found->slots.size(), 2u);
    const auto recording = make_recording(*d, *found, {.device_code = code});
    ASSERT_TRUE(recording.ok()) << recording.error().message();
    EXPECT_EQ((*recording)->executables().size(), 1u);
    EXPECT_EQ((*recording)->updating().size(), code ? 1u : 0u);
    for (const std::uint32_t first : {5u, 1000u}) {
      const CuDevicePtr x = allocate(testing::kBytes), y = allocate(testing::kBytes);
      put_words(x, first);
      put_words(y, 7);
      std::vector<std::uint64_t> addresses{x, y};
      for (const std::uint64_t bytes : (*recording)->part_bytes()) {
        addresses.push_back(allocate(bytes));
      }
      CudaExec& exec = *(*recording)->executables()[0];
      ASSERT_TRUE(exec.set_addresses(addresses).ok());
      ASSERT_TRUE(exec.launch(work_stream).ok());
      EXPECT_CU(d->cuStreamSynchronize(work_stream));
      const auto words = get_words(y);
      for (std::uint32_t i = 0; i < testing::kWords; ++i) {
        ASSERT_EQ(words[i], i < kFewer ? first + i + kAdds : 7 + i);
      }
    }
  }
}

// Each word of a kernel in turn: an address in a unit, one of other memory, a number.
TEST_F(OneCaptureTest, AnAddressWhereNoneIsKnownIsRefused) {
  const CuDevicePtr elsewhere = allocate(testing::kBytes);
  std::uint32_t addresses = 0, numbers = 0;
  for (NodeImage& node : image_.nodes) {
    if (node.type != CuNodeType::kKernel) continue;
    for (const ParamField& field : node.kernel.fields) {
      if (field.bytes < sizeof(std::uint64_t)) continue;
      std::byte* const at = node.kernel.params.data() + field.offset;
      std::uint64_t right = 0;
      std::memcpy(&right, at, sizeof right);
      const bool is_number = right == kFewer;
      (is_number ? numbers : addresses) += 1;
      const auto put = [&](std::uint64_t word) { std::memcpy(at, &word, sizeof word); };
      put(elsewhere);
      expect_refused("names memory that is not the step's");
      put(captures[0].memory[3].address);
      if (is_number) {
        expect_refused("has an address where none is known");
      } else {
        EXPECT_TRUE(try_known().ok());
      }
      put(std::uint64_t{1} << 60);  // behind the used part of an array nothing is an address
      EXPECT_TRUE(try_known().ok());
      put(right);
    }
  }
  EXPECT_EQ(addresses, 6u);
  EXPECT_EQ(numbers, 1u);
}

TEST_F(OneCaptureTest, OperandsOfCopiesAndFillsOutsideOfTheStepAreRefused) {
  const CuDevicePtr elsewhere = allocate(testing::kBytes);
  NodeImage &fill = image_.nodes[0], &copy = image_.nodes[2];
  ASSERT_EQ(fill.type, CuNodeType::kMemset);
  ASSERT_EQ(copy.type, CuNodeType::kMemcpy);
  for (CuDevicePtr* const operand :
       {&fill.fill.dst, &copy.copy.src_device, &copy.copy.dst_device}) {
    const CuDevicePtr right = std::exchange(*operand, elsewhere);
    expect_refused("names memory that is not the step's");
    *operand = right;
  }
  EXPECT_TRUE(try_known().ok());
}

TEST_F(OneCaptureTest, MemoryThatBothCapturesNamedIsKnownToStay) {
  const CuDevicePtr stays = allocate(testing::kBytes), other = allocate(testing::kBytes);
  CuDevicePtr table = stays;
  const auto queue = [&](const std::vector<CaptureAllocation>& memory) {
    EXPECT_CU(add_many(work_stream, table, memory[1].address, 4));
  };
  learn(queue);
  capture_another(queue);
  EXPECT_TRUE(try_known().ok());
  table = other;
  capture_another(queue);
  expect_refused("names memory that is not the step's");
}

TEST_F(OneCaptureTest, AnotherNumberOfKnownKernelsIsKnown) {
  capture_another([&](const auto& memory) {
    for (int i = 0; i < 3; ++i) queue_step(work_stream, memory);
  });
  const auto found = try_known();
  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->step.image.nodes.size(), 15u);
  EXPECT_EQ(found->step.sites.size(), 3 * known_->step.sites.size());
}

// Of which libraries have many, one a size of tiles.
TEST_F(OneCaptureTest, KernelsWhoseNamesDifferBehindANumberAreKnownTogether) {
  for (const char* const name : {"add_64x8", "add_128x16_split", "sub_64x8"}) {
    sim->add_kernel({.name = name, .params = sim::layout_of({8, 8, 8}), .run = run_add_many});
  }
  CuFunction function = load("add_64x8");
  const auto queue = [&](const std::vector<CaptureAllocation>& memory) {
    CuDevicePtr in = memory[0].address, out = memory[1].address;
    std::uint64_t count = kFewer;
    EXPECT_CU(launch(function, work_stream, {&in, &out, &count}));
  };
  learn(queue);
  function = load("add_128x16_split");
  capture_another(queue);
  EXPECT_TRUE(try_known().ok());
  function = load("sub_64x8");
  capture_another(queue);
  expect_refused("has not been captured twice yet");
}

TEST_F(OneCaptureTest, KernelsThatAreNotKnownAreRefusedUntilTheyAre) {
  sim->add_kernel({.name = "other", .params = sim::layout_of({8, 8, 8}), .run = nullptr});
  const CuFunction function = load("other");
  const auto queue = [&](const std::vector<CaptureAllocation>& memory) {
    CuDevicePtr in = memory[0].address, out = memory[1].address;
    std::uint64_t count = 1;
    EXPECT_CU(launch(function, work_stream, {&in, &out, &count}));
  };
  capture_another(queue);
  expect_refused("kernel 0 'other' has not been captured twice yet");
  const KernelLayouts before = known_->layouts;
  learn(queue);
  known_->layouts.add(before);
  EXPECT_TRUE(try_known().ok());
}

TEST_F(OneCaptureTest, WordsThatNobodyReadsAreKnownToBeUnsure) {
  std::uint64_t count = 0;
  const auto queue = [&](const std::vector<CaptureAllocation>& memory) {
    EXPECT_CU(add_many(work_stream, memory[0].address, memory[1].address, ++count));
  };
  learn(queue);
  EXPECT_EQ(known_->unsure, 1u);
  count = allocate(testing::kBytes);
  capture_another(queue);
  EXPECT_TRUE(try_known().ok());
}

TEST_F(OneCaptureTest, WhatComesFromTheHostNeedsTwoCaptures) {
  void* pinned = nullptr;
  EXPECT_CU(d->cuMemHostAlloc(&pinned, testing::kBytes, 0));
  capture_another([&](const auto& memory) {
    EXPECT_CU(d->cuMemcpyHtoDAsync(memory[2].address, pinned, testing::kBytes, work_stream));
  });
  expect_refused("names memory that is not the step's");
  capture_another([&](const auto&) {
    EXPECT_CU(d->cuLaunchHostFunc(
        work_stream, [](void*) {}, nullptr));
  });
  expect_refused("calls the host");
  Captured with_child = std::exchange(captures[0], {});
  EXPECT_CU(d->cuGraphDestroy(with_child.graph));
  captures[0] = capture_of(kFewer);
  add_child(captures[0], captures[0].memory[0].address, captures[0].memory[1].address);
  image_ = *read_graph(*d, captures[0].graph);
  expect_refused("may name anything");
  EXPECT_CU(d->cuMemFreeHost(pinned));
}

TEST_F(OneCaptureTest, WordsThatStayAreKeptUpToABound) {
  KernelLayout layout, other;
  for (std::uint64_t i = 0; i < KernelLayout::kMostFrozen + 10; ++i) {
    (i % 2 == 0 ? layout : other).freeze(8, i);
  }
  layout.add(other);
  EXPECT_EQ(layout.frozen.size(), KernelLayout::kMostFrozen);
}

TEST_F(OneCaptureTest, FailingCallsLeaveNothingBehind) {
  const DeviceCode* const code = load_device_code();
  const KernelImage& kernel = image_.nodes[1].kernel;
  constexpr std::uint64_t kNoMemory = 0x1234'5678'9ABC;
  std::memcpy(image_.nodes[1].kernel.params.data() + kernel.fields[2].offset, &kNoMemory,
              sizeof kNoMemory);
  const auto have_failed = fail_each_call([&] { return try_known({.device_code = code}); });
  EXPECT_TRUE(have_failed.contains("cuPointerGetAttribute"));
}

}  // namespace
}  // namespace anabranch::cuda
