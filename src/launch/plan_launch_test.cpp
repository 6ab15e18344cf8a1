// SPDX-License-Identifier: Apache-2.0
// Launching plans on CUDA through the public front, on the simulated driver.
#include "launch/plan_launch.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>

#include "launch/sim_memory_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::plan_of;
using testing::Regions;
using testing::SlotMemory;

constexpr std::uint64_t kWords = 16;

// y = x + 2, by way of a temporary and a side stream.
class PlanLaunchTest : public ::testing::Test {
 protected:
  explicit PlanLaunchTest(const sim::SimOptions& options = {.jitter_ns = 3000}) : bench(options) {
    const StreamId side = builder.add_stream("side");
    const BufferId x = builder.add_buffer({"x", Role::kInput, 8 * kWords, 8});
    const BufferId y = builder.add_buffer({"y", Role::kOutput, 8 * kWords, 8});
    const BufferId t = builder.add_buffer({"t", Role::kTemporary, 8 * kWords, 8});
    builder.compute(side, "up", {builder.read(x), builder.write(t)});
    builder.compute(kAmbient, "up", {builder.read(t), builder.write(y)});
    regions.add("up", [](const RegionCall& call) {
      const auto* from = static_cast<const std::uint64_t*>(call.buffers[0]);
      auto* to = static_cast<std::uint64_t*>(call.buffers[1]);
      for (std::uint64_t i = 0; i < kWords; ++i) to[i] = from[i] + 1;
      return 0;
    });
  }
  Recording record() {
    const Plan plan = plan_of(builder);
    return must(anabranch::record(plan, device, bench.kernels_of(plan, regions.table())));
  }
  CuStream stream() {
    CuStream made = nullptr;
    EXPECT_EQ(d.cuStreamCreateWithPriority(&made, kStreamNonBlocking, 0), CuResult::kSuccess);
    streams_.push_back(made);
    return made;
  }
  // Memory of one launch, with what it should make of it.
  struct Job {
    Job(const Recording& recording, testing::MemorySource& source, std::uint64_t word)
        : memory(recording.plan(), source), first(word) {
      for (std::uint64_t i = 0; i < kWords; ++i) words(0)[i] = first + i;
    }
    std::uint64_t* words(std::size_t slot) {
      return reinterpret_cast<std::uint64_t*>(memory.bytes(slot).data());
    }
    bool is_right(std::uint64_t more = 0) {
      for (std::uint64_t i = 0; i < kWords; ++i) {
        if (words(1)[i] != first + i + 2 + more) return false;
      }
      return memory.fences_stand();
    }
    SlotMemory memory;
    std::uint64_t first;
  };
  std::size_t count_of(std::string_view call) {
    const auto calls = bench.sim().calls();
    return static_cast<std::size_t>(std::count(calls.begin(), calls.end(), call));
  }
  ~PlanLaunchTest() override {
    for (const CuStream made : streams_) d.cuStreamDestroy(made);
  }

  testing::SimBench bench;
  const Driver& d = bench.driver();
  testing::SimMemory source{bench};
  Device device = bench.make_device();
  ProgramBuilder builder;
  Regions regions;

 private:
  std::vector<CuStream> streams_;
};

TEST_F(PlanLaunchTest, ATicketIsDoneWhenItsLaunchHasEndedAndNotBefore) {
  const Recording recording = record();
  Job first(recording, source, 10), second(recording, source, 20);
  const CuStream on = stream();
  const Ticket early = must(launch(recording, first.memory.bindings(), CudaStream(on)));
  const Ticket late = must(launch(recording, second.memory.bindings(), CudaStream(on)));
  EXPECT_FALSE(early.done());
  EXPECT_TRUE(early.wait().ok());
  EXPECT_TRUE(early.done());
  EXPECT_TRUE(first.is_right());
  EXPECT_FALSE(late.done());
  while (!late.done()) {
  }
  EXPECT_TRUE(second.is_right());
}

TEST_F(PlanLaunchTest, ATicketMayBeDroppedOrOutliveTheRecording) {
  std::optional<Recording> recording = record();
  Job job(*recording, source, 1), other(*recording, source, 2);
  must(launch(*recording, job.memory.bindings(), CudaStream(stream())));
  const Ticket ticket = must(launch(*recording, other.memory.bindings(), CudaStream(stream())));
  recording.reset();  // waits for both
  EXPECT_TRUE(job.is_right());
  EXPECT_TRUE(other.is_right());
  EXPECT_TRUE(ticket.done());
  EXPECT_TRUE(ticket.wait().ok());
}

