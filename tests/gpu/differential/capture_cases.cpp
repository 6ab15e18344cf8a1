// SPDX-License-Identifier: Apache-2.0
// What a capture takes, what breaks it, and with which code.
#include "differential.h"

namespace anabranch::cuda {
namespace {

class Capture : public Differential {
 protected:
  CuResult end_code(CuStream on) {
    CuGraph graph = nullptr;
    const CuResult result = d.cuStreamEndCapture(on, &graph);
    EXPECT_EQ(graph != nullptr, result == CuResult::kSuccess);
    if (graph) {
      EXPECT_CU(d.cuGraphDestroy(graph));
    }
    return result;
  }
  CuCaptureStatus status(CuStream on) {
    CuCaptureStatus found{};
    EXPECT_CU(d.cuStreamIsCapturing(on, &found));
    return found;
  }
  void fork(CuStream from, CuStream to) {
    const CuEvent mark = event();
    ASSERT_CU(d.cuEventRecord(mark, from));
    ASSERT_CU(d.cuStreamWaitEvent(to, mark, 0));
  }
};

TEST_F(Capture, BeginsOnNoLegacyStream) {
  EXPECT_EQ(d.cuStreamBeginCapture(nullptr, CuCaptureMode::kRelaxed),
            CuResult::kStreamCaptureUnsupported);
}

TEST_F(Capture, BeginsOnce) {
  const CuStream on = stream();
  begin(on);
  EXPECT_EQ(d.cuStreamBeginCapture(on, CuCaptureMode::kRelaxed), CuResult::kIllegalState);
  EXPECT_CU(end_code(on));
}

TEST_F(Capture, EndsOnlyWhatBegan) { EXPECT_EQ(end_code(stream()), CuResult::kIllegalState); }

TEST_F(Capture, GivesAnEmptyGraphForNoWork) {
  const CuStream on = stream();
  begin(on);
  EXPECT_TRUE(nodes_of(end(on)).empty());
}

TEST_F(Capture, SynchronizingItsStreamIs900Then901) {
  const CuStream on = stream();
  begin(on);
  EXPECT_EQ(d.cuStreamSynchronize(on), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(status(on), CuCaptureStatus::kInvalidated);
  EXPECT_EQ(launch(nothing, on), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(status(on), CuCaptureStatus::kNone);
}

TEST_F(Capture, QueryingItsStreamIs900) {
  const CuStream on = stream();
  begin(on);
  EXPECT_EQ(d.cuStreamQuery(on), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, SynchronizingTheContextIs900InEveryMode) {
  for (const auto mode :
       {CuCaptureMode::kGlobal, CuCaptureMode::kThreadLocal, CuCaptureMode::kRelaxed}) {
    const CuStream on = stream();
    begin(on, mode);
    EXPECT_EQ(d.cuCtxSynchronize(), CuResult::kStreamCaptureUnsupported);
    EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
  }
}

TEST_F(Capture, WaitingForAnotherCaptureIs902) {
  const CuStream a = stream(), b = stream();
  const CuEvent mark = event();
  begin(a);
  begin(b);
  ASSERT_CU(d.cuEventRecord(mark, a));
  EXPECT_EQ(d.cuStreamWaitEvent(b, mark, 0), CuResult::kStreamCaptureMerge);
  EXPECT_EQ(end_code(a), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(end_code(b), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, EndingOnAnotherOfItsStreamsIs903) {
  const CuStream on = stream(), side = stream();
  begin(on);
  fork(on, side);
  EXPECT_EQ(end_code(side), CuResult::kStreamCaptureUnmatched);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, WorkThatDoesNotComeBackIs904) {
  const CuStream on = stream(), side = stream();
  begin(on);
  fork(on, side);
  ASSERT_CU(launch(nothing, side));
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureUnjoined);
  EXPECT_EQ(status(side), CuCaptureStatus::kNone);
  EXPECT_CU(launch(nothing, side));
}

TEST_F(Capture, AForkWithoutWorkNeedNotComeBack) {
  const CuStream on = stream(), side = stream();
  begin(on);
  ASSERT_CU(launch(nothing, on));
  fork(on, side);
  EXPECT_CU(end_code(on));
}

TEST_F(Capture, WaitingForWorkFromBeforeIs905) {
  const CuStream on = stream();
  const CuEvent before = event();
  ASSERT_CU(d.cuEventRecord(before, stream()));
  begin(on);
  EXPECT_EQ(d.cuStreamWaitEvent(on, before, 0), CuResult::kStreamCaptureIsolation);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, UsingTheLegacyStreamBesideABlockingOneIs906) {
  const CuStream on = stream(kStreamDefault);
  begin(on);
  CuCaptureStatus found{};
  EXPECT_EQ(d.cuStreamIsCapturing(nullptr, &found), CuResult::kStreamCaptureImplicit);
  EXPECT_EQ(status(on), CuCaptureStatus::kActive);
  EXPECT_EQ(launch(nothing, nullptr), CuResult::kStreamCaptureImplicit);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, UsingTheLegacyStreamBesideANonBlockingOneIsAllowed) {
  const CuStream on = stream();
  begin(on);
  EXPECT_CU(launch(nothing, nullptr));
  EXPECT_CU(end_code(on));
}

TEST_F(Capture, AskingForACapturedEventIs907EvenAfterwards) {
  const CuStream on = stream();
  const CuEvent mark = event();
  begin(on);
  ASSERT_CU(d.cuEventRecord(mark, on));
  EXPECT_EQ(d.cuEventQuery(mark), CuResult::kCapturedEvent);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(d.cuEventSynchronize(mark), CuResult::kCapturedEvent);
  EXPECT_EQ(d.cuStreamWaitEvent(stream(), mark, 0), CuResult::kCapturedEvent);
  ASSERT_CU(d.cuEventRecord(mark, on));
  EXPECT_CU(d.cuEventSynchronize(mark));
}

TEST_F(Capture, EndingInAnotherThreadIs908UnlessRelaxed) {
  const CuStream on = stream();
  begin(on, CuCaptureMode::kThreadLocal);
  EXPECT_EQ(in_thread([&] { return end_code(on); }), CuResult::kStreamCaptureWrongThread);
  EXPECT_CU(end_code(on));
  begin(on, CuCaptureMode::kRelaxed);
  EXPECT_CU(in_thread([&] { return end_code(on); }));
}

TEST_F(Capture, WaitingForAnEventThatWasNeverRecordedIsAllowed) {
  const CuStream on = stream();
  begin(on);
  EXPECT_CU(d.cuStreamWaitEvent(on, event(), 0));
  EXPECT_CU(end_code(on));
}

TEST_F(Capture, ExternalEventsAreNodes) {
  const CuStream on = stream();
  const CuEvent mark = event();
  EXPECT_EQ(d.cuEventRecordWithFlags(mark, on, kEventRecordExternal), CuResult::kInvalidValue);
  begin(on);
  ASSERT_CU(d.cuEventRecordWithFlags(mark, on, kEventRecordExternal));
  ASSERT_CU(d.cuStreamWaitEvent(on, mark, kEventWaitExternal));
  std::vector<CuNodeType> types;
  for (const CuGraphNode node : nodes_of(end(on))) {
    ASSERT_CU(d.cuGraphNodeGetType(node, &types.emplace_back()));
  }
  EXPECT_THAT(types, ::testing::ElementsAre(CuNodeType::kEventRecord, CuNodeType::kWaitEvent));
}

// Calls that are not queued, one by one: which of them a capture forbids to its own thread, and, if
// it is global, to others.
TEST_F(Capture, ForbidsWhatIsNotQueuedByItsMode) {
  const CuDevicePtr a = allocate(64);
  const CuEvent done = event();
  const CuStream other = stream();
  ASSERT_CU(d.cuEventRecord(done, other));
  ASSERT_CU(d.cuEventSynchronize(done));
  std::uint32_t word = 0;
  CuDevicePtr made = 0;
  void* host = nullptr;
  CuModule loaded = nullptr;
  struct Call {
    const char* name;
    std::function<CuResult()> make;
  };
  const Call calls[] = {
      {"cuMemAlloc", [&] { return d.cuMemAlloc(&made, 64); }},
      {"cuMemHostAlloc", [&] { return d.cuMemHostAlloc(&host, 64, 0); }},
      {"cuMemcpyHtoD", [&] { return d.cuMemcpyHtoD(a, &word, 4); }},
      {"cuEventQuery", [&] { return d.cuEventQuery(done); }},
      {"cuEventSynchronize", [&] { return d.cuEventSynchronize(done); }},
      {"cuStreamQuery", [&] { return d.cuStreamQuery(other); }},
      {"cuStreamSynchronize", [&] { return d.cuStreamSynchronize(other); }},
      {"cuModuleLoadData", [&] { return d.cuModuleLoadData(&loaded, kKernels); }}};
  for (const auto& [name, call] : calls) {
    for (const auto mode :
         {CuCaptureMode::kGlobal, CuCaptureMode::kThreadLocal, CuCaptureMode::kRelaxed}) {
      for (const bool here : {true, false}) {
        SCOPED_TRACE(std::string(name) + (here ? " here" : " elsewhere") + ", mode " +
                     std::to_string(static_cast<int>(mode)));
        const bool allowed =
            mode == CuCaptureMode::kRelaxed || (mode == CuCaptureMode::kThreadLocal && !here);
        const CuStream on = stream();
        begin(on, mode);
        EXPECT_EQ(here ? call() : in_thread(call),
                  allowed ? CuResult::kSuccess : CuResult::kStreamCaptureUnsupported);
        EXPECT_EQ(end_code(on), allowed ? CuResult::kSuccess : CuResult::kStreamCaptureInvalidated);
        if (made) d.cuMemFree(made);
        if (host) d.cuMemFreeHost(host);
        if (loaded) d.cuModuleUnload(loaded);
        made = 0, host = nullptr, loaded = nullptr;
      }
    }
  }
}

TEST_F(Capture, AllowsWhatTouchesNoWork) {
  const CuStream on = stream();
  begin(on, CuCaptureMode::kGlobal);
  CuDevicePtr range = 0;
  EXPECT_CU(d.cuMemAddressReserve(&range, std::size_t{2} << 20, 0, 0, 0));
  EXPECT_CU(d.cuMemAddressFree(range, std::size_t{2} << 20));
  stream();
  event();
  EXPECT_CU(end_code(on));
}

TEST_F(Capture, AThreadCanTakeTheProhibitionOffItself) {
  const CuStream on = stream();
  begin(on, CuCaptureMode::kGlobal);
  CuCaptureMode mode = CuCaptureMode::kRelaxed;
  ASSERT_CU(d.cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CuCaptureMode::kGlobal);
  allocate(64);
  ASSERT_CU(d.cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CuCaptureMode::kRelaxed);
  EXPECT_CU(end_code(on));
}

TEST_F(Capture, ACallAfterItIsBrokenIs901) {
  const CuStream on = stream();
  begin(on, CuCaptureMode::kGlobal);
  CuDevicePtr made = 0;
  EXPECT_EQ(d.cuMemAlloc(&made, 64), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(d.cuMemAlloc(&made, 64), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, AProgrammaticLaunchMakesAProgrammaticEdge) {
  CuLaunchAttribute attribute{};
  attribute.id = CuLaunchAttributeId::kProgrammaticStreamSerialization;
  attribute.value.programmatic_stream_serialization_allowed = 1;
  const CuGraph graph = capture([&](CuStream on) {
    const CuLaunchConfig config{1, 1, 1, 32, 1, 1, 0, on, &attribute, 1};
    ASSERT_CU(launch(nothing, on));
    ASSERT_CU(d.cuLaunchKernelEx(&config, nothing, nullptr, nullptr));
  });
  CuGraphNode from = nullptr, to = nullptr;
  CuEdgeData data{};
  std::size_t count = 1;
  EXPECT_EQ(d.cuGraphGetEdges(graph, &from, &to, nullptr, &count), CuResult::kLossyQuery);
  count = 1;
  ASSERT_CU(d.cuGraphGetEdges(graph, &from, &to, &data, &count));
  EXPECT_EQ(data.from_port, kPortProgrammatic);
  EXPECT_EQ(data.type, kEdgeProgrammatic);
  run(instantiate(graph));
}

}  // namespace
}  // namespace anabranch::cuda
