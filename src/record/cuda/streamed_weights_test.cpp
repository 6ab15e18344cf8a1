// SPDX-License-Identifier: Apache-2.0
// A step whose weights come from pinned memory, layer by layer, all of them to the address that the
// capture's allocator gives out again: recorded they come ahead of the kernels that read them.
#include <gmock/gmock.h>

#include <optional>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"
#include "record/cuda/order/reachability.h"

namespace anabranch::cuda {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kLayers = 16;
constexpr std::uint64_t kBytes = 2048;  // of a weight, and of what lies between two layers

class StreamedWeightsTest : public sim::SimTest {
 protected:
  StreamedWeightsTest() : SimTest({.seed = 7, .jitter_ns = 3000}) {
    code_ = *DeviceCode::load(*d, sim::add_device_code(*sim).c_str());
    add_ = load({.name = "add", .params = sim::layout_of({8, 8, 8}), .run = add, .duration_ns = 1});
    stream_ = stream();
    void* pinned = nullptr;
    EXPECT_CU(d->cuMemHostAlloc(&pinned, kLayers * kBytes, 0));
    weights_ = static_cast<std::uint32_t*>(pinned);
    std::fill_n(weights_, kLayers * kBytes / sizeof *weights_, 0u);
    for (Captured& captured : captures_) capture(captured);
  }

  Result<std::shared_ptr<CudaRecording>> record(std::uint64_t ahead_bytes, std::uint32_t lanes = 4,
                                                bool mapped_memory = false) {
    const Notes notes{&*marks_, 2, works_, uses_};
    std::vector<UnitKind> kinds(captures_[0].memory.size(), UnitKind::kTemporary);
    kinds[0] = kinds[1] = UnitKind::kGiven;
    CudaRecordOptions options;
    options.device_code = code_.get();
    options.lanes = lanes;
    options.ahead_bytes = ahead_bytes;
    options.mapped_memory = mapped_memory;
    return record_captures(*d, {captures_[0].graph, captures_[0].memory},
                           {captures_[1].graph, captures_[1].memory, nullptr, &notes}, kinds,
                           options);
  }
  // The sum of x and of what all weights begin with.
  std::uint32_t launch(CudaExec& exec, std::uint64_t arena_bytes, std::uint32_t x) {
    const CuDevicePtr in = allocate(kBytes), out = allocate(kBytes);
    const CuDevicePtr arena = (allocate(arena_bytes + 512) + 511) / 512 * 512;
    return launch_at(exec, in, out, arena, x);
  }
  std::uint32_t launch_at(CudaExec& exec, CuDevicePtr in, CuDevicePtr out, CuDevicePtr arena,
                          std::uint32_t x) {
    put(in, x);
    EXPECT_TRUE(exec.set_addresses(std::vector<std::uint64_t>{in, out, arena}).ok());
    EXPECT_TRUE(exec.launch(stream_).ok());
    EXPECT_CU(d->cuStreamSynchronize(stream_));
    return get(out);
  }
  void set_weight(std::uint32_t layer, std::uint32_t value) {
    weights_[layer * kBytes / sizeof *weights_] = value;
  }

 private:
  struct Captured {
    CuGraph graph = nullptr;
    std::vector<CaptureAllocation> memory;
  };

  static void add(const sim::KernelCall& call) {
    std::uint32_t* words[3];
    for (std::uint32_t i = 0; i < 3; ++i) {
      words[i] = call.memory<std::uint32_t>(call.param<CuDevicePtr>(8 * i), 1);
      if (!words[i]) return;
    }
    *words[2] = *words[0] + *words[1];
  }
  // Given are x and the result; a weight is dead when the next one comes.
  void capture(Captured& to) {
    marks_.emplace(*d);
    works_.clear();
    uses_.clear();
    std::vector<CuDevicePtr> places;
    for (int i = 0; i < 5; ++i) places.push_back(allocate(kBytes));
    to.memory = {{places[0], kBytes}, {places[1], kBytes}};
    EXPECT_CU(d->cuStreamBeginCapture(stream_, CuCaptureMode::kRelaxed));
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      CuDevicePtr weight = places[2], x = layer == 0 ? places[0] : places[3 + layer % 2],
                  y = layer + 1 == kLayers ? places[1] : places[3 + (layer + 1) % 2];
      to.memory.push_back({weight, kBytes});
      begin_work(to);
      const auto* const from = weights_ + layer * kBytes / sizeof *weights_;
      EXPECT_CU(d->cuMemcpyHtoDAsync(weight, from, kBytes, stream_));
      end_work(to, {{weight, true}});
      if (y != places[1]) to.memory.push_back({y, kBytes});
      begin_work(to);
      EXPECT_CU(SimTest::launch(add_, stream_, {&x, &weight, &y}));
      end_work(to, {{x, false}, {weight, false}, {y, true}});
    }
    to.graph = end_capture(stream_);
    for (const CuDevicePtr place : places) EXPECT_CU(d->cuMemFree(place));
  }
  void begin_work(const Captured& in) { (void)*marks_->mark(stream_, in.memory.size() - 2); }
  void end_work(const Captured& in, std::vector<CaptureUse> uses) {
    works_.push_back(
        {*marks_->mark(stream_, in.memory.size() - 2), static_cast<std::uint32_t>(uses.size())});
    uses_.insert(uses_.end(), uses.begin(), uses.end());
  }

