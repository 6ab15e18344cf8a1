// SPDX-License-Identifier: Apache-2.0
// Making recordings of captured steps, on the simulated driver.
#include "record/cuda/discover.h"

#include <gmock/gmock.h>

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "record/cuda/cuda_recording_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kBytes;

using CudaRecordingTest = testing::CudaStepTest;

TEST_F(CudaRecordingTest, GivenMemoryBecomesSlotsAndTheRestLiesInTheArena) {
  const auto recording = record();
  ASSERT_EQ(recording->slots().size(), 2u);
  EXPECT_EQ(recording->slots()[0].unit, 0u);
  EXPECT_EQ(recording->slots()[1].bytes, kBytes);
  // Three temporaries, of which never more than two live at once; places are aligned to 512.
  EXPECT_EQ(recording->arena().size_bytes, 512 + kBytes);
  EXPECT_EQ(recording->arena().naive_bytes, 2 * 512 + kBytes);
  EXPECT_EQ(recording->sites().size(), 11u);
}

TEST_F(CudaRecordingTest, TheArenaIsOnePartOrOneForEachPlace) {
  EXPECT_THAT(record()->part_bytes(), ElementsAre(512 + kBytes));
  const auto recording = record({.least_part_bytes = 512});
  EXPECT_THAT(recording->part_bytes(), ElementsAre(kBytes, kBytes));
  EXPECT_EQ(recording->arena().size_bytes, 512 + kBytes);
  std::set<std::uint32_t> named;
  for (const PlacedSite& site : recording->sites()) {
    named.insert(site.source);
    EXPECT_EQ(site.shift, 0u);
  }
  EXPECT_THAT(named, ElementsAre(0, 1, 2, 3));
}

TEST_F(CudaRecordingTest, ASlotAsksForTheAlignmentThatBothCapturesHad) {
  std::uint64_t both = 0;
  for (const auto& captured : captures) both |= captured.memory[0].address;
  const std::uint64_t had = std::min<std::uint64_t>(both & (~both + 1), 512);
  EXPECT_EQ(record()->slots()[0].alignment, had);
  EXPECT_GE(had, 256u);
}

TEST_F(CudaRecordingTest, TheCapturesMayBeDestroyedAfterwards) {
  const auto recording = record();
  destroy_captures();
  const auto set = recording->executables()[0]->set_addresses(
      std::vector<std::uint64_t>{allocate(kBytes), allocate(kBytes), allocate(4 * kBytes)});
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(*set, kNodes);
}

TEST_F(CudaRecordingTest, ARecordingFreesAllItMade) {
  const DeviceCode* const code = load_device_code();
  const std::size_t loaded = sim->live_objects();
  record({.executables = 3, .device_code = code}).reset();
  EXPECT_EQ(sim->live_objects(), loaded);
}

class FailingCallsTest : public CudaRecordingTest, public ::testing::WithParamInterface<bool> {};

TEST_P(FailingCallsTest, LeaveNothingBehind) {
  CudaRecordOptions options{.executables = 2, .device_code = load_device_code()};
  if (GetParam()) options.launchable_updating = options.launchable_settled = 0;
  const auto have_failed = fail_each_call([&] { return try_record(options); });
  EXPECT_GE(have_failed.size(), 60u);
  // What puts kernels in place of copies and fills.
  for (const char* call : {"cuCtxGetDevice", "cuPointerGetAttributes", "cuGraphAddKernelNode",
                           "cuGraphAddDependencies", "cuGraphDestroyNode"}) {
    EXPECT_TRUE(have_failed.contains(call)) << call;
  }
}
INSTANTIATE_TEST_SUITE_P(, FailingCallsTest, ::testing::Bool(),
                         [](const auto& is_launchable) -> std::string {
                           return is_launchable.param ? "Launchable" : "Plain";
                         });

