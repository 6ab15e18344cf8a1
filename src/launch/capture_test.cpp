// SPDX-License-Identifier: Apache-2.0
// Captured steps through the public headers, on the simulated driver.
#include "anabranch/captured_recording.h"

#include <array>
#include <thread>
#include <vector>

#include "anabranch/launch.h"
#include "base/inside.h"
#include "device/cuda/cuda_device.h"
#include "record/cuda/cuda_recording_testing.h"
#include "record/cuda/image/capture_memory.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kBytes;

class CaptureTest : public testing::CudaStepTest {
 protected:
  CaptureTest() { image_ = sim::add_device_code(*sim); }
  Device open() { return detail::Inside::make<Device>(*CudaDevice::make(*d, 0, image_.c_str())); }

  // Captures that name x and y, and temporaries of this size on memory for captures.
  std::vector<CaptureBlock> capture_again(std::uint64_t temporary_bytes) {
    std::vector<CaptureBlock> all(kinds.size());
    destroy_captures();
    for (int c = 0; c < 2; ++c) {
      memory_[c] = *cuda::CaptureMemory::make(*d);
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        all[i].given = kinds[i] == UnitKind::kGiven;
        all[i].size_bytes = all[i].given ? kBytes : temporary_bytes;
        const std::uint64_t address = *memory_[c]->allocate(all[i].size_bytes);
        (c == 0 ? all[i].first_address : all[i].second_address) = address;
      }
      EXPECT_CU(d->cuStreamBeginCapture(work_stream, CuCaptureMode::kThreadLocal));
      queue_step(work_stream, {memory_[c]->allocations().begin(), memory_[c]->allocations().end()});
      captures[c].graph = end_capture(work_stream);
    }
    return all;
  }
  std::uint64_t allocate_part(std::uint64_t bytes) {
    return allocate(bytes + 512) / 512 * 512 + 512;
  }
  // Of x, y and the arena.
  static std::vector<Binding> bind(std::array<std::uint64_t, 3> at) {
    return {{reinterpret_cast<void*>(at[0]), kBytes},
            {reinterpret_cast<void*>(at[1]), kBytes},
            {reinterpret_cast<void*>(at[2]), 1024}};
  }
  Result<CapturedStep> discover(const Device& device, const std::vector<CaptureBlock>& with) {
    return discover(device, device, with);
  }
  Result<CapturedStep> discover(const Device& device, const Device& on,
                                const std::vector<CaptureBlock>& with = {}) {
    const auto first = CaptureSnapshot::make(device, CudaGraph(captures[0].graph));
    const auto second = CaptureSnapshot::make(device, CudaGraph(captures[1].graph));
    if (!first.ok()) return first.error();
    if (!second.ok()) return second.error();
    return CapturedStep::discover(on, *first, *second, with);
  }
  Result<CapturedRecording> make(const Device& device, const std::vector<CaptureBlock>& with,
                                 const CaptureOptions& options = {}) {
    const auto step = discover(device, with);
    return step.ok() ? step->record(options) : step.error();
  }

 private:
  std::string image_;
  std::unique_ptr<cuda::CaptureMemory> memory_[2];
};

TEST_F(CaptureTest, ACapturedStepLaunchesAtItsArguments) {
  const Device device = open();
  const auto recording = make(device, blocks());
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  destroy_captures();
  ASSERT_EQ(recording->slots().size(), 2u);
  EXPECT_EQ(recording->slots()[1].block, 1u);
  EXPECT_EQ(recording->slots()[1].size_bytes, kBytes);
  EXPECT_EQ(recording->counts().nodes, kNodes);
  EXPECT_THAT(recording->parts(), ElementsAre(1024));
  EXPECT_EQ(recording->counts().arena_bytes, 1024u);
  for (std::uint32_t round = 0; round < 3; ++round) {
    const std::uint64_t in = allocate(kBytes), out = allocate(kBytes);
    put_words(in, round);
    const Status queued = queue_launch(*recording, std::vector{in, out, allocate_part(1024)},
                                       CudaStream(work_stream));
    ASSERT_TRUE(queued.ok()) << queued.message();
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(out, round);
  }
  const CaptureCounts counts = recording->counts();
  // x, y and the arena: a word each in the tables of two executables, sixteen of the host's.
  EXPECT_EQ(counts.held_host_bytes, 2u * 16 * 3 * 8);
  EXPECT_GE(counts.held_device_bytes, 2u * (8 + 3 * 8 + sizeof(std::uint64_t) * kNodes));
  EXPECT_EQ(counts.launched_unchanged + counts.launched_from_host + counts.launched_from_device,
            3u);
}

