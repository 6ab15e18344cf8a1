// SPDX-License-Identifier: Apache-2.0
// Steps that copy from and to pinned memory, launched at memory that is mapped and not allocated.
#include <gmock/gmock.h>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"
#include "record/cuda/image/capture_memory.h"

namespace anabranch::cuda {
namespace {

using sim::MappedIds;
using sim::MappedPages;
using ::testing::HasSubstr;

constexpr std::uint64_t kPage = MappedPages::kPageBytes;
constexpr std::uint64_t kBytes = kPage + 4096;  // so that a block lies in more pages than one
constexpr std::uint64_t kLastWord = kBytes / sizeof(std::uint32_t) - 1;
constexpr std::size_t kBlocks = 4;
constexpr std::size_t kBlockPages = 2;
constexpr std::uint32_t kFilled = 77;

// What the driver tells of mapped memory, and whether device code is there.
using Way = std::tuple<MappedIds, bool>;

class MappedLaunchesTest : public sim::SimTest, public ::testing::WithParamInterface<Way> {
 protected:
  MappedLaunchesTest() : SimTest({.mapped_ids = std::get<0>(GetParam())}) {
    if (std::get<1>(GetParam())) {
      code_ = *DeviceCode::load(*d, sim::add_device_code(*sim).c_str());
    }
    work_stream_ = stream();
    void* pinned = nullptr;
    EXPECT_CU(d->cuMemHostAlloc(&pinned, 2 * kBytes, 0));
    in_ = static_cast<std::uint32_t*>(pinned);
    out_ = in_ + kBytes / sizeof *in_;
    std::fill_n(in_, 2 * kBytes / sizeof *in_, 0u);
    for (int c = 0; c < 2; ++c) capture(c);
  }
  ~MappedLaunchesTest() override { EXPECT_CU(d->cuMemFreeHost(in_)); }

  Result<std::shared_ptr<CudaRecording>> record(bool mapped_memory) {
    const std::vector<UnitKind> kinds(kBlocks, UnitKind::kGiven);
    return record_captures(*d, {graphs_[0], memory_[0]->allocations()},
                           {graphs_[1], memory_[1]->allocations()}, kinds,
                           {.device_code = code_.get(), .mapped_memory = mapped_memory});
  }
  static std::vector<CudaExec*> all_of(const CudaRecording& recording) {
    std::vector<CudaExec*> all{recording.executables()[0].get()};
    if (!recording.updating().empty()) all.push_back(recording.updating()[0].get());
    return all;
  }

  // Copies its input to the device, adds one to its last word in place, copies all back, and fills
  // a block; a child graph does the same on its way.
  void expect_step(CudaExec& exec, const std::vector<std::uint64_t>& at, std::uint32_t x) {
    in_[kLastWord] = x;
    out_[0] = out_[kLastWord] = 0;
    const auto set = exec.set_addresses(at);
    ASSERT_TRUE(set.ok()) << set.error().message();
    const Status queued = exec.launch(work_stream_);
    ASSERT_TRUE(queued.ok()) << queued.message();
    ASSERT_CU(d->cuStreamSynchronize(work_stream_));
    EXPECT_EQ(out_[kLastWord], x + 1);
    EXPECT_EQ(get(at[1]), kFilled);
    EXPECT_EQ(get(at[2] + kBytes - 4), x);
    EXPECT_EQ(get(at[3]), kFilled + 1);
  }
  static std::vector<std::uint64_t> blocks_of(const MappedPages& pages) {
    std::vector<std::uint64_t> at;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      at.push_back(pages.address() + i * kBlockPages * kPage);
    }
    return at;
  }

 private:
  void capture(int c) {
    memory_[c] = *CaptureMemory::make(*d);
    std::vector<CuDevicePtr> at;
    for (std::size_t i = 0; i < kBlocks; ++i) at.push_back(*memory_[c]->allocate(kBytes));
    EXPECT_CU(d->cuStreamBeginCapture(work_stream_, CuCaptureMode::kThreadLocal));
    EXPECT_CU(d->cuMemcpyHtoDAsync(at[2], in_, kBytes, work_stream_));
    EXPECT_CU(d->cuMemsetD32Async(at[3], kFilled + 1, 1, work_stream_));
    const CuGraph child = end_capture(work_stream_);
    EXPECT_CU(d->cuStreamBeginCapture(work_stream_, CuCaptureMode::kThreadLocal));
    EXPECT_CU(d->cuMemcpyHtoDAsync(at[0], in_, kBytes, work_stream_));
    EXPECT_CU(add_one(work_stream_, at[0] + kBytes - 4, at[0] + kBytes - 4));
    queue_child(work_stream_, child);
    EXPECT_CU(d->cuMemsetD32Async(at[1], kFilled, 1, work_stream_));
    EXPECT_CU(d->cuMemcpyDtoHAsync(out_, at[0], kBytes, work_stream_));
    graphs_[c] = end_capture(work_stream_);
  }