// y = x + 2 by way of one temporary, and two other temporaries beside it, all noted.
class NotedStepTest : public testing::CudaStepTest {
 protected:
  NotedStepTest() { capture_noted(Noted::kFourWorks); }
  enum class Noted { kFourWorks, kOneWork, kOneIndependentWork };
  void capture_noted(Noted noted) {
    destroy_captures();
    for (Captured& captured : captures) captured.graph = capture_noted(captured.memory, noted);
  }
  Result<std::shared_ptr<CudaRecording>> try_noted(const DeviceCode* code, std::uint32_t lanes) {
    CudaRecordOptions options;
    options.device_code = code;
    options.lanes = lanes;
    return record_captures(*d, {captures[0].graph, captures[0].memory},
                           {captures[1].graph, captures[1].memory, nullptr, &notes_}, kinds,
                           options);
  }

  // Of the four nodes only the last waits: it reads what the first writes.
  static void expect_branches(const CudaRecording& recording) {
    EXPECT_EQ(recording.step_counts().lanes, 3u);
    const GraphImage& image = recording.image();
    ASSERT_EQ(image.edges.size(), 1u);
    EXPECT_EQ(image.edges[0].from, 0u);
    EXPECT_EQ(image.edges[0].to, 3u);
  }

 private:
  CuGraph capture_noted(const std::vector<CaptureAllocation>& memory, Noted noted) {
    marks_.emplace(*d);
    works_.clear();
    uses_.clear();
    EXPECT_CU(d->cuStreamBeginCapture(work_stream, CuCaptureMode::kThreadLocal));
    for (const auto& [in, out] : {std::pair{0, 2}, {0, 3}, {0, 4}, {2, 1}}) {
      EXPECT_CU(add_one(work_stream, memory[in].address, memory[out].address, kWords));
      uses_.insert(uses_.end(), {{memory[in].address, false}, {memory[out].address, true}});
      if (noted == Noted::kFourWorks) works_.push_back({*marks_->mark(work_stream, 0), 2});
    }
    if (noted != Noted::kFourWorks) {
      works_.push_back(
          {*marks_->mark(work_stream, 0), 8, false, noted == Noted::kOneIndependentWork});
    }
    notes_ = {&*marks_, static_cast<std::uint32_t>(kinds.size()), works_, uses_};
    return end_capture(work_stream);
  }
  static constexpr std::uint32_t kWords = testing::kWords;
  std::optional<CaptureMarks> marks_;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
  Notes notes_;
};

TEST_F(NotedStepTest, BranchesHaveLanesOfTheirOwn) {
  const auto recording = try_noted(load_device_code(), 3);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  expect_branches(**recording);
  // Temporaries that live side by side are apart.
  EXPECT_EQ((*recording)->arena().size_bytes, 3 * 512u);
}

TEST_F(NotedStepTest, TheNodesOfOneWorkRunSideBySideIfTheyAreIndependent) {
  capture_noted(Noted::kOneWork);
  const auto in_order = try_noted(load_device_code(), 3);
  ASSERT_TRUE(in_order.ok()) << in_order.error().message();
  EXPECT_EQ((*in_order)->step_counts().lanes, 1u);
  capture_noted(Noted::kOneIndependentWork);
  const auto recording = try_noted(load_device_code(), 3);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  expect_branches(**recording);
}

TEST_F(NotedStepTest, OneLaneKeepsTheCapturedOrder) {
  const auto recording = try_noted(nullptr, 1);
  ASSERT_TRUE(recording.ok());
  EXPECT_EQ((*recording)->step_counts().lanes, 1u);
  EXPECT_EQ((*recording)->image().edges.size(), 3u);
}

TEST_F(NotedStepTest, FailingCallsLeaveNothingBehind) {
  const DeviceCode* const code = load_device_code();
  const auto have_failed = fail_each_call([&] { return try_noted(code, 3); });
  EXPECT_TRUE(have_failed.contains("cuGraphRemoveDependencies"));
}

// A step over two streams. The side stream is given x, joins at the end, and what `queue` adds lies
// between; some of it is noted.
class TwoStreamsTest : public testing::CudaStepTest {
 protected:
  enum class Noted { kNo, kYes };
  static constexpr std::uint64_t kHalf = kBytes / 2;
  static constexpr int kX = 0, kY = 1;  // given; 2, 3 and 4 are the step's own