TEST_F(CaptureTest, ARecordingForAFewLaunchesHasOneExecutableThatTheHostSets) {
  const Device device = open();
  const auto recording = make(device, blocks(), {.few_launches = true});
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  for (std::uint32_t round = 0; round < 3; ++round) {
    const std::uint64_t in = allocate(kBytes), out = allocate(kBytes);
    put_words(in, round);
    ASSERT_TRUE(
        queue_launch(*recording, std::vector{in, out, allocate_part(1024)}, CudaStream(work_stream))
            .ok());
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(out, round);
  }
  EXPECT_EQ(recording->counts().launched_from_host, 3u);
  EXPECT_EQ(recording->counts().held_host_bytes, 0u);
}

TEST_F(CaptureTest, StretchesOfACapturedStepAreLaunchedInTurn) {
  const Device device = open();
  const auto step = discover(device, blocks());
  ASSERT_TRUE(step.ok()) << step.error().message();
  EXPECT_THAT(step->stretches(std::vector<std::uint32_t>{0}), ElementsAre(kNodes));
  for (std::uint32_t cut = 1; cut < kNodes; ++cut) {
    const auto one = step->stretch(0, cut).record(), other = step->stretch(cut, kNodes).record();
    ASSERT_TRUE(one.ok() && other.ok());
    EXPECT_EQ(one->counts().nodes, cut);
    std::vector<std::uint64_t> at(kinds.size());  // by block
    for (std::uint64_t& address : at) address = allocate(kBytes);
    put_words(at[0], cut);
    for (const CapturedRecording& recording : {*one, *other}) {
      std::vector<std::uint64_t> given;
      for (const CaptureSlot& slot : recording.slots()) given.push_back(at[slot.block]);
      for (const std::uint64_t bytes : recording.parts()) given.push_back(allocate_part(bytes));
      ASSERT_TRUE(queue_launch(recording, given, CudaStream(work_stream)).ok());
    }
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(at[1], cut);
  }
}

TEST_F(CaptureTest, ACapturedRecordingIsARecordingWhoseLaunchesAnswerTickets) {
  const Device device = open();
  const auto made = make(device, blocks());
  ASSERT_TRUE(made.ok()) << made.error().message();
  const Recording recording = *made;
  EXPECT_FALSE(recording.has_plan());
  EXPECT_EQ(recording.lane_count(), 1u);
  const std::vector<RecordingSlot> slots = recording.slots();
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[1].name, "block 1");
  EXPECT_EQ(slots[1].size_bytes, kBytes);
  EXPECT_EQ(slots[2].name, "arena part 0");
  EXPECT_EQ(slots[2].alignment, 512u);
  std::vector<Ticket> tickets;
  for (std::uint32_t round = 0; round < 5; ++round) {
    const std::uint64_t in = allocate(kBytes), out = allocate(kBytes);
    put_words(in, round);
    const auto ticket =
        anabranch::launch(recording, bind({in, out, allocate_part(1024)}), CudaStream(work_stream));
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    ASSERT_TRUE(ticket->wait().ok());
    EXPECT_TRUE(ticket->done());
    expect_result(out, round);
    if (round % 2 == 0) tickets.push_back(*ticket);  // the others' marks are used again
  }
  EXPECT_THAT(dump_recording(recording), HasSubstr("launched"));
}

TEST_F(CaptureTest, ATicketOfACapturedStepIsNotDoneBeforeItsLaunch) {
  const Device device = open();
  const auto made = make(device, blocks());
  ASSERT_TRUE(made.ok());
  const Recording recording = *made;
  const std::uint64_t in = allocate(kBytes), out = allocate(kBytes), arena = allocate_part(1024);
  const auto launch = [&] {
    return *anabranch::launch(recording, bind({in, out, arena}), CudaStream(work_stream));
  };
  const Ticket first = launch(), second = launch();
  EXPECT_FALSE(first.done());
  EXPECT_TRUE(second.wait().ok());
  EXPECT_TRUE(first.done() && second.done());
}

