// SPDX-License-Identifier: Apache-2.0
// Launching recordings of captured steps, on the simulated driver.
#include "launch/cuda_launch.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "base/seeds_testing.h"
#include "record/cuda/cuda_recording_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kBytes;

// Who sets the nodes.
enum class By : std::uint8_t { kHost, kOneKernel, kTwoKernels, kLaunchable };

// Every promise holds whether device code sets the nodes, copies and fills being kernels, or the
// host does, and they are the driver's nodes.
class CudaLaunchTest : public testing::CudaStepTest, public ::testing::WithParamInterface<By> {
 protected:
  static bool by_updater() { return GetParam() != By::kHost; }
  // With the updater all that moves is set from the device. The arena comes in two parts.
  CudaRecordOptions options() {
    CudaRecordOptions chosen;
    if (by_updater()) chosen = {.device_code = load_device_code(), .few_nodes = 0};
    if (GetParam() == By::kTwoKernels) chosen.repoint_in_two = true;
    if (GetParam() == By::kLaunchable) chosen.launchable_updating = chosen.launchable_settled = 0;
    chosen.least_part_bytes = 512;
    return chosen;
  }
  std::shared_ptr<CudaRecording> record() { return CudaStepTest::record(options()); }
  // Of the step as a test's own class queues it: the captures that stand are of the base's.
  std::shared_ptr<CudaRecording> record_again() {
    destroy_captures();
    for (Captured& captured : captures) captured = capture();
    return record();
  }

