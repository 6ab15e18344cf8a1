// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::ElementsAre;

class SimCapture : public SimTest {
 protected:
  void begin(CuStream on, CuCaptureMode mode = CuCaptureMode::kGlobal) {
    ASSERT_CU(d->cuStreamBeginCapture(on, mode));
  }
  // The codes of a capture's end; a graph that comes with it is let go.
  CuResult end(CuStream on) {
    CuGraph graph = nullptr;
    const CuResult result = d->cuStreamEndCapture(on, &graph);
    EXPECT_EQ(graph != nullptr, result == CuResult::kSuccess);
    if (graph) {
      EXPECT_CU(d->cuGraphDestroy(graph));
    }
    return result;
  }
  CuCaptureStatus status(CuStream on) {
    CuCaptureStatus found{};
    EXPECT_CU(d->cuStreamIsCapturing(on, &found));
    return found;
  }
  void fork(CuStream from, CuStream to) {
    const CuEvent mark = event(kEventDisableTiming);
    ASSERT_CU(d->cuEventRecord(mark, from));
    ASSERT_CU(d->cuStreamWaitEvent(to, mark, 0));
  }
  CuResult in_thread(const std::function<CuResult()>& call) {
    CuResult result{};
    std::thread([&] {
      d->cuCtxSetCurrent(context);
      result = call();
    }).join();
    return result;
  }
  CuResult allocate_something() {
    CuDevicePtr address = 0;
    return d->cuMemAlloc(&address, 16);
  }
};

TEST_F(SimCapture, WhatIsQueuedIsCapturedAndDoesNotRun) {
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(launch(noting("a"), on));
  ASSERT_CU(launch(noting("b"), on));
  EXPECT_EQ(status(on), CuCaptureStatus::kActive);
  const CuGraph graph = end_capture(on);
  sim->run_until_idle();
  EXPECT_TRUE(order.empty());
  const std::vector<CuGraphNode> nodes = nodes_of(graph);
  ASSERT_EQ(nodes.size(), 2u);
  CuGraphNode before = nullptr;
  CuEdgeData data{};
  std::size_t count = 1;
  ASSERT_CU(d->cuGraphNodeGetDependencies(nodes[1], &before, &data, &count));
  EXPECT_EQ(before, nodes[0]);
  EXPECT_EQ(status(on), CuCaptureStatus::kNone);
}

TEST_F(SimCapture, EveryKindOfWorkHasItsNode) {
  const CuDevicePtr a = allocate(64);
  const CuStream on = stream();
  const CuEvent external = event();
  begin(on);
  ASSERT_CU(d->cuMemsetD32Async(a, 1, 4, on));
  ASSERT_CU(d->cuMemcpyDtoDAsync(a + 32, a, 16, on));
  ASSERT_CU(d->cuLaunchHostFunc(
      on, [](void*) {}, nullptr));
  ASSERT_CU(d->cuEventRecordWithFlags(external, on, kEventRecordExternal));
  ASSERT_CU(d->cuStreamWaitEvent(on, external, kEventWaitExternal));
  ASSERT_CU(launch(noting("k"), on));
  std::vector<CuNodeType> types;
  for (const CuGraphNode node : nodes_of(end_capture(on))) {
    ASSERT_CU(d->cuGraphNodeGetType(node, &types.emplace_back()));
  }
  EXPECT_THAT(types,
              ElementsAre(CuNodeType::kMemset, CuNodeType::kMemcpy, CuNodeType::kHost,
                          CuNodeType::kEventRecord, CuNodeType::kWaitEvent, CuNodeType::kKernel));
}

TEST_F(SimCapture, AnEventTakesAnotherStreamAlongAndBringsItBack) {
  const CuStream on = stream(), side = stream();
  begin(on);
  ASSERT_CU(launch(noting("fork"), on));
  fork(on, side);
  EXPECT_EQ(status(side), CuCaptureStatus::kActive);
  ASSERT_CU(launch(noting("side"), side));
  ASSERT_CU(launch(noting("main"), on));
  fork(side, on);
  ASSERT_CU(launch(noting("join"), on));
  const CuGraph graph = end_capture(on);
  std::size_t edges = 0;
  ASSERT_CU(d->cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 4u);
  EXPECT_EQ(status(side), CuCaptureStatus::kNone);
}