TEST_F(CaptureTest, BindingsThatDoNotFitACapturedStepAreRefused) {
  const Device device = open();
  const auto made = make(device, blocks());
  ASSERT_TRUE(made.ok());
  auto bindings = bind({allocate(kBytes), allocate(kBytes), allocate_part(1024)});
  const auto refusal = [&] {
    const auto ticket = anabranch::launch(*made, bindings, CudaStream(work_stream));
    return ticket.ok() ? Status() : ticket.error();
  };
  bindings[1].size_bytes = kBytes - 1;
  EXPECT_THAT(refusal().message(), HasSubstr("the binding of slot 1 has 511 bytes"));
  bindings[1].size_bytes = kBytes;
  bindings[1].slot = SlotKind::kTable;
  EXPECT_THAT(refusal().message(), HasSubstr("a table was given for slot 1"));
  bindings[1].slot = SlotKind::kAddress;
  bindings[2].data = nullptr;
  EXPECT_THAT(refusal().message(), HasSubstr("arena part 0 is at 0x0"));
  bindings.pop_back();
  EXPECT_THAT(refusal().message(), HasSubstr("2 bindings were given"));
  EXPECT_EQ(refusal().code(), StatusCode::kBadBinding);
}

TEST_F(CaptureTest, ALaunchOfACapturedStepThatFailsLeavesTheNextOneRight) {
  const Device device = open();
  const auto made = make(device, blocks());
  ASSERT_TRUE(made.ok());
  const Recording recording = *made;
  for (std::uint64_t n = 1;; ++n) {
    const std::uint64_t in = allocate(kBytes), out = allocate(kBytes);
    const auto bindings = bind({in, out, allocate_part(1024)});
    put_words(in, 7);
    sim->fail_call(n, CuResult::kOutOfMemory);
    const auto failing = anabranch::launch(recording, bindings, CudaStream(work_stream));
    const std::string failed = sim->failed_call();
    sim->fail_call(0, CuResult::kSuccess);
    if (failed.empty()) {
      EXPECT_TRUE(failing.ok());
      EXPECT_GT(n, 3u);
      return;
    }
    EXPECT_FALSE(failing.ok()) << failed;
    const auto again = anabranch::launch(recording, bindings, CudaStream(work_stream));
    ASSERT_TRUE(again.ok()) << failed << ": " << again.error().message();
    EXPECT_TRUE(again->wait().ok());
    expect_result(out, 7);
  }
}

TEST_F(CaptureTest, AStepThatWasDiscoveredOnceIsRecordedForEachKindOfLaunch) {
  const Device device = open();
  auto step = discover(device, blocks());
  ASSERT_TRUE(step.ok()) << step.error().message();
  EXPECT_EQ(step->unsure(), 0u);
  EXPECT_CU(d->cuGraphDestroy(captures[1].graph));
  captures[1].graph = nullptr;
  std::vector<CapturedRecording> made;
  for (const std::uint32_t lanes : {1, 4}) {
    auto recording = step->record({.lanes = lanes});
    ASSERT_TRUE(recording.ok()) << recording.error().message();
    made.push_back(*std::move(recording));
  }
  destroy_captures();
  step = Status(StatusCode::kNotRecordable, "gone");  // recordings keep what they need
  for (std::uint32_t round = 0; round < 6; ++round) {
    const std::uint64_t in = allocate(kBytes), out = allocate(kBytes);
    put_words(in, round);
    const Status queued = queue_launch(made[round % 2], std::vector{in, out, allocate_part(1024)},
                                       CudaStream(work_stream));
    ASSERT_TRUE(queued.ok()) << queued.message();
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(out, round);
  }
}

TEST_F(CaptureTest, ChecksumsOfMemoryTellWhetherItIsTheSame) {
  const Device device = open();
  const std::uint64_t at = allocate(4096);
  ASSERT_CU(d->cuMemsetD8(at, 7, 4096));
  const std::vector<CaptureRange> ranges = {{at, 2048}, {at + 2048, 2048}, {at + 1, 2047}};
  const auto sums = make_checksums(device, ranges, CudaStream(work_stream));
  ASSERT_TRUE(sums.ok()) << sums.error().message();
  EXPECT_EQ((*sums)[0].first, (*sums)[1].first);
  EXPECT_EQ((*sums)[0].second, (*sums)[1].second);
  EXPECT_NE((*sums)[0].first, (*sums)[2].first);
  const Device without = detail::Inside::make<Device>(
      *CudaDevice::make(*d, 0, sim::SimDriver::make_image({}).c_str()));
  const auto refused = make_checksums(without, ranges, CudaStream(work_stream));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr(describe_capture(without)->why_no_device_code));
}