  // x, y, then the parts.
  using Memory = std::vector<std::uint64_t>;
  // Fenced and poisoned, in any order.
  Memory fresh(const CudaRecording& recording) {
    Memory memory(recording.source_rules().size());
    std::vector<std::size_t> turns(memory.size());
    std::iota(turns.begin(), turns.end(), 0u);
    std::shuffle(turns.begin(), turns.end(), random_);
    for (const std::size_t source : turns) {
      const std::uint64_t bytes = recording.source_rules()[source].bytes();
      memory[source] = source < recording.slots().size() ? allocate(bytes) : allocate_part(bytes);
    }
    return memory;
  }
  void free(const Memory& memory) {
    for (const std::uint64_t address : memory) EXPECT_CU(d->cuMemFree(address));
  }
  std::uint64_t allocate_part(std::uint64_t bytes) {
    for (;;) {
      const std::uint64_t address = allocate(bytes);
      if (address % kPartAlignment == 0) return address;
      allocate(1);  // what comes next lies elsewhere
      EXPECT_CU(d->cuMemFree(address));
    }
  }
  Repoint must_launch(CudaRecording& recording, const Memory& memory, CuStream on = nullptr) {
    const auto how = cuda::launch(recording, memory, on ? on : work_stream);
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
  std::mt19937 random_{7};
};

TEST_P(CudaLaunchTest, RunsAtTheAddressesItIsGiven) {
  const auto recording = record();
  const Memory memory = fresh(*recording);
  put_words(memory[0], 100);
  EXPECT_EQ(must_launch(*recording, memory),
            by_updater() ? Repoint::kFromDevice : Repoint::kFromHost);
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  expect_result(memory[1], 100);
  EXPECT_EQ(nodes_set_by_host(), by_updater() ? 0u : kNodes);
}

// Launches of one function by a library that allows each just the shared memory that it has.
class SharedMemoryTest : public CudaLaunchTest {
 protected:
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) override {
    CudaLaunchTest::queue_step(on, memory);
    if (!function_) return;
    library_launches(on, memory[1].address, 60'000);
    library_launches(on, memory[1].address, 4'096);
  }
  void library_launches(CuStream on, CuDevicePtr in_place, unsigned shared_bytes) {
    sim->allow_shared_memory(function_, static_cast<int>(shared_bytes));
    std::uint32_t count = testing::kWords;
    void* params[] = {&in_place, &in_place, &count};
    EXPECT_CU(d->cuLaunchKernel(function_, 1, 1, 1, 32, 1, 1, shared_bytes, on, params, nullptr));
  }
  std::shared_ptr<CudaRecording> record_library() {
    function_ = load("add_one");
    return record_again();
  }

 private:
  CuFunction function_ = nullptr;
};

TEST_P(SharedMemoryTest, FunctionsAreAllowedWhatTheirNodesHave) {
  const auto recording = record_library();
  const Memory other = fresh(*recording);
  for (int i = 0; i < 30; ++i) {  // from the device and, once settled, from the host
    const Memory memory = i < 10 ? fresh(*recording) : other;
    put_words(memory[0], 100);
    must_launch(*recording, memory);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory[1], 102);
    library_launches(work_stream, memory[1], 1'024);  // plain calls of it
    library_launches(work_stream, memory[1], 200'000);
  }
}

// All of the step in a child graph, and a call of the host and an event there with it.
class ChildLaunchTest : public CudaLaunchTest {
 protected:
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) override {
    if (!inside_) return CudaLaunchTest::queue_step(on, memory);
    EXPECT_CU(d->cuStreamBeginCapture(inside_, CuCaptureMode::kThreadLocal));
    CudaLaunchTest::queue_step(inside_, memory);
    EXPECT_CU(d->cuEventRecordWithFlags(done_, inside_, kEventRecordExternal));
    const auto count = [](void* counted) { ++*static_cast<int*>(counted); };
    EXPECT_CU(d->cuLaunchHostFunc(inside_, count, &calls));
    queue_child(on, end_capture(inside_));
  }
  std::shared_ptr<CudaRecording> record_child() {
    inside_ = stream();
    done_ = event();
    return record_again();
  }
  int calls = 0;

 private:
  CuStream inside_ = nullptr;
  CuEvent done_ = nullptr;
};

TEST_P(ChildLaunchTest, WhatMovesInAChildGraphRunsAtTheAddressesThatALaunchIsGiven) {
  const auto recording = record_child();
  EXPECT_EQ(recording->node_count(), kNodes + 2);
  destroy_captures();
  for (int i = 1; i < 4; ++i) {
    const Memory memory = fresh(*recording);
    put_words(memory[0], 100u * static_cast<std::uint32_t>(i));
    must_launch(*recording, memory);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory[1], 100u * static_cast<std::uint32_t>(i));
    EXPECT_EQ(calls, i);
    free(memory);
  }
}

TEST_P(ChildLaunchTest, WhereACallFailsWhileItIsRecordedNothingIsLeft) {
  (void)record_child();
  const CudaRecordOptions chosen = options();
  const auto have_failed = fail_each_call([&] { return try_record(chosen); });
  for (const char* const call : {"cuGraphAddKernelNode", "cuGraphKernelNodeCopyAttributes",
                                 "cuGraphAddHostNode", "cuGraphAddEventRecordNode"}) {
    EXPECT_THAT(have_failed, Contains(call));
  }
  EXPECT_EQ(have_failed.contains("cuGraphAddMemsetNode"), !by_updater());
}

// Beside the step, two kernels that note which priorities they run with; the second is captured on
// a stream of its own.
class PriorityLaunchTest : public CudaLaunchTest {
 protected:
  void capture_beside(int priority) {
    destroy_captures();
    EXPECT_CU(d->cuStreamCreateWithPriority(&beside_, kStreamNonBlocking, priority));
    for (Captured& captured : captures) captured = capture();
  }
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) override {
    CudaLaunchTest::queue_step(on, memory);
    if (!beside_) return;
    if (!noting_) {
      noting_ = load({.name = "note_priority", .params = {}, .run = [this](const auto& call) {
                        priorities.push_back(call.priority);
                      }});
    }
    EXPECT_CU(launch(noting_, on, {}));
    const CuEvent forked = event(), joined = event();
    EXPECT_CU(d->cuEventRecord(forked, on));
    EXPECT_CU(d->cuStreamWaitEvent(beside_, forked, kEventWaitDefault));
    EXPECT_CU(launch(noting_, beside_, {}));
    EXPECT_CU(d->cuEventRecord(joined, beside_));
    EXPECT_CU(d->cuStreamWaitEvent(on, joined, kEventWaitDefault));
  }
  std::vector<int> launched_on(CudaRecording& recording, CuStream on) {
    priorities.clear();
    const Memory memory = fresh(recording);
    put_words(memory[0], 3);
    must_launch(recording, memory, on);
    EXPECT_CU(d->cuStreamSynchronize(on));
    expect_result(memory[1], 3);
    return priorities;
  }
  std::vector<int> priorities;

