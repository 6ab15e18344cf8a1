// SPDX-License-Identifier: Apache-2.0
// A kernel that starts before the one ahead of it has ended, never waits for it and ends first: at
// the worst moment that the simulated driver finds, what comes behind it leaves the memory of the
// one ahead alone.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <functional>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"
#include "record/cuda/exec/timed_exec.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint64_t kBytes = 512;

enum : std::size_t { kX, kY, kA, kB, kLate, kEarly, kBehind, kUnits };

// a = x + 2, of which the second kernel is slow; b = y + 3, of which the first kernel starts early.
class EarlyLaunchesTest : public sim::SimTest {
 protected:
  // How the edge to the kernel that starts early comes to be.
  enum class By : std::uint8_t { kAttribute, kLaunchOrder };

  void make(std::uint64_t seed) {
    code_.reset();
    start({.seed = seed});
    code_ = *DeviceCode::load(*d, sim::add_device_code(*sim).c_str());
    sim::Kernel hasty = sim::add_one_kernel();
    hasty.name = "hasty";
    hasty.waits = false;
    hasty_ = load(hasty);
  }
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory, By by) {
    const auto at = [&](std::size_t unit) { return CuDevicePtr{memory[unit].address}; };
    EXPECT_CU(add_one(on, at(kX), at(kLate)));
    EXPECT_CU(add_one(on, at(kLate), at(kA)));
    launch_early(on, at(kY), at(kEarly), by);
    EXPECT_CU(add_one(on, at(kEarly), at(kBehind)));
    EXPECT_CU(add_one(on, at(kBehind), at(kB)));
  }
  void launch_early(CuStream on, CuDevicePtr in, CuDevicePtr out, By by) {
    std::uint32_t count = 1;
    void* params[] = {&in, &out, &count};
    CuLaunchAttribute attribute{};
    attribute.id = CuLaunchAttributeId::kProgrammaticStreamSerialization;
    attribute.value.programmatic_stream_serialization_allowed = 1;
    if (by == By::kLaunchOrder) {
      set_edge(on, {kPortLaunchOrder, 0, kEdgeDefault, {}});
      attribute.id = CuLaunchAttributeId::kIgnore;
    }
    const CuLaunchConfig config{1, 1, 1, 32, 1, 1, 0, on, &attribute, 1};
    EXPECT_CU(d->cuLaunchKernelEx(&config, hasty_, params, nullptr));
  }
  // By which the next captured node comes behind the last one.
  void set_edge(CuStream on, const CuEdgeData& data) {
    CuCaptureStatus status{};
    const CuGraphNode* last = nullptr;
    std::size_t count = 0;
    EXPECT_CU(d->cuStreamGetCaptureInfo(on, &status, nullptr, nullptr, &last, nullptr, &count));
    ASSERT_EQ(count, 1u);
    CuGraphNode node = *last;
    EXPECT_CU(d->cuStreamUpdateCaptureDependencies(on, &node, &data, 1, kSetCaptureDependencies));
  }
  using Queue = std::function<void(CuStream, const std::vector<CaptureAllocation>&)>;
  CuGraph capture(const Queue& queue, const std::vector<CaptureAllocation>& memory) {
    const CuStream on = stream();
    EXPECT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
    queue(on, memory);
    return end_capture(on);
  }
  std::shared_ptr<CudaRecording> record(const Queue& queue) {
    CuGraph graphs[2] = {};
    std::vector<CaptureAllocation> memory[2];
    for (int c = 0; c < 2; ++c) {
      for (std::size_t i = 0; i < kUnits; ++i) memory[c].push_back({allocate(kBytes), kBytes});
      graphs[c] = capture(queue, memory[c]);
      for (const CaptureAllocation& unit : memory[c]) EXPECT_CU(d->cuMemFree(unit.address));
    }
    std::vector<UnitKind> kinds(kUnits, UnitKind::kTemporary);
    std::fill_n(kinds.begin(), kLate, UnitKind::kGiven);
    auto made = record_captures(*d, {graphs[0], memory[0]}, {graphs[1], memory[1]}, kinds,
                                {.device_code = code_.get(), .few_nodes = 0});
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }
  // At the begin of each source.
  std::vector<std::uint64_t> places_for(const CudaRecording& recording) {
    std::vector<std::uint64_t> at;
    for (const SourceRule& rule : recording.source_rules()) {
      const CuDevicePtr block = allocate(rule.bytes() + 511);
      EXPECT_CU(d->cuMemsetD8(block, 0xA5, rule.bytes() + 511));
      at.push_back((block + 511) / 512 * 512);
    }
    return at;
  }
  void expect_results(const CudaRecording& recording, CudaExec& exec) {
    const std::vector<std::uint64_t> at = places_for(recording);
    const CuStream on = stream();
    put(at[kX], 100);
    put(at[kY], 200);
    ASSERT_TRUE(exec.set_addresses(at).ok());
    ASSERT_TRUE(exec.launch(on).ok());
    ASSERT_CU(d->cuStreamSynchronize(on));
    EXPECT_EQ(get(at[kA]), 102u);
    EXPECT_EQ(get(at[kB]), 203u);
  }
  // Of which launches give these results, whatever the seed, with less memory than it names.
  void expect_right(const std::function<Queue()>& make_queue) {
    for (std::uint64_t seed = 1; seed <= 50 && !HasFailure(); ++seed) {
      SCOPED_TRACE(seed);
      make(seed);
      const auto recording = record(make_queue());
      ASSERT_TRUE(recording);
      EXPECT_EQ(std::ranges::count_if(recording->image().edges, is_early), 1);
      EXPECT_EQ(recording->arena().size_bytes, 2 * kBytes);  // of three temporaries
      for (const auto& execs : {recording->executables(), recording->updating()}) {
        ASSERT_FALSE(execs.empty());
        expect_results(*recording, *execs[0]);
      }
      const auto twin = TimedExec::make(*d, *recording->executables()[0], recording->image(),
                                        places_for(*recording));
      ASSERT_TRUE(twin.ok());
      expect_results(*recording, (*twin)->exec());
      EXPECT_THAT(sim->violations(), ::testing::IsEmpty());
    }
  }

 private:
  std::unique_ptr<DeviceCode> code_;
  CuFunction hasty_ = nullptr;
};

TEST_F(EarlyLaunchesTest, WhatComesBehindOneWaitsForTheKernelAheadOfItBeforeItTakesItsMemory) {
  for (const By by : {By::kAttribute, By::kLaunchOrder}) {
    expect_right([&, by] {
      return [&, by](CuStream on, const auto& memory) { queue_step(on, memory, by); };
    });
  }
}

// Whose end is that of all its kernels. It is opened, since things move in it.
TEST_F(EarlyLaunchesTest, WhatComesBehindAChildGraphWaitsForTheKernelThatOneHasOvertakenInIt) {
  expect_right([&] {
    return [&](CuStream on, const std::vector<CaptureAllocation>& memory) {
      const auto at = [&](std::size_t unit) { return CuDevicePtr{memory[unit].address}; };
      const auto inside = [&](CuStream child, const auto&) {
        EXPECT_CU(add_one(child, at(kX), at(kLate)));
        EXPECT_CU(add_one(child, at(kLate), at(kA)));
        launch_early(child, at(kY), at(kEarly), By::kAttribute);
      };
      queue_child(on, capture(inside, memory));
      EXPECT_CU(add_one(on, at(kEarly), at(kBehind)));
      EXPECT_CU(add_one(on, at(kBehind), at(kB)));
    };
  });
}

}  // namespace
}  // namespace anabranch::cuda
