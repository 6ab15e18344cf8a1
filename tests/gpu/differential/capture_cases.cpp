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

TEST_F(Capture, AKernelsNodeHasThePriorityOfItsStreamAlsoInAClone) {
  const CuStream on = stream(kStreamNonBlocking, -2);
  begin(on);
  ASSERT_CU(launch(nothing, on));
  const CuGraph graph = end(on);
  CuGraph clone = nullptr;
  ASSERT_CU(d.cuGraphClone(&clone, graph));
  for (const CuGraph each : {graph, clone}) {
    CuLaunchAttributeValue value{};
    EXPECT_CU(d.cuGraphKernelNodeGetAttribute(nodes_of(each).front(),
                                              CuLaunchAttributeId::kPriority, &value));
    EXPECT_EQ(value.priority, -2);
  }
  CuInstantiateParams params{};
  params.flags = kInstantiateUseNodePriority;
  CuGraphExec exec = nullptr;
  EXPECT_CU(d.cuGraphInstantiateWithParams(&exec, clone, &params));
  EXPECT_CU(d.cuGraphLaunch(exec, on));
  EXPECT_CU(d.cuStreamSynchronize(on));
  EXPECT_CU(d.cuGraphExecDestroy(exec));
  EXPECT_CU(d.cuGraphDestroy(clone));
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

TEST_F(Capture, AskingForACapturedEventIs907AndInvalidOnceItsCaptureGaveNoGraph) {
  const CuStream on = stream();
  const CuEvent mark = event();
  begin(on);
  ASSERT_CU(d.cuEventRecord(mark, on));
  EXPECT_EQ(d.cuEventQuery(mark), CuResult::kCapturedEvent);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(d.cuEventSynchronize(mark), CuResult::kInvalidValue);
  EXPECT_EQ(d.cuStreamWaitEvent(stream(), mark, 0), CuResult::kInvalidValue);
  EXPECT_CU(d.cuEventRecord(mark, on));
  EXPECT_CU(d.cuEventSynchronize(mark));
}

TEST_F(Capture, AskingForACapturedEventIsInvalidOnceItsCaptureGaveAGraph) {
  const CuStream on = stream();
  for (const bool keep : {true, false}) {
    SCOPED_TRACE(keep ? "its graph lives" : "its graph is destroyed");
    const CuEvent mark = event();
    begin(on);
    EXPECT_CU(launch(nothing, on));
    EXPECT_CU(d.cuEventRecord(mark, on));
    if (keep) {
      end(on);
    } else {
      EXPECT_CU(end_code(on));
    }
    EXPECT_EQ(d.cuEventQuery(mark), CuResult::kInvalidValue);
    EXPECT_EQ(d.cuEventSynchronize(mark), CuResult::kInvalidValue);
    EXPECT_EQ(d.cuStreamWaitEvent(stream(), mark, 0), CuResult::kInvalidValue);
    EXPECT_CU(d.cuEventRecord(mark, on));
    EXPECT_CU(d.cuEventSynchronize(mark));
  }
}

TEST_F(Capture, AnEventOfABrokenCaptureThatHasNotEndedIsInvalidToAskAndToWaitFor) {
  const CuStream on = stream();
  const CuEvent mark = event();
  begin(on);
  EXPECT_CU(d.cuEventRecord(mark, on));
  EXPECT_EQ(d.cuStreamQuery(on), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(d.cuEventQuery(mark), CuResult::kInvalidValue);
  EXPECT_EQ(d.cuStreamWaitEvent(stream(), mark, 0), CuResult::kInvalidValue);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, WaitingForAnEventOfAnEarlierCaptureIsInvalidAndBreaksThisOne) {
  const CuStream on = stream();
  const CuEvent mark = event();
  begin(on);
  EXPECT_CU(d.cuEventRecord(mark, on));
  EXPECT_CU(end_code(on));
  begin(on);
  EXPECT_EQ(d.cuStreamWaitEvent(on, mark, 0), CuResult::kInvalidValue);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, EndingInAnotherThreadIs908AndEndsItUnlessItIsRelaxed) {
  const CuStream on = stream();
  for (const auto mode : {CuCaptureMode::kThreadLocal, CuCaptureMode::kGlobal}) {
    SCOPED_TRACE("mode " + std::to_string(static_cast<int>(mode)));
    begin(on, mode);
    EXPECT_EQ(in_thread([&] { return end_code(on); }), CuResult::kStreamCaptureWrongThread);
    EXPECT_EQ(status(on), CuCaptureStatus::kNone);
    EXPECT_EQ(end_code(on), CuResult::kIllegalState);
    EXPECT_CU(launch(nothing, on));
    EXPECT_CU(d.cuStreamSynchronize(on));
  }
  begin(on, CuCaptureMode::kRelaxed);
  EXPECT_CU(in_thread([&] { return end_code(on); }));
}

TEST_F(Capture, WaitingForAnEventThatWasNeverRecordedIsAllowed) {
  const CuStream on = stream();
  begin(on);
  EXPECT_CU(d.cuStreamWaitEvent(on, event(), 0));
  EXPECT_CU(end_code(on));
}

TEST_F(Capture, ExternalEventsAreNodesAndIllegalWithoutACapture) {
  const CuStream on = stream();
  const CuEvent mark = event();
  EXPECT_EQ(d.cuEventRecordWithFlags(mark, on, kEventRecordExternal), CuResult::kIllegalState);
  begin(on);
  EXPECT_CU(d.cuEventRecordWithFlags(mark, on, kEventRecordExternal));
  EXPECT_CU(d.cuStreamWaitEvent(on, mark, kEventWaitExternal));
  std::vector<CuNodeType> types;
  for (const CuGraphNode node : nodes_of(end(on))) {
    EXPECT_CU(d.cuGraphNodeGetType(node, &types.emplace_back()));
  }
  EXPECT_THAT(types, ::testing::ElementsAre(CuNodeType::kEventRecord, CuNodeType::kWaitEvent));
}

TEST_F(Capture, WaitingForAnExternalEventIsIllegalWithoutACapture) {
  const CuStream on = stream();
  EXPECT_EQ(d.cuStreamWaitEvent(on, event(), kEventWaitExternal), CuResult::kIllegalState);
  EXPECT_CU(d.cuStreamSynchronize(on));
}

// Calls that are not queued, one by one, each beside a capture of its own.
class CaptureModes : public Capture {
 protected:
  struct Call {
    const char* name;
    bool forbidden;  // to the thread of a capture that is not relaxed; by a global one to all
    std::function<CuResult()> make;
    std::function<void()> prepare = [] {};
  };

  ~CaptureModes() override { clean(); }

  void expect_forbidden_by_mode(const std::vector<Call>& calls) {
    for (const Call& call : calls) {
      for (const auto mode :
           {CuCaptureMode::kGlobal, CuCaptureMode::kThreadLocal, CuCaptureMode::kRelaxed}) {
        for (const bool here : {true, false}) expect_forbidden(call, mode, here);
      }
    }
  }

  CuDevicePtr a = allocate(64);
  CuStream other = stream();
  std::uint32_t word = 0;
  // What the calls make and free.
  CuDevicePtr made = 0;
  void* host = nullptr;
  CuModule loaded = nullptr;
  CuGraphExec exec = nullptr;

 private:
  void expect_forbidden(const Call& call, CuCaptureMode mode, bool here) {
    SCOPED_TRACE(std::string(call.name) + (here ? " here" : " elsewhere") + ", mode " +
                 std::to_string(static_cast<int>(mode)));
    const bool allowed = !call.forbidden || mode == CuCaptureMode::kRelaxed ||
                         (mode == CuCaptureMode::kThreadLocal && !here);
    call.prepare();
    const CuStream on = stream();
    begin(on, mode);
    EXPECT_EQ(here ? call.make() : in_thread(call.make),
              allowed ? CuResult::kSuccess : CuResult::kStreamCaptureUnsupported);
    EXPECT_EQ(end_code(on), allowed ? CuResult::kSuccess : CuResult::kStreamCaptureInvalidated);
    clean();
  }
  void clean() {
    if (made) {
      EXPECT_CU(d.cuMemFree(made));
    }
    if (host) {
      EXPECT_CU(d.cuMemFreeHost(host));
    }
    if (loaded) {
      EXPECT_CU(d.cuModuleUnload(loaded));
    }
    if (exec) {
      EXPECT_CU(d.cuGraphExecDestroy(exec));
    }
    made = 0, host = nullptr, loaded = nullptr, exec = nullptr;
  }
};

TEST_F(CaptureModes, ForbidAllocationsAndQuestionsAndNeitherSmallWritesNorModules) {
  const CuEvent done = event();
  ASSERT_CU(d.cuEventRecord(done, other));
  ASSERT_CU(d.cuEventSynchronize(done));
  expect_forbidden_by_mode(
      {{"cuMemAlloc", true, [&] { return d.cuMemAlloc(&made, 64); }},
       {"cuMemHostAlloc", true, [&] { return d.cuMemHostAlloc(&host, 64, 0); }},
       {"cuEventQuery", true, [&] { return d.cuEventQuery(done); }},
       {"cuEventSynchronize", true, [&] { return d.cuEventSynchronize(done); }},
       {"cuStreamQuery", true, [&] { return d.cuStreamQuery(other); }},
       {"cuStreamSynchronize", true, [&] { return d.cuStreamSynchronize(other); }},
       {"cuMemcpyHtoD", false, [&] { return d.cuMemcpyHtoD(a, &word, 4); }},
       {"cuModuleLoadData", false, [&] { return d.cuModuleLoadData(&loaded, kKernels); }}});
}

TEST_F(CaptureModes, AllowTiesOfOtherStreamsAndTheirQuestionsToAThreadWhoseModeIsRelaxed) {
  const CuEvent mark = event();
  expect_forbidden_by_mode(
      {{"cuStreamQuery, relaxed", false,
        [&] {
          CuCaptureMode thread_mode = CuCaptureMode::kRelaxed;
          EXPECT_CU(d.cuThreadExchangeStreamCaptureMode(&thread_mode));
          const CuResult result = d.cuStreamQuery(other);
          EXPECT_CU(d.cuThreadExchangeStreamCaptureMode(&thread_mode));
          return result;
        }},
       {"cuStreamIsCapturing", false,
        [&] {
          CuCaptureStatus status{};
          return d.cuStreamIsCapturing(other, &status);
        }},
       {"cuEventCreate", false,
        [&] {
          CuEvent tie = nullptr;
          const CuResult result = d.cuEventCreate(&tie, kEventDisableTiming);
          EXPECT_CU(d.cuEventDestroy(tie));
          return result;
        }},
       {"cuEventRecord", false, [&] { return d.cuEventRecord(mark, other); }},
       {"cuStreamWaitEvent", false, [&] { return d.cuStreamWaitEvent(other, mark, 0); }}});
}

TEST_F(CaptureModes, ForbidFreeingAndNeitherSmallReadsNorCopiesNorFills) {
  const auto free = [&] {
    const CuResult result = d.cuMemFree(made);
    if (result == CuResult::kSuccess) made = 0;
    return result;
  };
  const auto free_host = [&] {
    const CuResult result = d.cuMemFreeHost(host);
    if (result == CuResult::kSuccess) host = nullptr;
    return result;
  };
  const auto unload = [&] {
    const CuResult result = d.cuModuleUnload(loaded);
    if (result == CuResult::kSuccess) loaded = nullptr;
    return result;
  };
  expect_forbidden_by_mode(
      {{"cuMemFree", true, free, [&] { EXPECT_CU(d.cuMemAlloc(&made, 64)); }},
       {"cuMemFreeHost", true, free_host, [&] { EXPECT_CU(d.cuMemHostAlloc(&host, 64, 0)); }},
       {"cuModuleUnload", true, unload, [&] { EXPECT_CU(d.cuModuleLoadData(&loaded, kKernels)); }},
       {"cuMemcpyDtoH", false, [&] { return d.cuMemcpyDtoH(&word, a, 4); }},
       {"cuMemcpy", false, [&] { return d.cuMemcpy(a + 32, a, 4); }},
       {"cuMemsetD8", false, [&] { return d.cuMemsetD8(a, 0, 4); }}});
}

TEST_F(CaptureModes, AllowWritesOfEverySizeAndFromPinnedMemory) {
  const std::vector<std::uint32_t> words(std::size_t{1} << 20);
  const CuDevicePtr large = allocate(words.size() * 4);
  const void* const pinned = allocate_host(64);
  expect_forbidden_by_mode(
      {{"cuMemcpyHtoD of 64 KiB", false,
        [&] { return d.cuMemcpyHtoD(large, words.data(), std::size_t{64} << 10); }},
       {"cuMemcpyHtoD of 4 MiB", false,
        [&] { return d.cuMemcpyHtoD(large, words.data(), words.size() * 4); }},
       {"cuMemcpyHtoD, pinned", false, [&] { return d.cuMemcpyHtoD(a, pinned, 4); }}});
}

TEST_F(CaptureModes, AllowReadsCopiesAndFillsOfEverySizeAndReadsToPinnedMemory) {
  static constexpr std::size_t kBytes = std::size_t{4} << 20;
  std::vector<std::byte> bytes(kBytes);
  const CuDevicePtr large = allocate(kBytes), copy = allocate(kBytes);
  void* const pinned = allocate_host(64);
  expect_forbidden_by_mode(
      {{"cuMemcpyDtoH of 64 KiB", false,
        [&] { return d.cuMemcpyDtoH(bytes.data(), large, std::size_t{64} << 10); }},
       {"cuMemcpyDtoH of 4 MiB", false,
        [&] { return d.cuMemcpyDtoH(bytes.data(), large, kBytes); }},
       {"cuMemcpyDtoH, pinned", false, [&] { return d.cuMemcpyDtoH(pinned, a, 4); }},
       {"cuMemcpy of 4 MiB", false, [&] { return d.cuMemcpy(copy, large, kBytes); }},
       {"cuMemsetD8 of 4 MiB", false, [&] { return d.cuMemsetD8(large, 0, kBytes); }}});
}

TEST_F(CaptureModes, AllowWhatRecordingNeedsAndForbidInstantiating) {
  static constexpr std::size_t kPage = std::size_t{2} << 20;
  CuMemAllocationProp prop{};
  prop.type = CuAllocationType::kPinned;
  prop.location = {CuLocationType::kDevice, 0};
  const CuMemAccessDesc access{{CuLocationType::kDevice, 0}, CuAccess::kReadWrite};
  CuDevicePtr range = 0;
  CuMemoryHandle handle = 0, created = 0;
  ASSERT_CU(d.cuMemCreate(&handle, kPage, &prop, 0));
  EXPECT_CU(d.cuMemAddressReserve(&range, kPage, 0, 0, 0));
  const auto map = [&] { return d.cuMemMap(range, kPage, 0, handle, 0); };
  const auto open = [&] { return d.cuMemSetAccess(range, kPage, &access, 1); };
  const auto unmap = [&] { return d.cuMemUnmap(range, kPage); };
  bool is_mapped = false;
  const auto leave_mapped = [&](bool wanted) {
    if (wanted != is_mapped) {
      EXPECT_CU(wanted ? map() : unmap());
    }
    is_mapped = wanted;
  };
  const auto noting = [&](const std::function<CuResult()>& call, bool maps) {
    const CuResult result = call();
    if (result == CuResult::kSuccess) is_mapped = maps;
    return result;
  };
  const auto drop_created = [&] {
    if (created) {
      EXPECT_CU(d.cuMemRelease(created));
    }
    created = 0;
  };
  const CuGraph graph = capture([&](CuStream on) { EXPECT_CU(launch(nothing, on)); });
  const CuGraphExec ready = instantiate(graph);
  const auto make_exec = [&] {
    CuInstantiateParams params{};
    return d.cuGraphInstantiateWithParams(&exec, graph, &params);
  };
  std::size_t free_bytes = 0, total = 0, offset = 0, bytes = 0;
  CuMemoryType type{};
  CuFunction function = nullptr;
  int value = 0;
  expect_forbidden_by_mode(
      {{"cuMemCreate", false, [&] { return d.cuMemCreate(&created, kPage, &prop, 0); },
        drop_created},
       {"cuMemMap", false, [&] { return noting(map, true); }, [&] { leave_mapped(false); }},
       {"cuMemSetAccess", false, open, [&] { leave_mapped(true); }},
       {"cuMemUnmap", false, [&] { return noting(unmap, false); }, [&] { leave_mapped(true); }},
       {"cuMemGetInfo", false, [&] { return d.cuMemGetInfo(&free_bytes, &total); }},
       {"cuPointerGetAttribute", false,
        [&] { return d.cuPointerGetAttribute(&type, CuPointerAttribute::kMemoryType, a); }},
       {"cuModuleGetFunction", false,
        [&] { return d.cuModuleGetFunction(&function, module, "store"); }},
       {"cuFuncGetAttribute", false,
        [&] { return d.cuFuncGetAttribute(&value, CuFunctionAttribute::kNumRegs, store); }},
       {"cuFuncSetAttribute", false,
        [&] {
          return d.cuFuncSetAttribute(store, CuFunctionAttribute::kMaxDynamicSharedSizeBytes, 1024);
        }},
       {"cuFuncGetParamInfo", false,
        [&] { return d.cuFuncGetParamInfo(store, 1, &offset, &bytes); }},
       {"cuGraphInstantiateWithParams", true, make_exec},
       {"cuGraphUpload", false, [&] { return d.cuGraphUpload(ready, other); }},
       {"cuGraphLaunch", false, [&] { return d.cuGraphLaunch(ready, other); }}});
  EXPECT_CU(d.cuStreamSynchronize(other));
  drop_created();
  leave_mapped(false);
  EXPECT_CU(d.cuMemAddressFree(range, kPage));
  EXPECT_CU(d.cuMemRelease(handle));
}

// A write that waits goes through the legacy stream.
TEST_F(Capture, AWriteBesideABlockingStreamIs906) {
  const CuDevicePtr a = allocate(4);
  const CuStream on = stream(kStreamDefault);
  begin(on);
  const std::uint32_t word = 0;
  EXPECT_EQ(d.cuMemcpyHtoD(a, &word, 4), CuResult::kStreamCaptureImplicit);
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, AReadACopyAndAFillBesideABlockingStreamAre906) {
  const CuDevicePtr a = allocate(8);
  const CuStream on = stream(kStreamDefault);
  std::uint32_t word = 0;
  const std::function<CuResult()> calls[] = {[&] { return d.cuMemcpyDtoH(&word, a, 4); },
                                             [&] { return d.cuMemcpy(a + 4, a, 4); },
                                             [&] { return d.cuMemsetD8(a, 0, 4); }};
  for (const auto& call : calls) {
    SCOPED_TRACE("call " + std::to_string(&call - calls));
    begin(on);
    EXPECT_EQ(call(), CuResult::kStreamCaptureImplicit);
    EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
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
  EXPECT_CU(d.cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CuCaptureMode::kGlobal);
  allocate(64);
  EXPECT_CU(d.cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CuCaptureMode::kRelaxed);
  EXPECT_CU(end_code(on));
}

TEST_F(Capture, AForbiddenCallIs900BeforeAndAfterItBreaksTheCapture) {
  const CuStream on = stream();
  begin(on, CuCaptureMode::kGlobal);
  for (int i = 0; i < 2; ++i) {
    CuDevicePtr made = 0;
    EXPECT_EQ(d.cuMemAlloc(&made, 64), CuResult::kStreamCaptureUnsupported);
    if (made) d.cuMemFree(made);
  }
  EXPECT_EQ(end_code(on), CuResult::kStreamCaptureInvalidated);
}

TEST_F(Capture, QueueingOnABrokenCapturesStreamIs901AndAskingItOrTheContext900) {
  const CuStream on = stream();
  begin(on);
  EXPECT_EQ(d.cuStreamSynchronize(on), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(d.cuStreamSynchronize(on), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(d.cuStreamQuery(on), CuResult::kStreamCaptureUnsupported);
  EXPECT_EQ(d.cuEventRecord(event(), on), CuResult::kStreamCaptureInvalidated);
  EXPECT_EQ(d.cuCtxSynchronize(), CuResult::kStreamCaptureUnsupported);
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