 private:
  CuStream beside_ = nullptr;
  CuFunction noting_ = nullptr;
};

TEST_P(PriorityLaunchTest, KernelsKeepThePrioritiesOfTheStreamsOfTheirCapture) {
  capture_beside(-3);
  const auto recording = record();
  EXPECT_THAT(launched_on(*recording, work_stream), ElementsAre(0, -3));
  EXPECT_THAT(launched_on(*recording, work_stream), ElementsAre(0, -3));
}

TEST_P(PriorityLaunchTest, WhereTheyWereAlikeTheStreamOfTheLaunchDecides) {
  capture_beside(0);
  const auto recording = record();
  CuStream urgent = nullptr;
  ASSERT_CU(d->cuStreamCreateWithPriority(&urgent, kStreamNonBlocking, -2));
  EXPECT_THAT(launched_on(*recording, urgent), ElementsAre(-2, -2));
  EXPECT_THAT(launched_on(*recording, work_stream), ElementsAre(0, 0));
}

TEST_P(CudaLaunchTest, AChildGraphRunsWhereItsOwnMemoryIs) {
  const CuDevicePtr counter = allocate(kBytes);
  put_words(counter, 0);
  for (auto& captured : captures) add_child(captured, counter, counter);
  const auto recording = record();
  destroy_captures();
  for (std::uint32_t round = 1; round <= 20; ++round) {
    const Memory memory = fresh(*recording);
    put_words(memory[0], 10 * round);
    must_launch(*recording, memory);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory[1], 10 * round);
    EXPECT_EQ(get_words(counter)[0], round);
    free(memory);
  }
}

TEST_P(CudaLaunchTest, AThousandLaunchesAtFreshAddressesTouchNothingElse) {
  const auto recording = record();
  destroy_captures();
  std::mt19937 random(5);
  Memory memory = fresh(*recording);
  for (std::uint32_t round = 0; round < rounds_of(1000); ++round) {
    const Memory before = memory;
    memory = fresh(*recording);
    if (random() % 2) std::swap(memory[0], memory[1]);
    free(before);  // poisoned from here on
    put_words(memory[0], round);
    must_launch(*recording, memory);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory[1], round);
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
    memory[0] = allocate(kBytes);  // one node names it
    put_words(memory[0], i);
    must_launch(*recording, memory);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory[1], i);
  }
  memory[0] = allocate(kBytes);
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
  memory[0] = allocate(kBytes);
  put_words(memory[0], 7);
  must_launch(*recording, memory);
  EXPECT_EQ(nodes_set_by_host(), kNodes + 1);
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  expect_result(memory[1], 7);
  memory[2] = allocate_part(kBytes);
  memory[3] = allocate_part(kBytes);
  must_launch(*recording, memory);
  EXPECT_EQ(nodes_set_by_host(), 2 * kNodes + 1);
}

TEST_P(CudaLaunchTest, ALaunchMayBeQueuedWhileTheOneBeforeStillRuns) {
  const auto recording = record();
  std::vector<Memory> memories;
  for (std::uint32_t i = 0; i < 8; ++i) {
    memories.push_back(fresh(*recording));
    put_words(memories.back()[0], 10 * i);
  }
  for (const Memory& memory : memories) must_launch(*recording, memory);
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  for (std::uint32_t i = 0; i < 8; ++i) expect_result(memories[i][1], 10 * i);
}