  using Queue = std::function<void()>;
  void capture_both(const Queue& queue) {
    destroy_captures();
    for (Captured& captured : captures) {
      marks_.emplace(*d);
      works_.clear();
      uses_.clear();
      for (CaptureAllocation& memory : captured.memory) memory.address = allocate(kBytes);
      memory_ = captured.memory;
      captured.graph = capture_on_two_streams(queue);
      for (const CaptureAllocation& memory : memory_) EXPECT_CU(d->cuMemFree(memory.address));
    }
    notes_ = {&*marks_, 2, works_, uses_};
  }
  Result<std::shared_ptr<CudaRecording>> try_branched(std::uint32_t lanes,
                                                      const DeviceCode* code = nullptr) {
    CudaRecordOptions options;
    options.device_code = code;
    options.lanes = lanes;
    return record_captures(*d, {captures[0].graph, captures[0].memory},
                           {captures[1].graph, captures[1].memory, nullptr, &notes_}, kinds,
                           options);
  }

  CuStream main() const { return work_stream; }
  CuStream side() const { return side_; }
  void add(CuStream on, int from, int to, Noted noted = Noted::kYes) {
    EXPECT_CU(add_one(on, at(from), at(to), testing::kWords));
    if (noted == Noted::kNo) {
      (void)*marks_->mark(on, 3);
    } else {
      uses_.insert(uses_.end(), {{at(from), false}, {at(to), true}});
      works_.push_back({*marks_->mark(on, 3), 2});
    }
  }
  // As NCCL queues one for torch: between two events that work outside of the graph knows, and the
  // current stream waits for it.
  void collective(CuEvent outside, int from, int to) {
    (void)*marks_->mark(main(), 3);
    wait(side(), main());
    EXPECT_CU(d->cuStreamWaitEvent(side(), outside, kEventWaitExternal));
    EXPECT_CU(add_one(side(), at(from), at(to), testing::kWords));
    EXPECT_CU(d->cuEventRecordWithFlags(outside, side(), kEventRecordExternal));
    uses_.insert(uses_.end(), {{at(from), false}, {at(to), true}});
    works_.push_back({*marks_->mark(main(), 3), 2, false, false, true});
    wait(main(), side());
  }
  void copy(CuStream on, int from, int to, std::uint64_t begin, std::uint64_t bytes) {
    EXPECT_CU(d->cuMemcpyDtoDAsync(at(to) + begin, at(from) + begin, bytes, on));
    (void)*marks_->mark(on, 3);
  }
  void wait(CuStream on, CuStream behind) {
    const CuEvent done = event();
    EXPECT_CU(d->cuEventRecord(done, behind));
    EXPECT_CU(d->cuStreamWaitEvent(on, done, 0));
  }
  // At new addresses; answers y's. x counts from there.
  CuDevicePtr launch_with_words_from(const CudaRecording& recording, std::uint32_t first) {
    const CuDevicePtr x = allocate(kBytes), y = allocate(kBytes);
    put_words(x, first);
    std::vector<std::uint64_t> addresses{x, y};
    for (const std::uint64_t bytes : recording.part_bytes()) addresses.push_back(allocate(bytes));
    CudaExec& exec = *recording.executables()[0];
    EXPECT_TRUE(exec.set_addresses(addresses).ok());
    EXPECT_TRUE(exec.launch(main()).ok());
    EXPECT_CU(d->cuStreamSynchronize(main()));
    EXPECT_THAT(sim->violations(), ::testing::IsEmpty());
    return y;
  }

 private:
  CuDevicePtr at(int i) const { return memory_[static_cast<std::size_t>(i)].address; }
  CuGraph capture_on_two_streams(const Queue& queue) {
    EXPECT_CU(d->cuStreamBeginCapture(main(), CuCaptureMode::kThreadLocal));
    (void)*marks_->mark(main(), 3);
    wait(side(), main());
    queue();
    wait(main(), side());
    return end_capture(main());
  }
  std::vector<CaptureAllocation> memory_;
  CuStream side_ = stream();
  std::optional<CaptureMarks> marks_;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
  Notes notes_;
};