TEST_F(SimCapture, TheLegacyStreamCannotCapture) {
  EXPECT_EQ(d->cuStreamBeginCapture(nullptr, CuCaptureMode::kRelaxed),
            CuResult::kStreamCaptureUnsupported);
}

TEST_F(SimCapture, ACaptureIsBegunOnceAndEndedOnce) {
  const CuStream on = stream();
  EXPECT_EQ(end(on), CuResult::kIllegalState);
  begin(on);
  EXPECT_EQ(d->cuStreamBeginCapture(on, CuCaptureMode::kGlobal), CuResult::kIllegalState);
  EXPECT_CU(end(on));
  EXPECT_EQ(end(on), CuResult::kIllegalState);
}

TEST_F(SimCapture, WaitingForACapturingStreamBreaksTheCapture) {
  const CuStream on = stream();
  begin(on, CuCaptureMode::kRelaxed);
  EXPECT_EQ(d->cuStreamSynchronize(on), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(status(on), CuCaptureStatus::kInvalidated);
  EXPECT_EQ(d->cuStreamQuery(on), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(launch(noting("late"), on), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(end(on), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(status(on), CuCaptureStatus::kNone);
}

TEST_F(SimCapture, WaitingForTheContextBreaksTheCaptureInEveryMode) {
  const CuStream on = stream();
  begin(on, CuCaptureMode::kRelaxed);
  EXPECT_EQ(d->cuCtxSynchronize(), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(end(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(SimCapture, MergingTwoCapturesBreaksBoth) {
  const CuStream a = stream(), b = stream();
  const CuEvent mark = event();
  begin(a);
  begin(b);
  ASSERT_CU(d->cuEventRecord(mark, a));
  EXPECT_EQ(d->cuStreamWaitEvent(b, mark, 0), CuResult::kStreamCaptureMerge);
  EXPECT_EQ(end(a), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(end(b), CuResult::kStreamCaptureInvalidated);
}

TEST_F(SimCapture, EndingOnAStreamThatDidNotBeginIsUnmatched) {
  const CuStream on = stream(), side = stream();
  begin(on);
  fork(on, side);
  EXPECT_EQ(end(side), CuResult::kStreamCaptureUnmatched);
  EXPECT_EQ(end(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(SimCapture, ABranchThatDoesNotComeBackIsUnjoined) {
  const CuStream on = stream(), side = stream();
  begin(on);
  fork(on, side);
  ASSERT_CU(launch(noting("lost"), side));
  EXPECT_EQ(end(on), CuResult::kStreamCaptureUnjoined);
  EXPECT_EQ(status(side), CuCaptureStatus::kNone);
  EXPECT_EQ(sim->live_objects(), 4u);  // two streams, an event, a module: no graph is left
}

TEST_F(SimCapture, ABranchWithoutWorkNeedNotComeBack) {
  const CuStream on = stream(), side = stream();
  begin(on);
  ASSERT_CU(launch(noting("a"), on));
  fork(on, side);
  EXPECT_CU(end(on));
}

TEST_F(SimCapture, WorkFromBeforeTheCaptureCannotBeWaitedFor) {
  const CuStream on = stream();
  const CuEvent before = event();
  ASSERT_CU(d->cuEventRecord(before, stream()));
  begin(on);
  EXPECT_EQ(d->cuStreamWaitEvent(on, before, 0), CuResult::kStreamCaptureIsolation);
  EXPECT_EQ(end(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(SimCapture, TheLegacyStreamCannotWaitForABlockingStreamThatCaptures) {
  const CuStream on = stream(kStreamDefault);
  const CuFunction work = noting("legacy");
  begin(on, CuCaptureMode::kRelaxed);
  CuCaptureStatus found{};
  EXPECT_EQ(d->cuStreamIsCapturing(nullptr, &found), CuResult::kStreamCaptureImplicit);
  EXPECT_EQ(status(on), CuCaptureStatus::kActive);
  EXPECT_EQ(launch(work, nullptr), CuResult::kStreamCaptureImplicit);
  EXPECT_EQ(end(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(SimCapture, TheLegacyStreamWorksBesideANonBlockingStreamThatCaptures) {
  const CuStream on = stream();
  const CuFunction work = noting("legacy");
  begin(on, CuCaptureMode::kRelaxed);
  EXPECT_CU(launch(work, nullptr));
  EXPECT_CU(end(on));
}

TEST_F(SimCapture, AnEventOfACaptureIs907ToAskAndInvalidOnceItIsBrokenOrOver) {
  const CuStream on = stream();
  const CuEvent mark = event();
  begin(on, CuCaptureMode::kRelaxed);
  ASSERT_CU(d->cuEventRecord(mark, on));
  EXPECT_EQ(d->cuEventQuery(mark), CuResult::kCapturedEvent);
  EXPECT_EQ(d->cuEventQuery(mark), CuResult::kInvalidValue);
  EXPECT_EQ(d->cuStreamWaitEvent(stream(), mark, 0), CuResult::kInvalidValue);
  EXPECT_EQ(end(on), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(d->cuEventSynchronize(mark), CuResult::kInvalidValue);
  EXPECT_EQ(d->cuStreamWaitEvent(stream(), mark, 0), CuResult::kInvalidValue);
  begin(on, CuCaptureMode::kRelaxed);
  ASSERT_CU(d->cuEventRecord(mark, on));
  EXPECT_CU(end(on));
  EXPECT_EQ(d->cuEventSynchronize(mark), CuResult::kInvalidValue);
  EXPECT_EQ(d->cuStreamWaitEvent(stream(), mark, 0), CuResult::kInvalidValue);
  ASSERT_CU(d->cuEventRecord(mark, on));
  EXPECT_CU(d->cuEventSynchronize(mark));
}

TEST_F(SimCapture, OnlyARelaxedCaptureMayEndInAnotherThread) {
  const CuStream on = stream();
  begin(on, CuCaptureMode::kThreadLocal);
  EXPECT_EQ(in_thread([&] { return end(on); }), CuResult::kStreamCaptureWrongThread);
  EXPECT_EQ(end(on), CuResult::kIllegalState);  // it has ended all the same
  EXPECT_EQ(sim->live_objects(), 1u);           // its stream: no graph is left
  begin(on, CuCaptureMode::kRelaxed);
  EXPECT_CU(in_thread([&] { return end(on); }));
}

// Rows: mode of the capture. Columns: may this thread, and another, call what is not queued?
TEST_F(SimCapture, TheModeSaysWhoMayAllocateMeanwhile) {
  struct Row {
    CuCaptureMode mode;
    bool here, elsewhere;
  };
  for (const Row& row :
       {Row{CuCaptureMode::kGlobal, false, false}, Row{CuCaptureMode::kThreadLocal, false, true},
        Row{CuCaptureMode::kRelaxed, true, true}}) {
    for (const bool here : {true, false}) {
      const CuStream on = stream();
      begin(on, row.mode);
      const CuResult result =
          here ? allocate_something() : in_thread([&] { return allocate_something(); });
      const bool allowed = here ? row.here : row.elsewhere;
      EXPECT_EQ(result, allowed ? CuResult::kSuccess : CuResult::kStreamCaptureUnsupported);
      EXPECT_EQ(end(on), allowed ? CuResult::kSuccess : CuResult::kStreamCaptureInvalidated);
    }
  }
}

TEST_F(SimCapture, AThreadCanTakeTheProhibitionOffItself) {
  const CuStream on = stream();
  begin(on, CuCaptureMode::kGlobal);
  CuCaptureMode mode = CuCaptureMode::kRelaxed;
  ASSERT_CU(d->cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CuCaptureMode::kGlobal);
  EXPECT_CU(allocate_something());
  ASSERT_CU(d->cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CuCaptureMode::kRelaxed);
  EXPECT_EQ(allocate_something(), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(allocate_something(), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(end(on), CuResult::kStreamCaptureInvalidated);
  EXPECT_CU(allocate_something());
}

TEST_F(SimCapture, ExecutablesAreForbiddenAndCopiesVirtualMemoryAndModulesAreNot) {
  const CuDevicePtr a = allocate(16);
  CuGraph graph = nullptr;
  ASSERT_CU(d->cuGraphCreate(&graph, 0));
  const CuStream on = stream();
  begin(on, CuCaptureMode::kThreadLocal);
  CuDevicePtr range = 0;
  EXPECT_CU(d->cuMemAddressReserve(&range, std::size_t{2} << 20, 0, 0, 0));
  const CuDevicePtr written = range;
  EXPECT_CU(d->cuMemcpyHtoD(a, &range, 8));
  EXPECT_CU(d->cuMemcpy(a + 8, a, 8));
  EXPECT_CU(d->cuMemsetD8(a, 0, 8));
  EXPECT_CU(d->cuMemcpyDtoH(&range, a + 8, 8));
  EXPECT_EQ(range, written);
  load("add_one");
  EXPECT_EQ(status(on), CuCaptureStatus::kActive);
  CuInstantiateParams params{};
  CuGraphExec exec = nullptr;
  EXPECT_EQ(d->cuGraphInstantiateWithParams(&exec, graph, &params),
            CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(exec, nullptr);
  EXPECT_EQ(end(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(SimCapture, ItsGraphAndItsDependenciesCanBeSeenAndChanged) {
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(launch(noting("a"), on));
  CuCaptureStatus found{};
  std::uint64_t id = 0;
  CuGraph graph = nullptr;
  const CuGraphNode* nodes = nullptr;
  const CuEdgeData* edges = nullptr;
  std::size_t count = 0;
  ASSERT_CU(d->cuStreamGetCaptureInfo(on, &found, &id, &graph, &nodes, &edges, &count));
  ASSERT_EQ(count, 1u);
  CuGraphNode own = nullptr;
  ASSERT_CU(d->cuGraphAddEmptyNode(&own, graph, nodes, count));
  ASSERT_CU(d->cuStreamUpdateCaptureDependencies(on, &own, nullptr, 1, kSetCaptureDependencies));
  ASSERT_CU(launch(noting("b"), on));
  const std::vector<CuGraphNode> all = nodes_of(end_capture(on));
  ASSERT_EQ(all.size(), 3u);
  CuGraphNode before = nullptr;
  CuEdgeData data{};
  ASSERT_CU(d->cuGraphNodeGetDependencies(all[2], &before, &data, &(count = 1)));
  EXPECT_EQ(before, own);
}

TEST_F(SimCapture, AProgrammaticLaunchMakesAProgrammaticEdge) {
  const CuStream on = stream();
  const CuFunction first = noting("first"), second = noting("second");
  CuLaunchAttribute attribute{};
  attribute.id = CuLaunchAttributeId::kProgrammaticStreamSerialization;
  attribute.value.programmatic_stream_serialization_allowed = 1;
  const CuLaunchConfig config{1, 1, 1, 32, 1, 1, 0, on, &attribute, 1};
  begin(on);
  ASSERT_CU(launch(first, on));
  ASSERT_CU(d->cuLaunchKernelEx(&config, second, nullptr, nullptr));
  const CuGraph graph = end_capture(on);
  CuGraphNode from = nullptr, to = nullptr;
  CuEdgeData data{};
  std::size_t count = 1;
  EXPECT_EQ(d->cuGraphGetEdges(graph, &from, &to, nullptr, &count), CuResult::kLossyQuery);
  ASSERT_CU(d->cuGraphGetEdges(graph, &from, &to, &data, &count));
  EXPECT_EQ(data.from_port, kPortProgrammatic);
  EXPECT_EQ(data.type, kEdgeProgrammatic);
}

TEST_F(SimCapture, DestroyingItsStreamLeavesNothingBehind) {
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(d->cuMemsetD8Async(0, 0, 0, on));
  ASSERT_CU(d->cuStreamDestroy(on));
  EXPECT_EQ(sim->live_objects(), 0u);
  EXPECT_CU(d->cuCtxSynchronize());
}

}  // namespace
}  // namespace anabranch::sim