TEST_F(CaptureTest, ALargeArenaComesInPartsThatMayLieAnywhere) {
  constexpr std::uint64_t kTemporary = std::uint64_t{33} << 20;
  const Device device = open();
  const auto recording = make(device, capture_again(kTemporary));
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  ASSERT_THAT(recording->parts(), ElementsAre(kTemporary, kTemporary));
  EXPECT_EQ(recording->counts().arena_bytes, 2 * kTemporary);
  std::vector<std::uint64_t> addresses{allocate_part(kBytes), allocate_part(kBytes), 0, 0};
  const std::uint64_t place = allocate_part(kTemporary), other = allocate_part(kTemporary);
  for (std::uint32_t round = 0; round < 2; ++round) {
    addresses[2] = round == 0 ? place : other;
    addresses[3] = round == 0 ? other : place;
    put_words(addresses[0], round);
    const Status queued = queue_launch(*recording, addresses, CudaStream(work_stream));
    ASSERT_TRUE(queued.ok()) << queued.message();
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(addresses[1], round);
  }
  addresses[2] = addresses[3] + kTemporary - 512;
  EXPECT_THAT(queue_launch(*recording, addresses, CudaStream(work_stream)).message(),
              HasSubstr("arena part 1 and arena part 0 share bytes"));
}

TEST_F(CaptureTest, BlocksLieInAFreshOneUntilANodeNamesIt) {
  const Device device = open();
  auto with = capture_again(kBytes);
  with[1].fresh = true;
  const auto recording = make(device, with);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  EXPECT_EQ(recording->slots().size(), 2u);
  EXPECT_THAT(recording->parts(), ElementsAre(kBytes));  // of two that live at once
  EXPECT_EQ(recording->counts().arena_bytes, kBytes);
  EXPECT_EQ(recording->counts().arena_lower_bound_bytes, kBytes);
  for (std::uint32_t round = 0; round < 3; ++round) {
    const std::vector<std::uint64_t> at{allocate_part(kBytes), allocate_part(kBytes),
                                        allocate_part(kBytes)};
    put_words(at[0], round);
    const Status queued = queue_launch(*recording, at, CudaStream(work_stream));
    ASSERT_TRUE(queued.ok()) << queued.message();
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(at[1], round);
  }
}

TEST_F(CaptureTest, AFreshBlockThatIsNotGivenIsLikeAnyOther) {
  const Device device = open();
  auto with = capture_again(kBytes);
  for (CaptureBlock& block : with) block.fresh = !block.given;
  const auto recording = make(device, with);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  EXPECT_THAT(recording->parts(), ElementsAre(2 * kBytes));
}

TEST_F(CaptureTest, GivenMemoryThatNoNodeNamesIsNoSlot) {
  const Device device = open();
  auto with = blocks();
  const CaptureBlock idle{allocate(kBytes), allocate(kBytes), kBytes, true};
  with.insert(with.begin(), idle);
  const auto recording = make(device, with);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  ASSERT_EQ(recording->slots().size(), 2u);
  EXPECT_EQ(recording->slots()[0].block, 1u);
}

TEST_F(CaptureTest, MemoryInNoBlockThatDiffersIsRefused) {
  const Device device = open();
  auto with = blocks();
  with.pop_back();
  const auto recording = make(device, with);
  ASSERT_FALSE(recording.ok());
  EXPECT_THAT(recording.error().message(), HasSubstr("which is no address"));
}