  std::unique_ptr<DeviceCode> code_;
  CuStream work_stream_ = nullptr;
  std::uint32_t *in_ = nullptr, *out_ = nullptr;
  std::unique_ptr<CaptureMemory> memory_[2];
  CuGraph graphs_[2] = {};
};

TEST_P(MappedLaunchesTest, CopyWithTheHostAtEverNewAddresses) {
  const auto recording = record(true);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  for (CudaExec* const exec : all_of(**recording)) {
    for (std::uint32_t round = 0; round < 4; ++round) {
      const MappedPages pages(*d, kBlocks * kBlockPages);
      expect_step(*exec, blocks_of(pages), 100 * round);
    }
  }
  EXPECT_THAT(sim->violations(), ::testing::IsEmpty());
}

TEST_P(MappedLaunchesTest, SeeOtherMemoryThatIsMappedAtAnyPageOfABlock) {
  const auto recording = record(true);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  MappedPages pages(*d, kBlocks * kBlockPages);
  for (CudaExec* const exec : all_of(**recording)) {
    expect_step(*exec, blocks_of(pages), 1);
    for (std::uint32_t page = 0; page < kBlocks * kBlockPages; ++page) {
      pages.map_anew(page);
      expect_step(*exec, blocks_of(pages), 1000 + page);
    }
  }
}

TEST_P(MappedLaunchesTest, AreRefusedByARecordingForAllocatedMemory) {
  const auto recording = record(false);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  const MappedPages pages(*d, kBlocks * kBlockPages);
  for (CudaExec* const exec : all_of(**recording)) {
    const auto set = exec->set_addresses(blocks_of(pages));
    ASSERT_FALSE(set.ok());
    EXPECT_EQ(set.error().code(), StatusCode::kLaunchDriverFailed);
    EXPECT_THAT(set.error().message(), HasSubstr("cuGraphExecMemcpyNodeSetParams"));
  }
}

TEST_P(MappedLaunchesTest, AreTheOnlyOnesOfARecordingForMappedMemory) {
  const auto recording = record(true);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  const MappedPages pages(*d, kBlocks * kBlockPages);
  std::vector<std::uint64_t> allocated;
  for (std::size_t i = 0; i < kBlocks; ++i) allocated.push_back(allocate(kBytes));
  for (CudaExec* const exec : all_of(**recording)) {
    const auto set = exec->set_addresses(allocated);
    ASSERT_FALSE(set.ok());
    EXPECT_THAT(set.error().message(), HasSubstr("cuGraphExecMemcpyNodeSetParams"));
    expect_step(*exec, blocks_of(pages), 5);  // afterwards it is as good as before
  }
}

TEST_P(MappedLaunchesTest, FailingCallsLeaveNothingBehind) {
  const auto have_failed = fail_each_call([&] { return record(true); });
  for (const char* call : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                           "cuMemUnmap", "cuMemAddressFree", "cuMemRelease"}) {
    EXPECT_TRUE(have_failed.contains(call)) << call;
  }
}

std::string who(const ::testing::TestParamInfo<Way>& way) {
  const auto [ids, with_device_code] = way.param;
  return std::string(ids == MappedIds::kOfPages   ? "IdsOfPages"
                     : ids == MappedIds::kOfRange ? "IdsOfRanges"
                                                  : "NoIds") +
         (with_device_code ? "" : "WithoutDeviceCode");
}
INSTANTIATE_TEST_SUITE_P(, MappedLaunchesTest,
                         ::testing::Combine(::testing::Values(MappedIds::kOfPages,
                                                              MappedIds::kOfRange,
                                                              MappedIds::kNone),
                                            ::testing::Bool()),
                         who);

// Without device code copies stay on mapped memory, which is what they were captured on.
class UntoldMemoryTest : public sim::SimTest {
 protected:
  UntoldMemoryTest() : SimTest({.mapped_ids = MappedIds::kNone}) {}
};

TEST_F(UntoldMemoryTest, IsTakenForOtherMemoryAtEachLaunch) {
  std::unique_ptr<CaptureMemory> memory[2];
  CuGraph graphs[2] = {};
  const CuStream on = stream();
  for (int c = 0; c < 2; ++c) {
    memory[c] = *CaptureMemory::make(*d);
    const CuDevicePtr from = *memory[c]->allocate(64), to = *memory[c]->allocate(64);
    EXPECT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kThreadLocal));
    EXPECT_CU(d->cuMemcpyDtoDAsync(to, from, 64, on));
    graphs[c] = end_capture(on);
  }
  const std::vector<UnitKind> kinds(2, UnitKind::kGiven);
  const auto recording = record_captures(*d, {graphs[0], memory[0]->allocations()},
                                         {graphs[1], memory[1]->allocations()}, kinds);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  CudaExec& exec = *(*recording)->executables()[0];
  MappedPages pages(*d, 2);
  const std::vector<std::uint64_t> at{pages.address(), pages.address() + kPage};
  for (std::uint32_t round = 0; round < 4; ++round) {
    pages.map_anew(round % 2);
    put(at[0], round);
    ASSERT_TRUE(exec.set_addresses(at).ok());
    ASSERT_TRUE(exec.launch(on).ok());
    ASSERT_CU(d->cuStreamSynchronize(on));
    EXPECT_EQ(get(at[1]), round);
  }
}

}  // namespace
}  // namespace anabranch::cuda
