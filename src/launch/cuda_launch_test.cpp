// SPDX-License-Identifier: Apache-2.0
// Launching recordings of captured steps, on the simulated driver.
#include "launch/cuda_launch.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <thread>

#include "record/cuda_recording_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kBytes;

// Who sets the nodes; device code has its table copied, or reads the host's memory.
enum class By : std::uint8_t { kHost, kUpdater, kUpdaterDirectly };

// Every promise holds whether device code sets the nodes, copies and fills being kernels, or the
// host does, and they are the driver's nodes.
class CudaLaunchTest : public testing::CudaStepTest, public ::testing::WithParamInterface<By> {
 protected:
  static bool by_updater() { return GetParam() != By::kHost; }
  // With the updater all that moves is set from the device.
  CudaRecordOptions options() {
    CudaRecordOptions chosen;
    if (by_updater()) chosen = {.device_code = load_device_code(), .few_nodes = 0};
    if (GetParam() == By::kUpdaterDirectly) chosen.direct_addresses = 1000;
    return chosen;
  }
  std::shared_ptr<CudaRecording> record() { return CudaStepTest::record(options()); }
  struct Memory {
    std::array<std::uint64_t, 2> slots{};
    std::uint64_t arena = 0;
    CudaBindings bindings() const { return {slots, arena}; }
  };
  Memory fresh(const CudaRecording& recording) {
    return {{allocate(kBytes), allocate(kBytes)}, allocate_aligned(recording.arena().size_bytes)};
  }
  void free(const Memory& memory) {
    for (const std::uint64_t slot : memory.slots) EXPECT_CU(d->cuMemFree(slot));
    for (auto [aligned, start] : aligned_) {
      if (aligned != memory.arena) continue;
      EXPECT_CU(d->cuMemFree(start));
    }
  }
  std::uint64_t allocate_aligned(std::uint64_t bytes) {
    const std::uint64_t start = allocate(bytes + 512);
    const std::uint64_t aligned = (start + 511) / 512 * 512;
    aligned_.push_back({aligned, start});
    return aligned;
  }
  Repoint must_launch(CudaRecording& recording, const Memory& memory, CuStream on = nullptr) {
    const auto how = cuda::launch(recording, memory.bindings(), on ? on : work_stream);
    EXPECT_TRUE(how.ok()) << (how.ok() ? "" : how.error().message());
    return how.ok() ? *how : Repoint::kNothing;
  }
  std::size_t nodes_set_by_host() {
    return count_of("cuGraphExecKernelNodeSetParams") + count_of("cuGraphExecMemcpyNodeSetParams") +
           count_of("cuGraphExecMemsetNodeSetParams");
  }
  std::size_t count_of(std::string_view call) {
    const auto calls = sim->calls();
    return static_cast<std::size_t>(std::count(calls.begin(), calls.end(), call));
  }

 private:
  std::vector<std::pair<std::uint64_t, std::uint64_t>> aligned_;
};

TEST_P(CudaLaunchTest, RunsAtTheAddressesItIsGiven) {
  const auto recording = record();
  const Memory memory = fresh(*recording);
  put_words(memory.slots[0], 100);
  EXPECT_EQ(must_launch(*recording, memory),
            by_updater() ? Repoint::kFromDevice : Repoint::kFromHost);
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  expect_result(memory.slots[1], 100);
  EXPECT_EQ(nodes_set_by_host(), by_updater() ? 0u : kNodes);
  EXPECT_EQ(count_of("cuGraphAddMemcpyNode"),
            GetParam() == By::kUpdater ? recording->updating().size() : 0u);
}

TEST_P(CudaLaunchTest, AThousandLaunchesAtFreshAddressesTouchNothingElse) {
  const auto recording = record();
  destroy_captures();
  std::mt19937 random(5);
  Memory memory = fresh(*recording);
  for (std::uint32_t round = 0; round < 1000; ++round) {
    const Memory before = memory;
    memory = fresh(*recording);
    if (random() % 2) std::swap(memory.slots[0], memory.slots[1]);
    free(before);  // poisoned from here on
    put_words(memory.slots[0], round);
    must_launch(*recording, memory);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory.slots[1], round);
  }
  free(memory);
  EXPECT_THAT(sim->violations(), IsEmpty());
}

