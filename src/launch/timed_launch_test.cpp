// SPDX-License-Identifier: Apache-2.0
// Times inside launches of captured steps, on the simulated driver.
#include "anabranch/timed_recording.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "anabranch/launch.h"
#include "base/inside.h"
#include "device/cuda/cuda_device.h"
#include "record/cuda/cuda_recording_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::kBytes;
using testing::kWords;
using ::testing::Not;
using ::testing::SizeIs;

// With device code copies and fills are kernels; without it they are the driver's nodes.
class TimedLaunchTest : public testing::CudaStepTest, public ::testing::WithParamInterface<bool> {
 protected:
  TimedLaunchTest() {
    if (GetParam()) image_ = sim::add_device_code(*sim);
  }
  Device open() {
    return detail::Inside::make<Device>(
        *CudaDevice::make(*d, 0, image_.empty() ? nullptr : image_.c_str()));
  }
  std::optional<CapturedRecording> make(const Device& device, const CaptureNotes* notes = nullptr,
                                        std::uint32_t lanes = 1) {
    const auto first = CaptureSnapshot::make(device, CudaGraph(captures[0].graph));
    const auto second = CaptureSnapshot::make(device, CudaGraph(captures[1].graph));
    const auto step = CapturedStep::discover(device, *first, *second, blocks(), notes);
    EXPECT_TRUE(step.ok()) << (step.ok() ? "" : step.error().message());
    auto made = step->record({.lanes = lanes});
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    destroy_captures();
    return made.ok() ? std::optional(*std::move(made)) : std::nullopt;
  }
  // x, y and the arena.
  std::vector<std::uint64_t> fresh(const CapturedRecording& recording) {
    std::vector<std::uint64_t> memory{allocate(kBytes), allocate(kBytes)};
    for (const std::uint64_t bytes : recording.parts()) {
      memory.push_back(allocate(bytes + 512) / 512 * 512 + 512);
    }
    return memory;
  }
  std::vector<NodeTime> times_of(const TimedRecording& timed,
                                 const std::vector<std::uint64_t>& memory) {
    const Status queued = queue_timed_launch(timed, memory, CudaStream(work_stream));
    EXPECT_TRUE(queued.ok()) << queued.message();
    EXPECT_CU(d->cuStreamSynchronize(work_stream));
    auto times = timed.times();
    EXPECT_TRUE(times.ok()) << (times.ok() ? "" : times.error().message());
    return times.ok() ? *times : std::vector<NodeTime>();
  }
  TimedRecording twin_of(const CapturedRecording& recording,
                         const std::vector<std::uint64_t>& memory) {
    auto timed = TimedRecording::make(recording, memory);
    EXPECT_TRUE(timed.ok()) << (timed.ok() ? "" : timed.error().message());
    return *std::move(timed);
  }

 private:
  std::string image_;
};

INSTANTIATE_TEST_SUITE_P(, TimedLaunchTest, ::testing::Bool(),
                         [](const auto& has_code) -> std::string {
                           return has_code.param ? "WithDeviceCode" : "FromTheHost";
                         });

TEST_P(TimedLaunchTest, EachNodeHasItsTimeAndTheWorkIsTheSame) {
  const Device device = open();
  const auto recording = make(device);
  ASSERT_TRUE(recording);
  const TimedRecording timed = twin_of(*recording, fresh(*recording));
  for (std::uint32_t round = 0; round < 3; ++round) {
    const auto memory = fresh(*recording);
    put_words(memory[0], round);
    const auto times = times_of(timed, memory);
    expect_result(memory[1], round);
    ASSERT_THAT(times, SizeIs(kNodes));
    for (std::size_t i = 0; i < times.size(); ++i) {
      EXPECT_GE(times[i].end_ns - times[i].begin_ns, 1000u) << i;
      EXPECT_EQ(times[i].begin_ns, i > 0 ? times[i - 1].end_ns : 0) << i;
    }
  }
}