  std::unique_ptr<DeviceCode> code_;
  CuFunction add_ = nullptr;
  CuStream stream_ = nullptr;
  std::uint32_t* weights_ = nullptr;
  Captured captures_[2];
  std::optional<CaptureMarks> marks_;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
};

TEST_F(StreamedWeightsTest, EachLaunchHasWhatThePinnedMemoryHoldsThen) {
  for (const std::uint64_t ahead : {std::uint64_t{0}, 6 * kBytes, ~std::uint64_t{0}}) {
    const auto recording = record(ahead);
    ASSERT_TRUE(recording.ok()) << recording.error().message();
    EXPECT_EQ((*recording)->step_counts().lanes, 2u);
    for (CudaExec* exec :
         {(*recording)->executables()[0].get(), (*recording)->updating()[0].get()}) {
      for (std::uint32_t round = 0; round < 5; ++round) {
        for (std::uint32_t layer = 0; layer < kLayers; ++layer) set_weight(layer, round << layer);
        EXPECT_EQ(launch(*exec, (*recording)->arena().size_bytes, round),
                  round + (round << kLayers) - round);
      }
    }
  }
  EXPECT_THAT(sim->violations(), ::testing::IsEmpty());
}

// The driver's copies mean an allocation: they fail where another one is at its address.
TEST_F(StreamedWeightsTest, MemoryThatWasMadeAgainAtItsAddressIsSetAnew) {
  const auto recording = record(0);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  sim->reuse_addresses();
  const CuDevicePtr in = allocate(kBytes), out = allocate(kBytes);
  const std::uint64_t bytes = (*recording)->arena().size_bytes + 512;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) set_weight(layer, 1);
  for (CudaExec* exec : {(*recording)->executables()[0].get(), (*recording)->updating()[0].get()}) {
    CuDevicePtr before = 0;
    for (int round = 0; round < 3; ++round) {
      const CuDevicePtr arena = allocate(bytes);
      ASSERT_TRUE(round == 0 || arena == before);
      before = arena;
      ASSERT_EQ(launch_at(*exec, in, out, (arena + 511) / 512 * 512, 5), 5 + kLayers);
      ASSERT_CU(d->cuMemFree(arena));
    }
  }
}

TEST_F(StreamedWeightsTest, ComeToMappedMemoryTooWhateverIsMappedThereMeanwhile) {
  const auto recording = record(6 * kBytes, 4, true);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  EXPECT_EQ((*recording)->step_counts().lanes, 2u);
  sim::MappedPages pages(*d, 3);
  for (CudaExec* exec : {(*recording)->executables()[0].get(), (*recording)->updating()[0].get()}) {
    for (std::uint32_t round = 0; round < 5; ++round) {
      for (std::uint32_t layer = 0; layer < kLayers; ++layer) set_weight(layer, round << layer);
      const CuDevicePtr in = pages.address(), out = in + sim::MappedPages::kPageBytes;
      const CuDevicePtr arena = out + sim::MappedPages::kPageBytes;
      EXPECT_EQ(launch_at(*exec, in, out, arena, round), round << kLayers);
      pages.map_anew(2);
    }
  }
  EXPECT_THAT(sim->violations(), ::testing::IsEmpty());
}

TEST_F(StreamedWeightsTest, ACopyComesBehindNoKernelButThoseThatHoldItsMemory) {
  const auto recording = record(4 * kBytes);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  const GraphImage& image = (*recording)->image();
  Reachability before(image.nodes.size());
  for (const EdgeImage& edge : image.edges) before.add(edge);
  for (std::uint32_t copy = 0; copy < image.nodes.size(); copy += 2) {
    for (std::uint32_t kernel = 1; kernel < copy; kernel += 2) {
      // Of four weights that may be there three stay when a copy waits.
      const bool waits = before.contains(copy, kernel);
      EXPECT_TRUE(kernel + 8 <= copy + 1 ? waits : kernel + 6 <= copy + 1 || !waits)
          << kernel << ", " << copy;
    }
  }
}

TEST_F(StreamedWeightsTest, TheArenaHoldsWhatMayComeAheadAndNoMore) {
  const auto arena_bytes = [&](std::uint64_t ahead, std::uint32_t lanes = 4) {
    const auto recording = record(ahead, lanes);
    return recording.ok() ? (*recording)->arena().size_bytes : 0;
  };
  EXPECT_EQ(arena_bytes(0, 1), 3 * kBytes);
  EXPECT_EQ(arena_bytes(0), 5 * kBytes);
  EXPECT_EQ(arena_bytes(6 * kBytes), 8 * kBytes);
  EXPECT_EQ(arena_bytes(~std::uint64_t{0}), (kLayers + 1) * kBytes);
}

TEST_F(StreamedWeightsTest, FailingCallsLeaveNothingBehind) {
  const auto have_failed = fail_each_call([&] { return record(0); });
  EXPECT_TRUE(have_failed.contains("cuGraphAddMemcpyNode"));
}

}  // namespace
}  // namespace anabranch::cuda