TEST_F(PlanLaunchTest, LaunchesInFlightOnSeveralStreamsShareNoArena) {
  const BufferId y{1};
  for (std::uint64_t i = 0; i < 30; ++i) {  // so many that the device sets them
    const BufferId more = builder.add_buffer({"more", Role::kTemporary, 8 * kWords, 8});
    builder.compute(kAmbient, "up", {builder.read(y), builder.write(more)});
    builder.compute(kAmbient, "back", {builder.read(more), builder.write(y)});
  }
  regions.add("back", [](const RegionCall& call) {
    std::memcpy(call.buffers[1], call.buffers[0], 8 * kWords);
    return 0;
  });
  const Recording recording = record();
  const std::array<CuStream, 4> streams{stream(), stream(), stream(), stream()};
  std::deque<Job> jobs;
  for (std::uint64_t i = 0; i < streams.size(); ++i) jobs.emplace_back(recording, source, 100 * i);
  const auto go = [&](std::size_t i) {
    must(launch(recording, jobs[i].memory.bindings(), CudaStream(streams[i])));
  };
  go(0);
  const std::size_t before = count_of("cuMemAlloc");
  for (int round = 0; round < 20; ++round) {
    for (int settle = 0; settle < 12; ++settle) go(0);
    for (std::size_t i = 1; i < jobs.size(); ++i) go(i);
    bench.sim().run_until_idle();
    for (Job& job : jobs) ASSERT_TRUE(job.is_right(30)) << job.first;
  }
  EXPECT_EQ(count_of("cuMemAlloc") - before, kMostInFlight - 1);
}

TEST_F(PlanLaunchTest, OneStreamNeedsOneArenaAndWarmLaunchesMakeNothing) {
  const Recording recording = record();
  std::deque<Job> jobs;
  for (std::uint64_t i = 0; i < 20; ++i) jobs.emplace_back(recording, source, 100 * i);
  const CuStream on = stream();
  for (int warm = 0; warm < 2; ++warm)
    must(launch(recording, jobs[0].memory.bindings(), CudaStream(on)));
  const std::size_t memory = count_of("cuMemAlloc"), events = count_of("cuEventCreate");
  for (Job& job : jobs) must(launch(recording, job.memory.bindings(), CudaStream(on)));
  EXPECT_EQ(count_of("cuMemAlloc"), memory);
  EXPECT_EQ(count_of("cuEventCreate"), events);
  bench.sim().run_until_idle();
  for (Job& job : jobs) EXPECT_TRUE(job.is_right());
  EXPECT_THAT(dump_recording(recording),
              HasSubstr("4 addresses in 2 nodes, an arena of 128 bytes"));
}

// Two addresses for a kernel that answers its words and two.
struct TableRegion {
  const Driver& d;
  CuFunction kernel = nullptr;
  void* pinned = nullptr;

  static std::int32_t run(void* self, const RegionCall* call) {
    const auto& [d, kernel, pinned] = *static_cast<const TableRegion*>(self);
    const auto on = stream_of(call->stream);
    auto table = reinterpret_cast<CuDevicePtr>(call->buffers[2]);
    std::copy_n(call->buffers, 2, static_cast<void**>(pinned));
    EXPECT_EQ(d.cuMemcpyHtoDAsync(table, pinned, 16, on), CuResult::kSuccess);
    void* params[] = {&table};
    return static_cast<std::int32_t>(
        d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, on, params, nullptr));
  }
  static void add_two(const sim::KernelCall& call) {
    const auto* table = call.memory<CuDevicePtr>(call.param<CuDevicePtr>(0), 2);
    if (!table) return;
    const auto* from = call.memory<std::uint64_t>(table[0], kWords);
    auto* to = call.memory<std::uint64_t>(table[1], kWords);
    for (std::uint64_t i = 0; from && to && i < kWords; ++i) to[i] = from[i] + 2;
  }
};