TEST_P(CudaLaunchTest, OnceAddressesHaveSettledNoNodeIsSetAndNothingIsUpdated) {
  const auto recording = record();
  const Memory memory = fresh(*recording);
  for (std::uint32_t i = 0; i <= recording->options().settle_after; ++i) {
    must_launch(*recording, memory);
  }
  const std::size_t setters = nodes_set_by_host();
  EXPECT_EQ(must_launch(*recording, memory), Repoint::kNothing);
  EXPECT_EQ(nodes_set_by_host(), setters);
  EXPECT_GE(recording->counts().unchanged, 1u);
  EXPECT_EQ(recording->counts().from_host, 1u);
  EXPECT_EQ(recording->counts().from_device, by_updater() ? recording->options().settle_after : 0u);
}

TEST_P(CudaLaunchTest, WhereLittleMovesFromLaunchToLaunchTheRestSettles) {
  CudaRecordOptions chosen = options();
  chosen.few_nodes = 1;
  const auto recording = CudaStepTest::record(chosen);
  Memory memory = fresh(*recording);
  for (std::uint32_t i = 0; i <= chosen.settle_after + 1; ++i) {
    memory.slots[0] = allocate(kBytes);  // one node names it
    put_words(memory.slots[0], i);
    must_launch(*recording, memory);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory.slots[1], i);
  }
  memory.slots[0] = allocate(kBytes);
  const std::size_t setters = nodes_set_by_host();
  EXPECT_EQ(must_launch(*recording, memory), Repoint::kFromHost);
  EXPECT_EQ(nodes_set_by_host(), setters + 1);
}

TEST_P(CudaLaunchTest, SetsOnlyTheNodesThatNameWhatMoved) {
  CudaRecordOptions chosen = options();
  chosen.few_nodes = 20;
  const auto recording = CudaStepTest::record(chosen);
  Memory memory = fresh(*recording);
  must_launch(*recording, memory);
  EXPECT_EQ(nodes_set_by_host(), kNodes);
  memory.slots[0] = allocate(kBytes);
  put_words(memory.slots[0], 7);
  must_launch(*recording, memory);
  EXPECT_EQ(nodes_set_by_host(), kNodes + 1);
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  expect_result(memory.slots[1], 7);
  memory.arena = allocate_aligned(recording->arena().size_bytes);
  must_launch(*recording, memory);
  EXPECT_EQ(nodes_set_by_host(), 2 * kNodes + 1);
}

TEST_P(CudaLaunchTest, ALaunchMayBeQueuedWhileTheOneBeforeStillRuns) {
  const auto recording = record();
  std::vector<Memory> memories;
  for (std::uint32_t i = 0; i < 8; ++i) {
    memories.push_back(fresh(*recording));
    put_words(memories.back().slots[0], 10 * i);
  }
  for (const Memory& memory : memories) must_launch(*recording, memory);
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  for (std::uint32_t i = 0; i < 8; ++i) expect_result(memories[i].slots[1], 10 * i);
}