TEST_F(TwoStreamsTest, CopiesIntoPartsOfOneBufferThatWereNeverOrderedKeepNobodyFromLanes) {
  capture_both([&] {  // as FSDP brings its parameters together
    add(main(), kX, 2);
    add(main(), kX, 3);
    copy(side(), kX, 4, kHalf, kHalf);
    copy(main(), 2, 4, 0, kHalf);
    wait(main(), side());
    add(main(), 4, kY);
  });
  const DeviceCode* const code = load_device_code();
  const auto recording = try_branched(3, code);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  EXPECT_GT((*recording)->step_counts().lanes, 1u);
  const auto as_captured = try_branched(1, code);
  ASSERT_TRUE(as_captured.ok()) << as_captured.error().message();
  EXPECT_EQ((*as_captured)->step_counts().lanes, 1u);
  EXPECT_EQ((*as_captured)->step_counts().captured_lanes, 2u);
  const CuDevicePtr y = launch_with_words_from(**recording, 100);
  const auto words = get_words(y);
  for (std::uint32_t i = 0; i < words.size(); ++i) {
    ASSERT_EQ(words[i], 100 + i + (i < words.size() / 2 ? 2 : 1)) << i;
  }
}

TEST_F(TwoStreamsTest, CollectivesWithTheirEventsKeepTheirOrderAndLeaveKernelsAlone) {
  const CuEvent outside = event();
  capture_both([&] {  // two layers, each with what it gathers before it
    collective(outside, kX, 2);
    add(main(), 2, 3);
    collective(outside, kX, 4);
    add(main(), 4, kY);
  });
  const auto recording = try_branched(2);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (const EdgeImage& edge : (*recording)->image().edges) edges.emplace_back(edge.from, edge.to);
  const std::pair<std::uint32_t, std::uint32_t> in_turn[] = {{0, 1},
                                                             {1, 2},
                                                             {2, 4},
                                                             {4, 5},
                                                             {5, 6}},
                                                layers[] = {{1, 3}, {5, 7}};
  for (const auto& edge : in_turn) EXPECT_THAT(edges, ::testing::Contains(edge));
  for (const auto& edge : layers) EXPECT_THAT(edges, ::testing::Contains(edge));
  EXPECT_EQ(edges.size(), 7u);
  const auto words = get_words(launch_with_words_from(**recording, 100));
  for (std::uint32_t i = 0; i < words.size(); ++i) ASSERT_EQ(words[i], 102 + i) << i;
}

TEST_F(TwoStreamsTest, CopiesIntoPartsOfOneBufferThatWereCapturedInOrderNeedNone) {
  capture_both([&] {
    copy(main(), kX, 4, 0, kHalf);
    copy(main(), kX, 4, kHalf, kHalf);
    add(main(), 4, kY);
  });
  const DeviceCode* const code = load_device_code();
  const auto recording = try_branched(2, code);
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  const auto& edges = (*recording)->image().edges;
  ASSERT_EQ(edges.size(), 2u);
  EXPECT_EQ(edges[0].from, 0u);
  EXPECT_EQ(edges[1].from, 1u);
  const CuDevicePtr y = launch_with_words_from(**recording, 100);
  const auto words = get_words(y);
  for (std::uint32_t i = 0; i < words.size(); ++i) ASSERT_EQ(words[i], 101 + i);
}

TEST_F(TwoStreamsTest, AWaitThatTheStepForgotIsRefusedWithBothKernelsNamed) {
  for (const bool waits : {false, true}) {
    capture_both([&] {
      add(main(), kX, 2);
      if (waits) wait(side(), main());
      add(side(), 2, 3);
      wait(main(), side());
      add(main(), 3, kY);
    });
    for (const std::uint32_t lanes : {1u, 3u}) {
      const auto recording = try_branched(lanes);
      ASSERT_EQ(recording.ok(), waits) << recording.error().message();
      if (waits) continue;
      EXPECT_EQ(recording.error().code(), StatusCode::kRace);
      EXPECT_THAT(recording.error().message(),
                  AllOf(HasSubstr("kernel 0 'add_one' writes what kernel 1 'add_one' reads"),
                        HasSubstr("wait_stream")));
    }
  }
}