TEST_P(CudaLaunchTest, EachLaunchHasItsOwnAddressesHoweverManyAreQueued) {
  const auto recording = record();
  std::vector<Memory> memories;
  for (std::uint32_t i = 0; i < 3 * kHostTables; ++i) {
    memories.push_back(fresh(*recording));
    put_words(memories.back()[0], 10 * i);
    must_launch(*recording, memories.back());
    if (i % 5 == 0) {
      EXPECT_CU(d->cuStreamSynchronize(work_stream));
    }
  }
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  for (std::uint32_t i = 0; i < memories.size(); ++i) expect_result(memories[i][1], 10 * i);
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
      put_words(memories[t][0], 1000 * t);
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
    for (std::uint32_t t = 0; t < 4; ++t) expect_result(memories[t][1], 1000 * t);
  }
}

TEST_P(CudaLaunchTest, AStreamKeepsToAnExecutableThatNoOtherUses) {
  CudaRecordOptions chosen = options();
  chosen.executables = 2;
  const auto recording = CudaStepTest::record(chosen);
  const auto execs = by_updater() ? recording->updating() : recording->executables();
  const CuStream first = stream(), second = stream();
  for (const CuStream on : {first, second, second, first}) {
    must_launch(*recording, fresh(*recording), on);
  }
  EXPECT_EQ(execs[0]->last_stream(), first);
  EXPECT_EQ(execs[1]->last_stream(), second);
  must_launch(*recording, fresh(*recording), stream());  // more streams than executables
  EXPECT_CU(d->cuCtxSynchronize());
}

TEST_P(CudaLaunchTest, WrongBindingsAreRefusedAndQueueNothing) {
  const auto recording = record();
  const Memory good = fresh(*recording);
  const auto refused = [&](const Memory& memory, const char* why) {
    const auto set = cuda::launch(*recording, memory, work_stream);
    ASSERT_FALSE(set.ok()) << why;
    EXPECT_EQ(set.error().code(), StatusCode::kBadBinding);
    EXPECT_THAT(set.error().message(), HasSubstr(why));
  };
  const auto with = [&](std::size_t source, std::uint64_t address) {
    Memory memory = good;
    memory[source] = address;
    return memory;
  };
  const std::size_t launches = count_of("cuGraphLaunch");
  refused({good[0]}, "1 addresses for 2 slots, 2 arena parts and 0 numbers");
  refused(with(1, good[1] + 8), "slot 1");
  refused(with(3, 0), "arena part 1 is at 0x0");
  refused(with(2, good[2] + 256), "aligned to 512");
  refused(with(1, good[0]), "share bytes");
  refused(with(1, good[0]), "share bytes");  // also when asked again
  refused(with(1, good[0] - 256), "slot 1 and slot 0 share bytes");
  refused(with(0, good[2]), "slot 0 and arena part 0 share bytes");
  refused(with(0, good[3] + 256), "arena part 1 and slot 0 share bytes");
  refused(with(3, good[2]), "arena part 0 and arena part 1 share bytes");
  EXPECT_EQ(count_of("cuGraphLaunch"), launches);
  put_words(good[0], 3);
  must_launch(*recording, good);
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  expect_result(good[1], 3);
}

TEST_P(CudaLaunchTest, AfterAnyFailingCallTheNextLaunchIsRight) {
  const auto recording = record();
  std::set<std::string> have_failed;
  std::mt19937 random(7);
  // Any call of a launch; some are made by one in several launches alone.
  for (std::uint32_t round = 0; round < 16 * kHostTables; ++round) {
    const Memory memory = fresh(*recording);
    put_words(memory[0], round);
    sim->fail_call(1 + random() % (kNodes + 5), CuResult::kOutOfMemory);
    const auto set = cuda::launch(*recording, memory, work_stream);
    const std::string failed = sim->failed_call();
    sim->fail_call(~std::uint64_t{0}, CuResult::kSuccess);  // not some later call
    if (failed.empty()) {
      ASSERT_TRUE(set.ok());
    } else {
      have_failed.insert(failed);
      ASSERT_FALSE(set.ok()) << failed;
      EXPECT_EQ(set.error().code(), StatusCode::kLaunchDriverFailed);
      EXPECT_THAT(set.error().message(), HasSubstr(failed));
      must_launch(*recording, memory);
    }
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory[1], round);
    free(memory);
  }
  EXPECT_TRUE(have_failed.contains("cuGraphLaunch"));
  EXPECT_EQ(have_failed.contains("cuEventRecord"), by_updater());
  EXPECT_EQ(have_failed.contains("cuEventSynchronize"), by_updater());
}

