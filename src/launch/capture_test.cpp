// SPDX-License-Identifier: Apache-2.0
// Captured steps through the public headers, on the simulated driver.
#include "anabranch/capture.h"

#include <thread>

#include "anabranch/launch.h"
#include "device/cuda/cuda_device.h"
#include "record/cuda_recording_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::HasSubstr;
using testing::kBytes;

class CaptureTest : public testing::CudaStepTest {
 protected:
  CaptureTest() { image_ = sim::add_device_code(*sim); }
  CaptureDevice open() { return CaptureDevice(*CudaDevice::make(*d, 0, image_.c_str())); }

  std::vector<CaptureBlock> blocks() const {
    std::vector<CaptureBlock> all;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      all.push_back({captures[0].memory[i].address, captures[1].memory[i].address, kBytes,
                     kinds[i] == UnitKind::kGiven});
    }
    return all;
  }
  Result<CapturedRecording> make(const CaptureDevice& device,
                                 const std::vector<CaptureBlock>& with) {
    const auto first = CaptureSnapshot::make(device, captures[0].graph);
    const auto second = CaptureSnapshot::make(device, captures[1].graph);
    if (!first.ok()) return first.error();
    if (!second.ok()) return second.error();
    return CapturedRecording::make(device, *first, *second, with);
  }

 private:
  std::string image_;
};

TEST_F(CaptureTest, ACapturedStepLaunchesAtItsArguments) {
  const CaptureDevice device = open();
  const auto recording = make(device, blocks());
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  destroy_captures();
  ASSERT_EQ(recording->slots().size(), 2u);
  EXPECT_EQ(recording->slots()[1].block, 1u);
  EXPECT_EQ(recording->slots()[1].bytes, kBytes);
  EXPECT_EQ(recording->counts().nodes, kNodes);
  for (std::uint32_t round = 0; round < 3; ++round) {
    const std::uint64_t in = allocate(kBytes), out = allocate(kBytes);
    const std::uint64_t arena = allocate(recording->counts().arena_bytes + 512) / 512 * 512 + 512;
    put_words(in, round);
    const Status queued = anabranch::launch(*recording, std::vector{in, out}, arena, work_stream);
    ASSERT_TRUE(queued.ok()) << queued.message();
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(out, round);
  }
  const CaptureCounts counts = recording->counts();
  EXPECT_EQ(counts.launched_unchanged + counts.launched_from_host + counts.launched_from_device,
            3u);
}

TEST_F(CaptureTest, GivenMemoryThatNoNodeNamesIsNoSlot) {
  const CaptureDevice device = open();
  auto with = blocks();
  const CaptureBlock idle{allocate(kBytes), allocate(kBytes), kBytes, true};
  with.insert(with.begin(), idle);
  const auto recording = make(device, with);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  ASSERT_EQ(recording->slots().size(), 2u);
  EXPECT_EQ(recording->slots()[0].block, 1u);
}

TEST_F(CaptureTest, MemoryInNoBlockThatDiffersIsRefused) {
  const CaptureDevice device = open();
  auto with = blocks();
  with.pop_back();
  const auto recording = make(device, with);
  ASSERT_FALSE(recording.ok());
  EXPECT_THAT(recording.error().message(), HasSubstr("which is no address"));
}

TEST_F(CaptureTest, HandlesMayDieOnAnyThreadAndLeaveNothing) {
  const std::size_t before = sim->live_objects();
  auto device = std::make_unique<CaptureDevice>(open());
  auto memory = anabranch::CaptureMemory::make(*device);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(memory->allocate(3 << 20).ok());
  auto recording = make(*device, blocks());
  ASSERT_TRUE(recording.ok());
  device.reset();
  std::thread([&, mine = *std::move(recording), pages = *std::move(memory)]() mutable {
    recording = Status(Code::kNotRecordable, "gone");
    memory = Status(Code::kNotRecordable, "gone");
  }).join();
  EXPECT_EQ(sim->live_objects(), before);
}

TEST_F(CaptureTest, AClearedGraphHasNoNodes) {
  const CaptureDevice device = open();
  ASSERT_TRUE(device.clear(captures[0].graph).ok());
  EXPECT_TRUE(nodes_of(captures[0].graph).empty());
}

}  // namespace
}  // namespace anabranch::cuda