TEST_F(TwoStreamsTest, CopiesThatMeetNeedNoNotesToBeRefused) {
  for (const std::uint64_t begin : {kHalf, kHalf - 4}) {
    capture_both([&] {
      copy(main(), kX, 4, 0, kHalf);
      copy(side(), kX, 4, begin, kHalf);
    });
    const auto recording = try_record();
    ASSERT_EQ(recording.ok(), begin == kHalf);
    if (recording.ok()) continue;
    EXPECT_EQ(recording.error().code(), StatusCode::kRace);
    EXPECT_THAT(recording.error().message(), HasSubstr("copy 0 writes what copy 1 writes"));
  }
}

TEST_F(TwoStreamsTest, AKernelThatReadsWhatACopyReplacesIsRefused) {
  for (const std::uint64_t bytes : {kBytes, kHalf}) {
    capture_both([&] {
      copy(side(), kX, kY, 0, bytes);
      add(main(), kY, 2);
    });
    EXPECT_EQ(try_branched(1).ok(), bytes == kHalf);  // it may read the other half
  }
}

TEST_F(TwoStreamsTest, OfKernelsWithoutNotesNothingIsSaid) {
  capture_both([&] {
    add(main(), kX, 2, Noted::kNo);
    add(side(), 2, 3, Noted::kNo);
    add(main(), 2, 4);
  });
  EXPECT_TRUE(try_branched(1).ok());
  EXPECT_TRUE(try_record().ok());
}

TEST_F(TwoStreamsTest, KernelsThatMayWritePartsOfGivenMemoryAreNotRefused) {
  capture_both([&] {
    add(main(), kX, kY);
    add(side(), kX, kY);
    add(side(), kY, 2);
  });
  EXPECT_TRUE(try_branched(1).ok());
}

TEST_F(CudaRecordingTest, CapturesOfTwoDifferentStepsAreRefused) {
  EXPECT_CU(d->cuStreamBeginCapture(work_stream, CuCaptureMode::kThreadLocal));
  captures[1].graph = end_capture(work_stream);
  const auto made = try_record();
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), StatusCode::kCapturesDiffer);
}

TEST_F(CudaRecordingTest, AChildGraphThatNamesMemoryOfTheStepIsTakenIn) {
  const CuDevicePtr fixed = allocate(kBytes);
  for (auto& captured : captures) add_child(captured, fixed, captured.memory[1].address);
  const auto recording = record();
  EXPECT_EQ(recording->node_count(), kNodes + 1);
  EXPECT_EQ(recording->sites().size(), 12u);
}

TEST_F(CudaRecordingTest, OneThatNamesNoneStaysAChild) {
  const CuDevicePtr fixed = allocate(kBytes);
  for (auto& captured : captures) add_child(captured, fixed, fixed);
  const auto recording = record();
  EXPECT_EQ(recording->image().nodes.back().type, CuNodeType::kGraph);
  EXPECT_EQ(recording->sites().size(), 11u);
}

TEST_F(CudaRecordingTest, ChildGraphsThatDifferAreRefused) {
  const CuDevicePtr fixed = allocate(kBytes), other = allocate(kBytes);
  add_child(captures[0], fixed, fixed);
  add_child(captures[1], fixed, other);
  const auto made = try_record();
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), StatusCode::kCapturesDiffer);
  EXPECT_THAT(made.error().message(), HasSubstr("kernel 6 'add_one' differs"));
}

class KernelHandlesTest : public testing::CudaStepTest {
 protected:
  KernelHandlesTest() : CudaStepTest({.nodes_show_kernels = true}) {}
};

TEST_F(KernelHandlesTest, NodesThatShowAKernelInsteadOfAFunctionAreRecordedToo) {
  EXPECT_EQ(record()->sites().size(), 11u);
}

}  // namespace
}  // namespace anabranch::cuda