TEST_P(TimedLaunchTest, LaunchesThroughTheTwinAndThoseBesideItAreServedInTurn) {
  const Device device = open();
  const auto recording = make(device);
  ASSERT_TRUE(recording);
  const auto memory = fresh(*recording);
  const TimedRecording timed = twin_of(*recording, memory);
  for (std::uint32_t round = 0; round < 6; ++round) {
    put_words(memory[0], round);
    if (round % 2 == 0) {
      EXPECT_THAT(times_of(timed, memory), SizeIs(kNodes));
    } else {
      EXPECT_TRUE(queue_launch(*recording, memory, CudaStream(work_stream)).ok());
      EXPECT_CU(d->cuStreamSynchronize(work_stream));
    }
    expect_result(memory[1], round);
  }
  const CaptureCounts counts = recording->counts();
  EXPECT_EQ(counts.launched_unchanged + counts.launched_from_host + counts.launched_from_device,
            6u);
}

TEST_P(TimedLaunchTest, LaunchesOfTheRecordingItselfHaveNoEvents) {
  const Device device = open();
  const auto recording = make(device);
  ASSERT_TRUE(recording);
  const auto memory = fresh(*recording);
  const TimedRecording timed = twin_of(*recording, memory);
  const std::size_t before = sim->calls().size();
  ASSERT_TRUE(queue_launch(*recording, memory, CudaStream(work_stream)).ok());
  const auto calls = sim->calls();
  const std::vector<std::string> since(calls.begin() + static_cast<std::ptrdiff_t>(before),
                                       calls.end());
  EXPECT_THAT(since, Contains("cuGraphLaunch"));
  EXPECT_THAT(since, Not(Contains("cuEventRecord")));
  EXPECT_THAT(since, Not(Contains("cuEventQuery")));
}

TEST_P(TimedLaunchTest, WhatHasNotEndedIsNeitherReadNorLaunchedOver) {
  const Device device = open();
  const auto recording = make(device);
  ASSERT_TRUE(recording);
  const auto memory = fresh(*recording);
  const TimedRecording timed = twin_of(*recording, memory);
  EXPECT_TRUE(timed.is_over());
  EXPECT_EQ(timed.times().error().code(), StatusCode::kBusy);
  ASSERT_TRUE(queue_timed_launch(timed, memory, CudaStream(work_stream)).ok());
  EXPECT_FALSE(timed.is_over());
  EXPECT_EQ(timed.times().error().code(), StatusCode::kBusy);
  EXPECT_EQ(queue_timed_launch(timed, memory, CudaStream(work_stream)).code(), StatusCode::kBusy);
  EXPECT_TRUE(queue_launch(*recording, memory, CudaStream(work_stream)).ok());
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  EXPECT_TRUE(timed.is_over());
  EXPECT_THAT(*timed.times(), SizeIs(kNodes));
}

TEST_P(TimedLaunchTest, ATwinThatCannotBeMadeLeavesTheRecordingAsItWas) {
  const Device device = open();
  const auto recording = make(device);
  ASSERT_TRUE(recording);
  const auto memory = fresh(*recording);
  const auto have_failed = fail_each_call([&] { return TimedRecording::make(*recording, memory); });
  for (const char* call : {"cuEventCreate", "cuGraphClone", "cuGraphNodeFindInClone",
                           "cuGraphAddEventRecordNode", "cuGraphInstantiateWithParams"}) {
    EXPECT_THAT(have_failed, Contains(call));
  }
  EXPECT_EQ(TimedRecording::make(*recording, {}).error().code(), StatusCode::kBadBinding);
  put_words(memory[0], 5);
  ASSERT_TRUE(queue_launch(*recording, memory, CudaStream(work_stream)).ok());
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  expect_result(memory[1], 5);
}

TEST_P(TimedLaunchTest, ThePlainLaunchBeforeATimedOneIsTimedWhereItIsMarked) {
  const Device device = open();
  const auto recording = make(device);
  ASSERT_TRUE(recording);
  const auto memory = fresh(*recording);
  const TimedRecording timed = twin_of(*recording, memory);
  const auto launch_marked = [&] {
    EXPECT_TRUE(timed.mark_plain(false, CudaStream(work_stream)).ok());
    EXPECT_TRUE(queue_launch(*recording, memory, CudaStream(work_stream)).ok());
    EXPECT_TRUE(timed.mark_plain(true, CudaStream(work_stream)).ok());
  };
  EXPECT_THAT(times_of(timed, memory), SizeIs(kNodes));
  EXPECT_EQ(timed.plain_times()->launch_ns, 0u);
  launch_marked();
  EXPECT_THAT(times_of(timed, memory), SizeIs(kNodes));
  EXPECT_GE(timed.plain_times()->launch_ns, kNodes * 1000u);
  EXPECT_EQ(timed.plain_times()->idle_ns, 0u);  // the second was queued behind the first
  launch_marked();
  EXPECT_CU(d->cuStreamSynchronize(work_stream));
  EXPECT_CU(d->cuEventRecord(event(), work_stream));
  const CuFunction late = noting("late", 5000);
  EXPECT_CU(launch(late, stream()));  // the device's clock goes on beside the stream
  EXPECT_CU(d->cuCtxSynchronize());
  EXPECT_THAT(times_of(timed, memory), SizeIs(kNodes));
  EXPECT_GE(timed.plain_times()->idle_ns, 5000u);
}