TEST_P(CudaLaunchTest, ThreadsMayLaunchOneRecordingOnStreamsOfTheirOwn) {
  for (const std::uint32_t executables : {1u, 3u}) {
    CudaRecordOptions chosen = options();
    chosen.executables = executables;
    const auto recording = CudaStepTest::record(chosen);
    std::vector<std::thread> threads;
    std::vector<Memory> memories;
    for (std::uint32_t t = 0; t < 4; ++t) {
      memories.push_back(fresh(*recording));
      put_words(memories[t].slots[0], 1000 * t);
    }
    for (std::uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        EXPECT_CU(d->cuCtxSetCurrent(context));
        const CuStream on = stream();
        for (int i = 0; i < 20; ++i) must_launch(*recording, memories[t], on);
        EXPECT_CU(d->cuStreamSynchronize(on));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (std::uint32_t t = 0; t < 4; ++t) expect_result(memories[t].slots[1], 1000 * t);
  }
}

TEST_P(CudaLaunchTest, WrongBindingsAreRefusedAndQueueNothing) {
  const auto recording = record();
  const Memory good = fresh(*recording);
  const auto refused = [&](const CudaBindings& bindings, const char* why) {
    const auto set = cuda::launch(*recording, bindings, work_stream);
    ASSERT_FALSE(set.ok()) << why;
    EXPECT_EQ(set.error().code(), Code::kBadBinding);
    EXPECT_THAT(set.error().message(), HasSubstr(why));
  };
  Memory odd = good, same = good, partly = good, inside = good;
  odd.slots[1] += 8;
  same.slots[1] = same.slots[0];
  partly.slots[1] = partly.slots[0] - 256;
  partly.slots[0] -= 128 + 128;
  inside.slots[0] = inside.arena;
  const std::size_t launches = count_of("cuGraphLaunch");
  refused({std::span(good.slots).first(1), good.arena}, "1 addresses for 2 slots");
  refused(odd.bindings(), "slot 1");
  refused({good.slots, 0}, "the arena is at 0x0");
  refused({good.slots, good.arena + 256}, "aligned to 512");
  refused(same.bindings(), "share bytes");
  refused(same.bindings(), "share bytes");  // also when asked again
  refused(partly.bindings(), "share bytes");
  refused(inside.bindings(), "slot 0 and the arena share bytes");
  EXPECT_EQ(count_of("cuGraphLaunch"), launches);
  put_words(good.slots[0], 3);
  must_launch(*recording, good);
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  expect_result(good.slots[1], 3);
}

TEST_P(CudaLaunchTest, AfterAnyFailingCallTheNextLaunchIsRight) {
  const auto recording = record();
  for (std::uint64_t n = 1;; ++n) {
    const Memory memory = fresh(*recording);
    put_words(memory.slots[0], static_cast<std::uint32_t>(n));
    sim->fail_call(n, CuResult::kOutOfMemory);
    const auto set = cuda::launch(*recording, memory.bindings(), work_stream);
    const std::string failed = sim->failed_call();
    if (failed.empty()) {
      EXPECT_TRUE(set.ok());
      EXPECT_GT(n, 3u);
      break;
    }
    if (failed == "cuEventQuery") continue;  // asked only to choose among executables
    ASSERT_FALSE(set.ok()) << failed;
    EXPECT_EQ(set.error().code(), Code::kLaunchDriverFailed);
    EXPECT_THAT(set.error().message(), HasSubstr(failed));
    must_launch(*recording, memory);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory.slots[1], static_cast<std::uint32_t>(n));
  }
}

// A function that the driver does not let device code update.
class RefusedFunctionTest : public CudaLaunchTest {
 protected:
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) override {
    CudaStepTest::queue_step(on, memory);
    if (!add_none_) {
      sim::Kernel kernel = sim::add_one_kernel();
      kernel.name = "add_none";
      kernel.device_updatable = false;
      kernel.run = [](const sim::KernelCall& call) {
        call.memory<std::uint32_t>(call.param<CuDevicePtr>(8), call.param<std::uint32_t>(16));
      };
      add_none_ = load(kernel);
    }
    CuDevicePtr in = memory[3].address, out = memory[1].address;
    std::uint32_t count = testing::kWords;
    EXPECT_CU(SimTest::launch(add_none_, on, {&in, &out, &count}));
  }

 private:
  CuFunction add_none_ = nullptr;
};

TEST_P(RefusedFunctionTest, IsSetFromTheHost) {
  captures[0] = capture();  // the first ones were made before this class was
  captures[1] = capture();
  const auto recording = record();
  for (std::uint32_t round = 0; round < 3; ++round) {
    const Memory memory = fresh(*recording);
    put_words(memory.slots[0], round);
    const std::size_t before = nodes_set_by_host();
    must_launch(*recording, memory);
    EXPECT_EQ(nodes_set_by_host() - before, by_updater() ? 1u : kNodes + 1);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory.slots[1], round);
    free(memory);
  }
  EXPECT_THAT(sim->violations(), IsEmpty());
}

std::string name_of(const ::testing::TestParamInfo<By>& by) {
  return by.param == By::kHost      ? "FromHost"
         : by.param == By::kUpdater ? "WithUpdater"
                                    : "WithUpdaterThatReadsTheHostsTable";
}
const auto all_of_them = ::testing::Values(By::kHost, By::kUpdater, By::kUpdaterDirectly);
INSTANTIATE_TEST_SUITE_P(, CudaLaunchTest, all_of_them, name_of);
INSTANTIATE_TEST_SUITE_P(, RefusedFunctionTest, all_of_them, name_of);

}  // namespace
}  // namespace anabranch::cuda