TEST_F(CaptureTest, HandlesMayDieOnAnyThreadAndLeaveNothing) {
  const std::size_t before = sim->live_objects();
  auto device = std::make_unique<Device>(open());
  auto memory = anabranch::CaptureMemory::make(*device);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(memory->allocate(3 << 20).ok());
  auto step = discover(*device, blocks());
  ASSERT_TRUE(step.ok());
  auto recording = step->record();
  ASSERT_TRUE(recording.ok());
  device.reset();
  std::thread([&, mine = *std::move(recording), pages = *std::move(memory)]() mutable {
    step = Status(StatusCode::kNotRecordable, "gone");
    recording = Status(StatusCode::kNotRecordable, "gone");
    memory = Status(StatusCode::kNotRecordable, "gone");
  }).join();
  EXPECT_EQ(sim->live_objects(), before);
}

// y = x + 1, both in pinned memory, by way of two blocks that are given.
class PinnedCaptureTest : public CaptureTest {
 protected:
  PinnedCaptureTest() {
    void* pinned = nullptr;
    EXPECT_CU(d->cuMemHostAlloc(&pinned, 2 * kBytes, 0));
    x_ = static_cast<std::uint32_t*>(pinned);
    y_ = x_ + testing::kWords;
    std::fill_n(x_, 2 * testing::kWords, 0u);
  }
  ~PinnedCaptureTest() override { EXPECT_CU(d->cuMemFreeHost(x_)); }
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) override {
    EXPECT_CU(d->cuMemcpyHtoDAsync(memory[0].address, x_, kBytes, on));
    EXPECT_CU(add_one(on, memory[0].address, memory[1].address, testing::kWords));
    EXPECT_CU(d->cuMemcpyDtoHAsync(y_, memory[1].address, kBytes, on));
  }

  std::uint32_t *x_ = nullptr, *y_ = nullptr;
};

TEST_F(PinnedCaptureTest, LaunchesAreAtTheKindOfMemoryThatWasSaid) {
  const Device device = open();
  const auto blocks = capture_again(kBytes);
  for (const bool mapped_memory : {false, true}) {
    const auto recording = make(device, blocks, {.mapped_memory = mapped_memory});
    ASSERT_TRUE(recording.ok()) << recording.error().message();
    EXPECT_EQ(recording->counts().host_copies, 2u);
    for (std::uint32_t round = 0; round < 20; ++round) {
      const sim::MappedPages mapped(*d, 2);
      const std::vector<std::uint64_t> at_mapped{mapped.address(), mapped.address() + kBytes};
      const std::vector<std::uint64_t> at_allocated{allocate_part(kBytes), allocate_part(kBytes)};
      x_[0] = round;
      const Status refused = queue_launch(*recording, mapped_memory ? at_allocated : at_mapped,
                                          CudaStream(work_stream));
      EXPECT_EQ(refused.code(), StatusCode::kLaunchDriverFailed);
      const Status queued = queue_launch(*recording, mapped_memory ? at_mapped : at_allocated,
                                         CudaStream(work_stream));
      ASSERT_TRUE(queued.ok()) << queued.message();
      ASSERT_CU(d->cuStreamSynchronize(work_stream));
      EXPECT_EQ(y_[0], round + 1);
    }
  }
}

TEST_F(CaptureTest, AGraphThatIsNoneIsRefused) {
  const Device device = open();
  EXPECT_EQ(clear_graph(device, {}).code(), StatusCode::kNotRecordable);
  const auto snapshot = CaptureSnapshot::make(device, nullptr);
  ASSERT_FALSE(snapshot.ok());
  EXPECT_THAT(snapshot.error().message(), HasSubstr("no graph was given"));
}

TEST_F(CaptureTest, TheHostDeviceIsRefused) {
  const Device host = Device::host();
  for (const Status& refused :
       {describe_capture(host).error(), clear_graph(host, CudaGraph(captures[0].graph)),
        make_checksums(host, {}, {}).error(), anabranch::CaptureMemory::make(host).error(),
        anabranch::CaptureMarks::make(host).error(), anabranch::StreamTies::make(host).error(),
        CaptureSnapshot::make(host, CudaGraph(captures[0].graph)).error(),
        discover(open(), host).error()}) {
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(refused.message(), HasSubstr("Open a GPU: Device::cuda()"));
  }
}

TEST_F(CaptureTest, AClearedGraphHasNoNodes) {
  const Device device = open();
  ASSERT_TRUE(clear_graph(device, CudaGraph(captures[0].graph)).ok());
  EXPECT_TRUE(nodes_of(captures[0].graph).empty());
}

}  // namespace
}  // namespace anabranch::cuda
