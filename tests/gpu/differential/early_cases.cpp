// SPDX-License-Identifier: Apache-2.0
// A kernel launched to start before the slow one ahead of it has ended, which never waits for that
// one: recorded, what comes behind it takes the slow one's memory when that has ended.
#include <array>
#include <memory>
#include <string>

#include "device/cuda/device_code.h"
#include "differential.h"
#include "launch/cuda_launch.h"
#include "record/cuda/discover.h"
#include "record/cuda/image/capture_memory.h"

namespace anabranch::cuda {
namespace {

//   late_add_one(in, out, u32 naps)  lets others begin, sleeps, and then does *out = *in + 1
//   hasty_add_one(in, out)           *out = *in + 1
constexpr const char* kEarlyKernels = R"(.version 7.8
.target sm_90
.address_size 64

.visible .entry late_add_one(.param .u64 p_in, .param .u64 p_out, .param .u32 p_naps)
{
  .reg .pred %p<2>;
  .reg .b32 %r<5>;
  .reg .b64 %d<3>;
  griddepcontrol.launch_dependents;
  ld.param.u64 %d1, [p_in];
  ld.param.u64 %d2, [p_out];
  ld.param.u32 %r1, [p_naps];
  mov.u32 %r2, 0;
NAP:
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 bra AWAKE;
  nanosleep.u32 1000;
  add.u32 %r2, %r2, 1;
  bra NAP;
AWAKE:
  ld.volatile.global.u32 %r3, [%d1];
  add.u32 %r4, %r3, 1;
  st.volatile.global.u32 [%d2], %r4;
  ret;
}

.visible .entry hasty_add_one(.param .u64 p_in, .param .u64 p_out)
{
  .reg .b32 %r<3>;
  .reg .b64 %d<3>;
  ld.param.u64 %d1, [p_in];
  ld.param.u64 %d2, [p_out];
  ld.global.u32 %r1, [%d1];
  add.u32 %r2, %r1, 1;
  st.global.u32 [%d2], %r2;
  ret;
}
)";

constexpr std::uint64_t kUnitBytes = 512;  // as little as a part of the arena may have
constexpr std::uint32_t kPoison = 0xA5A5A5A5;

enum : std::size_t { kX, kY, kA, kB, kLate, kEarly, kBehind, kUnits };

// a = x + 2 and b = y + 3. By the host or by the updater.
class EarlyRecordings : public Differential, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    int major = 0;
    EXPECT_CU(d.cuDeviceGetAttribute(&major, CuDeviceAttribute::kComputeCapabilityMajor, 0));
    if (major < 9) GTEST_SKIP() << "no kernel starts early before compute capability 9.0";
    ASSERT_CU(d.cuModuleLoadData(&early_, kEarlyKernels));
    ASSERT_CU(d.cuModuleGetFunction(&late_add_one_, early_, "late_add_one"));
    ASSERT_CU(d.cuModuleGetFunction(&hasty_add_one_, early_, "hasty_add_one"));
    code_ = *DeviceCode::load(d, device_code_image);
    record();
  }
  void TearDown() override {
    recording.reset();
    code_.reset();
    if (early_) {
      EXPECT_CU(d.cuModuleUnload(early_));
    }
  }

  std::shared_ptr<CudaRecording> recording;

 private:
  void record() {
    std::unique_ptr<CaptureMemory> memories[2];
    CuGraph graphs[2] = {};
    for (int c = 0; c < 2; ++c) {
      memories[c] = *CaptureMemory::make(d);
      graphs[c] = capture([&](CuStream on) { queue_step(on, *memories[c]); });
    }
    std::vector<UnitKind> kinds(kUnits, UnitKind::kTemporary);
    std::fill_n(kinds.begin(), kLate, UnitKind::kGiven);
    CudaRecordOptions options{.device_code = code_.get(), .updating_executables = 0};
    if (GetParam()) {
      options.updating_executables = 1;
      options.few_nodes = 0;
      options.settle_after = ~0u;
    }
    auto made = record_captures(d, {graphs[0], memories[0]->allocations()},
                                {graphs[1], memories[1]->allocations()}, kinds, options);
    ASSERT_TRUE(made.ok()) << made.error().message();
    recording = *std::move(made);
  }
  void queue_step(CuStream on, CaptureMemory& memory) {
    std::array<CuDevicePtr, kUnits> at{};
    for (CuDevicePtr& address : at) address = *memory.allocate(kUnitBytes);
    std::uint32_t naps = 2000;
    EXPECT_CU(launch_add_one(on, at[kX], at[kLate]));
    EXPECT_CU(launch(late_add_one_, on, {&at[kLate], &at[kA], &naps}));
    CuLaunchAttribute attribute{};
    attribute.id = CuLaunchAttributeId::kProgrammaticStreamSerialization;
    attribute.value.programmatic_stream_serialization_allowed = 1;
    const CuLaunchConfig config{1, 1, 1, 32, 1, 1, 0, on, &attribute, 1};
    void* params[] = {&at[kY], &at[kEarly]};
    EXPECT_CU(d.cuLaunchKernelEx(&config, hasty_add_one_, params, nullptr));
    EXPECT_CU(launch_add_one(on, at[kEarly], at[kBehind]));
    EXPECT_CU(launch_add_one(on, at[kBehind], at[kB]));
  }

  CuModule early_ = nullptr;
  CuFunction late_add_one_ = nullptr, hasty_add_one_ = nullptr;
  std::unique_ptr<DeviceCode> code_;
};

TEST_P(EarlyRecordings, WhatComesBehindOneTakesTheMemoryOfASlowKernelAheadWhenThatHasEnded) {
  ASSERT_TRUE(recording);
  EXPECT_EQ(std::ranges::count_if(recording->image().edges, is_early), 1);
  EXPECT_EQ(recording->arena().size_bytes, 2 * kUnitBytes);  // of three temporaries
  const CuStream on = stream();
  for (std::uint32_t round = 0; round < 20; ++round) {
    std::vector<std::uint64_t> addresses;
    for (const SourceRule& source : recording->source_rules()) {
      const CuDevicePtr place = (allocate(source.bytes() + 511) + 511) / 512 * 512;
      put(place, std::vector<std::uint32_t>(source.bytes() / 4, kPoison));
      addresses.push_back(place);
    }
    put(addresses[kX], {round});
    put(addresses[kY], {1000 + round});
    const auto launched = cuda::launch(*recording, addresses, on);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    ASSERT_CU(d.cuStreamSynchronize(on));
    ASSERT_EQ(get(addresses[kA], 1)[0], round + 2);
    ASSERT_EQ(get(addresses[kB], 1)[0], 1000 + round + 3);
  }
}
INSTANTIATE_TEST_SUITE_P(, EarlyRecordings, ::testing::Bool(),
                         [](const auto& by) { return by.param ? "ByTheUpdater" : "ByTheHost"; });

}  // namespace
}  // namespace anabranch::cuda