// What device code may launch holds no events.
class EventLaunchTest : public CudaLaunchTest {
 protected:
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) override {
    CudaStepTest::queue_step(on, memory);
    if (!event_) {
      EXPECT_CU(d->cuEventCreate(&event_, kEventDisableTiming));
    }
    EXPECT_CU(d->cuEventRecordWithFlags(event_, on, kEventRecordExternal));
  }

 private:
  CuEvent event_ = nullptr;
};

TEST_P(EventLaunchTest, WhatCannotBeLaunchableIsMadeAsOthersAre) {
  const auto before = count_of("cuGraphInstantiateWithParams");
  const auto recording = record_again();
  const std::size_t made = by_updater() ? 3 : 1;
  EXPECT_EQ(count_of("cuGraphInstantiateWithParams") - before,
            GetParam() == By::kLaunchable ? 2 * made : made);
  for (const std::uint32_t round : {100u, 200u}) {
    const Memory memory = fresh(*recording);
    put_words(memory[0], round);
    must_launch(*recording, memory);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory[1], round);
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
    put_words(memory[0], round);
    const std::size_t before = nodes_set_by_host();
    must_launch(*recording, memory);
    EXPECT_EQ(nodes_set_by_host() - before, by_updater() ? 1u : kNodes + 1);
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    expect_result(memory[1], round);
    free(memory);
  }
  EXPECT_THAT(sim->violations(), IsEmpty());
}

// A step without temporaries, or one that does nothing at all.
class NoTemporariesTest : public CudaLaunchTest {
 protected:
  void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) override {
    if (is_empty) return;
    EXPECT_CU(add_one(on, memory[0].address, memory[1].address, testing::kWords));
  }
  bool is_empty = false;
};

TEST_P(NoTemporariesTest, HaveNoPartsAndRunAllTheSame) {
  const auto recording = record_again();
  EXPECT_THAT(recording->part_bytes(), IsEmpty());
  const Memory memory = fresh(*recording);
  ASSERT_EQ(memory.size(), 2u);
  put_words(memory[0], 5);
  must_launch(*recording, memory);
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  EXPECT_EQ(get_words(memory[1])[0], 6u);
}

TEST_P(NoTemporariesTest, AStepWithoutAddressesTakesNone) {
  is_empty = true;
  const auto recording = record_again();
  EXPECT_THAT(recording->source_rules(), IsEmpty());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(must_launch(*recording, {}), Repoint::kNothing);
}

std::string name_of(const ::testing::TestParamInfo<By>& by) {
  return by.param == By::kHost         ? "FromHost"
         : by.param == By::kOneKernel  ? "ByOneKernel"
         : by.param == By::kTwoKernels ? "ByTwo"
                                       : "Launchable";
}
const auto all_of_them =
    ::testing::Values(By::kHost, By::kOneKernel, By::kTwoKernels, By::kLaunchable);
INSTANTIATE_TEST_SUITE_P(, CudaLaunchTest, all_of_them, name_of);
INSTANTIATE_TEST_SUITE_P(, SharedMemoryTest, all_of_them, name_of);
INSTANTIATE_TEST_SUITE_P(, ChildLaunchTest, all_of_them, name_of);
INSTANTIATE_TEST_SUITE_P(, EventLaunchTest, all_of_them, name_of);
INSTANTIATE_TEST_SUITE_P(, PriorityLaunchTest, all_of_them, name_of);
INSTANTIATE_TEST_SUITE_P(, RefusedFunctionTest, all_of_them, name_of);
INSTANTIATE_TEST_SUITE_P(, NoTemporariesTest, all_of_them, name_of);

}  // namespace
}  // namespace anabranch::cuda