// Both captures of it bring their addresses through the same memory.
TEST_F(PlanLaunchTest, ARegionMayBringATableThroughPinnedMemoryOfItsOwn) {
  bench.sim().add_kernel(
      {.name = "by_table", .params = sim::layout_of({8}), .run = TableRegion::add_two});
  CuModule module = nullptr;
  TableRegion region{d};
  d.cuModuleLoadData(&module, sim::SimDriver::make_image({"by_table"}).c_str());
  d.cuModuleGetFunction(&region.kernel, module, "by_table");
  d.cuMemHostAlloc(&region.pinned, 16, 0);
  {
    ProgramBuilder steps;
    const BufferId x = steps.add_buffer({"x", Role::kInput, 8 * kWords, 8});
    const BufferId y = steps.add_buffer({"y", Role::kOutput, 8 * kWords, 8});
    const BufferId table = steps.add_buffer({"table", Role::kTemporary, 16, 8});
    steps.compute(kAmbient, "by table", {steps.read(x), steps.write(y), steps.write(table)});
    const RegionTable by_table{{"by table", {TableRegion::run, &region}}};
    const Recording recording = must(anabranch::record(plan_of(steps), device, by_table));
    std::deque<Job> jobs;
    for (std::uint64_t i = 0; i < 5; ++i) {
      Job& job = jobs.emplace_back(recording, source, 10 * i);
      EXPECT_TRUE(must(launch(recording, job.memory.bindings(), CudaStream(stream()))).wait().ok());
      EXPECT_TRUE(job.is_right());
    }
  }
  d.cuMemFreeHost(region.pinned);
  d.cuModuleUnload(module);
}

TEST_F(PlanLaunchTest, ThreadsMayLaunchOneRecording) {
  const Recording recording = record();
  std::deque<Job> jobs;
  std::vector<CuStream> streams;
  for (std::uint64_t i = 0; i < 6; ++i) {
    jobs.emplace_back(recording, source, 100 * i);
    streams.push_back(stream());
  }
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < jobs.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) {
        EXPECT_TRUE(
            must(launch(recording, jobs[t].memory.bindings(), CudaStream(streams[t]))).wait().ok());
      }
    });
  }
  threads.clear();
  for (Job& job : jobs) EXPECT_TRUE(job.is_right());
}

TEST_F(PlanLaunchTest, WhenAnyCallFailsItIsNamedAndTheNextLaunchIsRight) {
  for (std::uint64_t n = 1;; ++n) {
    const Recording recording = record();
    Job first(recording, source, 10), second(recording, source, 20), third(recording, source, 30);
    const CuStream busy = stream(), other = stream();
    must(launch(recording, first.memory.bindings(), CudaStream(busy)));
    bench.sim().fail_call(n, CuResult::kOutOfMemory);
    const auto failing = launch(recording, second.memory.bindings(), CudaStream(other));
    const std::string failed = bench.sim().failed_call();
    bench.sim().fail_call(0, CuResult::kSuccess);
    if (failed.empty()) {
      EXPECT_TRUE(failing.ok());
      EXPECT_GT(n, 6u);
      return;
    }
    if (failed != "cuEventQuery") {  // asked only to choose what to lease
      ASSERT_FALSE(failing.ok()) << failed;
      EXPECT_EQ(failing.error().code(), StatusCode::kLaunchDriverFailed);
      EXPECT_THAT(failing.error().message(), HasSubstr(failed));
    }
    EXPECT_TRUE(must(launch(recording, third.memory.bindings(), CudaStream(other))).wait().ok())
        << failed;
    EXPECT_TRUE(third.is_right()) << failed;
    d.cuStreamSynchronize(busy);
    EXPECT_TRUE(first.is_right()) << failed;
  }
}

class TwoDevicesTest : public PlanLaunchTest {
 protected:
  TwoDevicesTest() : PlanLaunchTest({.device_count = 2}) {}
};

TEST_F(TwoDevicesTest, TheCallersContextStaysCurrent) {
  const Recording recording = record();
  Job job(recording, source, 5);
  const CuStream on = stream();
  CuContext other = nullptr, current = nullptr;
  d.cuDevicePrimaryCtxRetain(&other, 1);
  d.cuCtxSetCurrent(other);
  const Ticket ticket = must(launch(recording, job.memory.bindings(), CudaStream(on)));
  EXPECT_TRUE(ticket.wait().ok());
  record();
  d.cuCtxGetCurrent(&current);
  EXPECT_EQ(current, other);
  EXPECT_TRUE(job.is_right());
  d.cuDevicePrimaryCtxRelease(1);
}

TEST_F(PlanLaunchTest, ALostContextIsSaidByLaunchAndTicket) {
  const Recording recording = record();
  Job job(recording, source, 5);
  const Ticket ticket = must(launch(recording, job.memory.bindings(), CudaStream(stream())));
  bench.sim().fail_call(1, CuResult::kIllegalAddress, "cuEventSynchronize");
  const Status ended = ticket.wait();
  EXPECT_EQ(ended.code(), StatusCode::kLaunchDriverFailed);
  EXPECT_THAT(ended.message(), HasSubstr("the context is lost"));
  EXPECT_TRUE(ticket.done());
  const auto again = launch(recording, job.memory.bindings(), nullptr);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), StatusCode::kLaunchDriverFailed);
}

}  // namespace
}  // namespace anabranch::cuda