TEST_P(TimedLaunchTest, AddressesAreCheckedAsThoseOfOtherLaunchesAre) {
  const Device device = open();
  const auto recording = make(device);
  ASSERT_TRUE(recording);
  auto memory = fresh(*recording);
  const TimedRecording timed = twin_of(*recording, memory);
  memory[1] = memory[0];
  EXPECT_EQ(queue_timed_launch(timed, memory, CudaStream(work_stream)).code(),
            StatusCode::kBadBinding);
  EXPECT_TRUE(timed.is_over());
}

// x is read by three kernels, noted each, of which the last one's result is y.
class TimedLanesTest : public TimedLaunchTest {
 protected:
  TimedLanesTest() {
    destroy_captures();
    for (int c : {1, 0}) {  // marks are of the first capture
      marks_.emplace(*anabranch::CaptureMarks::make(device_));
      works_.clear();
      uses_.clear();
      captures[c].graph = capture_noted(captures[c].memory);
    }
    notes_ = {&*marks_, false, static_cast<std::uint32_t>(kinds.size()), works_, uses_};
  }
  Device device_ = open();
  std::optional<anabranch::CaptureMarks> marks_;
  CaptureNotes notes_;

 private:
  CuGraph capture_noted(const std::vector<CaptureAllocation>& memory) {
    EXPECT_CU(d->cuStreamBeginCapture(work_stream, CuCaptureMode::kThreadLocal));
    for (const auto& [in, out] : {std::pair{0, 2}, {0, 3}, {2, 1}}) {
      EXPECT_CU(add_one(work_stream, memory[in].address, memory[out].address, kWords));
      uses_.insert(uses_.end(), {{memory[in].address, false}, {memory[out].address, true}});
      EXPECT_TRUE(*marks_->has_new(CudaStream(work_stream)));
      works_.push_back({*marks_->mark(CudaStream(work_stream), 0), 2});
      EXPECT_FALSE(*marks_->has_new(CudaStream(work_stream)));
    }
    const CuGraph graph = end_capture(work_stream);
    EXPECT_FALSE(*marks_->has_new(CudaStream(work_stream)));
    return graph;
  }
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
};

INSTANTIATE_TEST_SUITE_P(, TimedLanesTest, ::testing::Values(true),
                         [](const auto&) -> std::string { return "WithDeviceCode"; });

TEST_P(TimedLanesTest, NodesSideBySideBeginTogetherAndTellTheirLanesAndMarks) {
  const auto recording = make(device_, &notes_, 2);
  ASSERT_TRUE(recording);
  const auto nodes = list_nodes(*recording);
  ASSERT_THAT(nodes, SizeIs(3));
  EXPECT_EQ(nodes[0].kind, "kernel");
  EXPECT_EQ(nodes[0].name, "add_one");
  EXPECT_NE(nodes[0].lane, nodes[1].lane);
  EXPECT_THAT(nodes[2].after, ElementsAre(0));
  EXPECT_THAT(list_marks(*recording, *marks_), ElementsAre(0, 1, 2));
  const auto memory = fresh(*recording);
  const auto times = times_of(twin_of(*recording, memory), memory);
  ASSERT_THAT(times, SizeIs(3));
  EXPECT_EQ(times[0].begin_ns, 0u);
  EXPECT_EQ(times[1].begin_ns, 0u);
  EXPECT_EQ(times[2].begin_ns, times[0].end_ns);
}

TEST_P(TimedLanesTest, NodesOfOtherMarksTellThatThereIsNone) {
  const auto recording = make(device_, &notes_);
  ASSERT_TRUE(recording);
  const auto others = anabranch::CaptureMarks::make(device_);
  EXPECT_THAT(list_marks(*recording, *others), Each(0u));
}

}  // namespace
}  // namespace anabranch::cuda
