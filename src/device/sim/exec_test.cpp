// SPDX-License-Identifier: Apache-2.0
#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SimExec : public SimTest {
 protected:
  // add_one(a, b) as a graph of one node.
  void make_add_one() {
    a = allocate(4), b = allocate(4), other = allocate(4);
    put(a, 1);
    put(b, 0);
    put(other, 0);
    on = stream();
    ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
    ASSERT_CU(add_one(on, a, b));
    graph = end_capture(on);
    node = nodes_of(graph).front();
  }
  CuKernelNodeParams params_writing(CuDevicePtr* out) {
    CuKernelNodeParams params{};
    EXPECT_CU(d->cuGraphKernelNodeGetParams(node, &params));
    pointers = {params.kernel_params[0], out, params.kernel_params[2]};
    params.kernel_params = pointers.data();
    return params;
  }
  CuDeviceNode make_updatable(CuGraphNode of) {
    CuLaunchAttributeValue value{};
    value.device_updatable_kernel_node.device_updatable = 1;
    const auto id = CuLaunchAttributeId::kDeviceUpdatableKernelNode;
    EXPECT_CU(d->cuGraphKernelNodeSetAttribute(of, id, &value));
    value = {};
    EXPECT_CU(d->cuGraphKernelNodeGetAttribute(of, id, &value));
    EXPECT_NE(value.device_updatable_kernel_node.dev_node, nullptr);
    return value.device_updatable_kernel_node.dev_node;
  }
  // updater -> add_one(a, b), which the updater points at `target` each time it runs.
  void make_updated() {
    make_add_one();
    ASSERT_CU(d->cuGraphDestroy(graph));
    const CuFunction updater = load({.name = "updater", .params = {}, .run = [this](auto&) {
                                       update = SimDriver::update_param(device_node, 8, &target, 8);
                                     }});
    ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
    ASSERT_CU(launch(updater, on));
    ASSERT_CU(add_one(on, a, b));
    graph = end_capture(on);
    node = nodes_of(graph).back();
    device_node = make_updatable(node);
    target = other;
  }
  void launch_and_wait(CuGraphExec exec) {
    ASSERT_CU(d->cuGraphLaunch(exec, on));
    ASSERT_CU(d->cuStreamSynchronize(on));
  }

  CuDevicePtr a = 0, b = 0, other = 0, target = 0;
  CuStream on = nullptr;
  CuGraph graph = nullptr;
  CuGraphNode node = nullptr;
  CuDeviceNode device_node = nullptr;
  CuResult update = CuResult::kUnknown;
  std::vector<void*> pointers;
};

TEST_F(SimExec, LaunchesWhatWasCapturedAsOftenAsWanted) {
  make_add_one();
  const CuGraphExec exec = instantiate(graph);
  launch_and_wait(exec);
  EXPECT_EQ(get(b), 2u);
  put(a, 7);
  launch_and_wait(exec);
  EXPECT_EQ(get(b), 8u);
}

TEST_F(SimExec, LaunchesOfOneExecutableRunOneAfterAnotherOnAnyStreams) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    start({.seed = seed});
    order.clear();
    on = stream();
    const CuFunction first = noting("first"), second = noting("second");
    ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
    ASSERT_CU(launch(first, on));
    ASSERT_CU(launch(second, on));
    const CuGraphExec exec = instantiate(end_capture(on));
    ASSERT_CU(d->cuGraphLaunch(exec, on));
    ASSERT_CU(d->cuGraphLaunch(exec, stream()));
    sim->run_until_idle();
    EXPECT_THAT(order, ElementsAre("first", "second", "first", "second"));
  }
}

TEST_F(SimExec, ASetterChangesLaterLaunchesAndNotQueuedOnes) {
  make_add_one();
  const CuGraphExec exec = instantiate(graph);
  ASSERT_CU(d->cuGraphLaunch(exec, on));
  const CuKernelNodeParams params = params_writing(&other);
  ASSERT_CU(d->cuGraphExecKernelNodeSetParams(exec, node, &params));
  ASSERT_CU(d->cuStreamSynchronize(on));
  EXPECT_EQ(get(b), 2u);
  EXPECT_EQ(get(other), 0u);
  launch_and_wait(exec);
  EXPECT_EQ(get(other), 2u);
}

TEST_F(SimExec, ASetterNeedsTheNodeOfTheSourceGraph) {
  make_add_one();
  const CuGraphExec exec = instantiate(graph);
  const CuKernelNodeParams params = params_writing(&other);
  CuGraph clone = nullptr;
  ASSERT_CU(d->cuGraphClone(&clone, graph));
  EXPECT_EQ(d->cuGraphExecKernelNodeSetParams(exec, nodes_of(clone).front(), &params),
            CuResult::kInvalidValue);
  ASSERT_CU(d->cuGraphDestroy(graph));
  EXPECT_EQ(d->cuGraphExecKernelNodeSetParams(exec, node, &params), CuResult::kInvalidValue);
  launch_and_wait(exec);
  EXPECT_EQ(get(b), 2u);
}

TEST_F(SimExec, ACopyStaysOneDimensionalBetweenTheSamePlacesAndIsNeverEmpty) {
  make_add_one();
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
  ASSERT_CU(d->cuMemcpyDtoDAsync(b, a, 4, on));
  const CuGraph copies = end_capture(on);
  const CuGraphNode copy_node = nodes_of(copies).front();
  const CuGraphExec exec = instantiate(copies);
  CuMemcpy3D copy{};
  ASSERT_CU(d->cuGraphMemcpyNodeGetParams(copy_node, &copy));
  copy.dst_device = other;
  EXPECT_CU(d->cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, context));
  const auto refused = [&](auto change) {
    CuMemcpy3D changed = copy;
    change(changed);
    return d->cuGraphExecMemcpyNodeSetParams(exec, copy_node, &changed, context);
  };
  EXPECT_EQ(refused([](CuMemcpy3D& c) { c.width_bytes = 0; }), CuResult::kInvalidValue);
  EXPECT_EQ(refused([](CuMemcpy3D& c) { c.height = 2; }), CuResult::kInvalidValue);
  void* host = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&host, 4, 0));
  EXPECT_EQ(refused([&](CuMemcpy3D& c) {
              c.dst_memory_type = CuMemoryType::kHost;
              c.dst_host = host;
            }),
            CuResult::kInvalidValue);
  launch_and_wait(exec);
  EXPECT_EQ(get(other), 1u);
}

TEST_F(SimExec, AFillKeepsItsHeightAndAFillOfTwoDimensionsAllOfThem) {
  const CuDevicePtr area = allocate(64);
  const auto change = [&](CuMemsetNodeParams before, CuMemsetNodeParams after) {
    CuGraph fills = nullptr;
    CuGraphNode fill = nullptr;
    EXPECT_CU(d->cuGraphCreate(&fills, 0));
    EXPECT_CU(d->cuGraphAddMemsetNode(&fill, fills, nullptr, 0, &before, context));
    return d->cuGraphExecMemsetNodeSetParams(instantiate(fills), fill, &after, context);
  };
  EXPECT_CU(change({area, 0, 1, 4, 4, 1}, {area + 32, 0, 2, 4, 4, 1}));
  EXPECT_CU(change({area, 0, 1, 4, 4, 1}, {area, 0, 2, 4, 2, 1}));
  EXPECT_EQ(change({area, 0, 1, 4, 4, 1}, {area, 16, 2, 4, 2, 2}), CuResult::kInvalidValue);
  EXPECT_EQ(change({area, 0, 1, 4, 4, 1}, {area, 0, 2, 4, 0, 1}), CuResult::kInvalidValue);
  EXPECT_CU(change({area, 16, 1, 4, 2, 2}, {area + 32, 16, 2, 4, 2, 2}));
  EXPECT_EQ(change({area, 16, 1, 4, 2, 2}, {area, 16, 2, 4, 1, 2}), CuResult::kInvalidValue);
}

TEST_F(SimExec, ACopyStaysOnItsDevice) {
  start({.device_count = 2});
  make_add_one();
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
  ASSERT_CU(d->cuMemcpyDtoDAsync(b, a, 4, on));
  const CuGraph copies = end_capture(on);
  const CuGraphExec exec = instantiate(copies);
  CuContext second = nullptr;
  ASSERT_CU(d->cuDevicePrimaryCtxRetain(&second, 1));
  ASSERT_CU(d->cuCtxSetCurrent(second));
  const CuDevicePtr far = allocate(4);
  int ordinal = 0;
  ASSERT_CU(d->cuPointerGetAttribute(&ordinal, CuPointerAttribute::kDeviceOrdinal, far));
  EXPECT_EQ(ordinal, 1);
  CuMemcpy3D copy{};
  ASSERT_CU(d->cuGraphMemcpyNodeGetParams(nodes_of(copies).front(), &copy));
  copy.dst_device = far;
  EXPECT_EQ(d->cuGraphExecMemcpyNodeSetParams(exec, nodes_of(copies).front(), &copy, context),
            CuResult::kInvalidValue);
}

TEST_F(SimExec, ACopyMeansThePagesThatWereThereWhenItWasSet) {
  make_add_one();
  constexpr std::size_t kPage = MappedPages::kPageBytes;
  MappedPages pages(*d, 2);
  void* host = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&host, 2 * kPage, 0));
  std::memset(host, 0, 2 * kPage);
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
  ASSERT_CU(d->cuMemcpyHtoDAsync(pages.address(), host, 2 * kPage, on));
  const CuGraph copies = end_capture(on);
  const CuGraphExec exec = instantiate(copies);
  CuMemcpy3D copy{};
  ASSERT_CU(d->cuGraphMemcpyNodeGetParams(nodes_of(copies).front(), &copy));
  for (const std::size_t page : {0, 1}) {
    pages.map_anew(page);
    ASSERT_CU(d->cuGraphExecMemcpyNodeSetParams(exec, nodes_of(copies).front(), &copy, context));
    launch_and_wait(exec);
  }
  pages.map_anew(1);
  ASSERT_CU(d->cuGraphLaunch(exec, on));
  EXPECT_EQ(d->cuStreamSynchronize(on), CuResult::kLaunchFailed);
}

// Its operands tell where they lie by their addresses alone.
TEST_F(SimExec, ACopyOfAddressesKeepsItsKindsOfMemoryAndTakesNoneThatIsGone) {
  make_add_one();
  const MappedPages pages(*d, 1);
  for (const bool on_mapped : {false, true}) {
    const CuDevicePtr from = on_mapped ? pages.address() : a;
    ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
    ASSERT_CU(d->cuMemcpyAsync(from + 1024 * on_mapped, from, 4, on));
    const CuGraph copies = end_capture(on);
    const CuGraphExec exec = instantiate(copies);
    CuMemcpy3D copy{};
    ASSERT_CU(d->cuGraphMemcpyNodeGetParams(nodes_of(copies).front(), &copy));
    EXPECT_EQ(copy.dst_memory_type, CuMemoryType::kUnified);
    const auto set = [&](CuDevicePtr to) {
      copy.dst_device = to;
      return d->cuGraphExecMemcpyNodeSetParams(exec, nodes_of(copies).front(), &copy, context);
    };
    EXPECT_EQ(set(pages.address() + 64), on_mapped ? CuResult::kSuccess : CuResult::kInvalidValue);
    EXPECT_EQ(set(b), on_mapped ? CuResult::kInvalidValue : CuResult::kSuccess);
  }
  const CuDevicePtr gone = allocate(4);
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
  ASSERT_CU(d->cuMemcpyDtoDAsync(gone, a, 4, on));
  const CuGraph copies = end_capture(on);
  const CuGraphExec exec = instantiate(copies);
  CuMemcpy3D copy{};
  ASSERT_CU(d->cuGraphMemcpyNodeGetParams(nodes_of(copies).front(), &copy));
  ASSERT_CU(d->cuMemFree(gone));
  EXPECT_EQ(d->cuGraphExecMemcpyNodeSetParams(exec, nodes_of(copies).front(), &copy, context),
            CuResult::kInvalidValue);
}

TEST_F(SimExec, ADisabledNodeIsAnEmptyOneUntilItIsEnabled) {
  make_add_one();
  const CuGraphExec exec = instantiate(graph);
  ASSERT_CU(d->cuGraphNodeSetEnabled(exec, node, 0));
  unsigned enabled = 1;
  ASSERT_CU(d->cuGraphNodeGetEnabled(exec, node, &enabled));
  EXPECT_EQ(enabled, 0u);
  launch_and_wait(exec);
  EXPECT_EQ(get(b), 0u);
  ASSERT_CU(d->cuGraphNodeSetEnabled(exec, node, 1));
  launch_and_wait(exec);
  EXPECT_EQ(get(b), 2u);
}

TEST_F(SimExec, OnlyKernelsCopiesAndFillsCanBeDisabled) {
  CuGraph hosts = nullptr;
  CuGraphNode host = nullptr;
  const CuHostNodeParams params{[](void*) {}, nullptr};
  ASSERT_CU(d->cuGraphCreate(&hosts, 0));
  ASSERT_CU(d->cuGraphAddHostNode(&host, hosts, nullptr, 0, &params));
  EXPECT_EQ(d->cuGraphNodeSetEnabled(instantiate(hosts), host, 0), CuResult::kInvalidValue);
}

TEST_F(SimExec, TheGenericSetterIsTheSetterOfTheNodesType) {
  make_add_one();
  const CuGraphExec exec = instantiate(graph);
  CuGraphNodeParams params{};
  params.type = CuNodeType::kKernel;
  params.kernel = params_writing(&other);
  ASSERT_CU(d->cuGraphExecNodeSetParams(exec, node, &params));
  launch_and_wait(exec);
  EXPECT_EQ(get(other), 2u);
  params.type = CuNodeType::kMemset;
  EXPECT_EQ(d->cuGraphExecNodeSetParams(exec, node, &params), CuResult::kInvalidValue);
}

TEST_F(SimExec, AChildGraphIsSetFromOneOfTheSameShape) {
  make_add_one();
  CuGraph outer = nullptr, changed = nullptr, longer = nullptr;
  CuGraphNode child = nullptr, extra = nullptr;
  ASSERT_CU(d->cuGraphCreate(&outer, 0));
  ASSERT_CU(d->cuGraphAddChildGraphNode(&child, outer, nullptr, 0, graph));
  ASSERT_CU(d->cuGraphClone(&changed, graph));
  const CuKernelNodeParams params = params_writing(&other);
  ASSERT_CU(d->cuGraphKernelNodeSetParams(nodes_of(changed).front(), &params));
  ASSERT_CU(d->cuGraphClone(&longer, graph));
  ASSERT_CU(d->cuGraphAddEmptyNode(&extra, longer, nullptr, 0));
  const CuGraphExec exec = instantiate(outer);
  EXPECT_EQ(d->cuGraphExecChildGraphNodeSetParams(exec, child, longer),
            CuResult::kGraphExecUpdateFailure);
  ASSERT_CU(d->cuGraphExecChildGraphNodeSetParams(exec, child, changed));
  launch_and_wait(exec);
  EXPECT_EQ(get(b), 0u);
  EXPECT_EQ(get(other), 2u);
}

TEST_F(SimExec, AChildGraphOfAnotherShapeChangesNothing) {
  make_add_one();
  const auto then = [&](const std::function<void()>& work) {
    EXPECT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
    EXPECT_CU(add_one(on, a, other));
    work();
    return end_capture(on);
  };
  const auto fill = [&] { EXPECT_CU(d->cuMemsetD32Async(a, 1, 1, on)); };
  CuGraph outer = nullptr;
  CuGraphNode child = nullptr;
  ASSERT_CU(d->cuGraphCreate(&outer, 0));
  ASSERT_CU(d->cuGraphAddChildGraphNode(&child, outer, nullptr, 0, then(fill)));
  const CuGraphExec exec = instantiate(outer);
  const CuGraph typed = then([&] { EXPECT_CU(add_one(on, a, b)); });
  const CuGraph loose = then(fill);
  const std::vector<CuGraphNode> nodes = nodes_of(loose);
  ASSERT_CU(d->cuGraphRemoveDependencies(loose, &nodes[0], &nodes[1], nullptr, 1));
  const CuGraph turned = then(fill);
  const std::vector<CuGraphNode> ends = nodes_of(turned);
  ASSERT_CU(d->cuGraphRemoveDependencies(turned, &ends[0], &ends[1], nullptr, 1));
  ASSERT_CU(d->cuGraphAddDependencies(turned, &ends[1], &ends[0], nullptr, 1));
  for (const CuGraph wrong : {typed, loose, turned}) {
    EXPECT_EQ(d->cuGraphExecChildGraphNodeSetParams(exec, child, wrong),
              CuResult::kGraphExecUpdateFailure);
  }
  launch_and_wait(exec);
  EXPECT_EQ(get(other), 2u);
  EXPECT_EQ(get(b), 0u);
}

TEST_F(SimExec, EventNodesRecordAndWaitAtEveryLaunch) {
  on = stream();
  const CuEvent mark = event(), gate = event();
  const CuFunction work = noting("work", 3000), outside = noting("outside", 9000);
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
  ASSERT_CU(d->cuStreamWaitEvent(on, gate, kEventWaitExternal));
  ASSERT_CU(launch(work, on));
  ASSERT_CU(d->cuEventRecordWithFlags(mark, on, kEventRecordExternal));
  const CuGraphExec exec = instantiate(end_capture(on));
  const CuStream side = stream();
  ASSERT_CU(launch(outside, side));
  ASSERT_CU(d->cuEventRecord(gate, side));
  ASSERT_CU(d->cuGraphLaunch(exec, on));
  ASSERT_CU(d->cuEventSynchronize(mark));
  EXPECT_THAT(order, ElementsAre("outside", "work"));
  EXPECT_EQ(sim->now_ns(), 12000u);
}

TEST_F(SimExec, DestroyingItLeavesQueuedLaunchesAlone) {
  make_add_one();
  const CuGraphExec exec = instantiate(graph);
  ASSERT_CU(d->cuGraphLaunch(exec, on));
  ASSERT_CU(d->cuGraphExecDestroy(exec));
  ASSERT_CU(d->cuStreamSynchronize(on));
  EXPECT_EQ(get(b), 2u);
  EXPECT_EQ(d->cuGraphLaunch(exec, on), CuResult::kInvalidValue);
}

TEST_F(SimExec, AKernelMovesALaterNodeOfItsOwnGraph) {
  make_updated();
  const CuGraphExec exec = instantiate(graph);
  ASSERT_CU(d->cuGraphUpload(exec, on));
  launch_and_wait(exec);
  EXPECT_CU(update);
  EXPECT_EQ(get(b), 0u);
  EXPECT_EQ(get(other), 2u);
}

TEST_F(SimExec, WithoutAnUploadTheFirstLaunchUndoesItsOwnUpdates) {
  make_updated();
  const CuGraphExec exec = instantiate(graph);
  launch_and_wait(exec);
  EXPECT_CU(update);
  EXPECT_EQ(get(b), 2u);
  EXPECT_EQ(get(other), 0u);
  launch_and_wait(exec);  // the first launch has uploaded
  EXPECT_EQ(get(other), 2u);
}

TEST_F(SimExec, KernelsRunWithThePriorityOfTheLaunchOrOfTheirNodes) {
  std::vector<int> seen;
  const CuFunction kernel =
      load({.name = "note_priority", .params = {}, .run = [&](const KernelCall& call) {
              seen.push_back(call.priority);
            }});
  CuStream urgent = nullptr, on_launch = nullptr;
  ASSERT_CU(d->cuStreamCreateWithPriority(&urgent, kStreamNonBlocking, -4));
  ASSERT_CU(d->cuStreamCreateWithPriority(&on_launch, kStreamNonBlocking, -1));
  ASSERT_CU(d->cuStreamBeginCapture(urgent, CuCaptureMode::kRelaxed));
  ASSERT_CU(launch(kernel, urgent));
  const CuGraph captured = end_capture(urgent);
  for (const unsigned long long flags : {0ull, kInstantiateUseNodePriority}) {
    ASSERT_CU(d->cuGraphLaunch(instantiate(captured, flags), on_launch));
    ASSERT_CU(d->cuStreamSynchronize(on_launch));
  }
  EXPECT_THAT(seen, ElementsAre(-1, -4));
}

TEST_F(SimExec, WhatDeviceCodeMayLaunchHoldsNothingOfTheHosts) {
  CuFunction nothing = load({.name = "nothing", .params = {}, .run = nullptr});
  on = stream();
  CuEvent event = nullptr;
  ASSERT_CU(d->cuEventCreate(&event, kEventDisableTiming));
  const auto result_with = [&](const std::function<void()>& queue) {
    EXPECT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
    EXPECT_CU(launch(nothing, on));
    queue();
    CuInstantiateParams params{kInstantiateDeviceLaunch, nullptr, nullptr, {}};
    CuGraphExec exec = nullptr;
    return d->cuGraphInstantiateWithParams(&exec, end_capture(on), &params);
  };
  EXPECT_CU(result_with([] {}));
  EXPECT_EQ(result_with([&] {
              EXPECT_CU(d->cuLaunchHostFunc(
                  on, [](void*) {}, nullptr));
            }),
            CuResult::kInvalidValue);
  EXPECT_EQ(
      result_with([&] { EXPECT_CU(d->cuEventRecordWithFlags(event, on, kEventRecordExternal)); }),
      CuResult::kInvalidValue);
  CuGraph empty = nullptr;
  ASSERT_CU(d->cuGraphCreate(&empty, 0));
  CuInstantiateParams params{kInstantiateDeviceLaunch, nullptr, nullptr, {}};
  CuGraphExec exec = nullptr;
  EXPECT_EQ(d->cuGraphInstantiateWithParams(&exec, empty, &params), CuResult::kInvalidValue);
  ASSERT_CU(d->cuGraphAddEmptyNode(&node, empty, nullptr, 0));
  EXPECT_EQ(d->cuGraphInstantiateWithParams(&exec, empty, &params), CuResult::kInvalidValue);
  EXPECT_EQ(params.error_node, node);
  EXPECT_CU(d->cuGraphDestroy(empty));
}

TEST_F(SimExec, TheInstantiationCanUpload) {
  make_updated();
  const CuGraphExec exec = instantiate(graph, kInstantiateUpload);
  launch_and_wait(exec);
  EXPECT_EQ(get(other), 2u);
}

TEST_F(SimExec, AnUploadOverwritesWhatTheDeviceChanged) {
  make_updated();
  const CuGraphExec exec = instantiate(graph, kInstantiateUpload);
  launch_and_wait(exec);
  const CuFunction idle = load({.name = "idle", .params = {}, .run = nullptr});
  CuKernelNodeParams params{idle, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr, nullptr};
  ASSERT_CU(d->cuGraphExecKernelNodeSetParams(exec, nodes_of(graph).front(), &params));
  put(other, 0);
  launch_and_wait(exec);  // nobody updates: the device's change is still there
  EXPECT_EQ(get(other), 2u);
  ASSERT_CU(d->cuGraphUpload(exec, on));
  launch_and_wait(exec);
  EXPECT_EQ(get(b), 2u);
}

TEST_F(SimExec, AHostSetterCallsForAnotherUpload) {
  make_updated();
  const CuGraphExec exec = instantiate(graph, kInstantiateUpload);
  launch_and_wait(exec);
  const CuKernelNodeParams params = params_writing(&b);
  ASSERT_CU(d->cuGraphExecKernelNodeSetParams(exec, node, &params));
  put(other, 0);
  launch_and_wait(exec);  // uploads for itself, and so undoes the update
  EXPECT_EQ(get(b), 2u);
  EXPECT_EQ(get(other), 0u);
}

TEST_F(SimExec, AnUpdatableNodeHoldsItsGraphFast) {
  make_updated();
  EXPECT_EQ(d->cuGraphDestroyNode(node), CuResult::kNotSupported);
  CuGraph clone = nullptr;
  EXPECT_EQ(d->cuGraphClone(&clone, graph), CuResult::kNotSupported);
  CuLaunchAttributeValue off{};
  const auto id = CuLaunchAttributeId::kDeviceUpdatableKernelNode;
  EXPECT_EQ(d->cuGraphKernelNodeSetAttribute(node, id, &off), CuResult::kNotSupported);
  const CuGraphExec exec = instantiate(graph);
  CuInstantiateParams params{};
  CuGraphExec second = nullptr;
  EXPECT_EQ(d->cuGraphInstantiateWithParams(&second, graph, &params), CuResult::kNotSupported);
  ASSERT_CU(d->cuGraphExecDestroy(exec));
  EXPECT_CU(d->cuGraphInstantiateWithParams(&second, graph, &params));
}

TEST_F(SimExec, DeviceCodeUpdatesWithinTheBlockAndOnlyWhileItRuns) {
  make_updated();
  std::vector<CuResult> results;
  const CuFunction probe = load({.name = "probe", .params = {}, .run = [&](const KernelCall&) {
                                   results = {SimDriver::update_param(device_node, 20, &target, 1),
                                              SimDriver::update_param(nullptr, 0, &target, 8),
                                              SimDriver::set_grid(device_node, {0, 1, 1}),
                                              SimDriver::set_enabled(device_node, false)};
                                 }});
  const CuGraphExec exec = instantiate(graph, kInstantiateUpload);
  EXPECT_EQ(SimDriver::update_param(device_node, 8, &target, 8), CuResult::kInvalidValue);
  ASSERT_CU(launch(probe, on));
  launch_and_wait(exec);
  EXPECT_THAT(results, ElementsAre(CuResult::kInvalidValue, CuResult::kInvalidValue,
                                   CuResult::kInvalidValue, CuResult::kSuccess));
  EXPECT_EQ(get(b), 0u);
  EXPECT_EQ(get(other), 0u);
}

TEST_F(SimExec, ACapturedLaunchCanAskForAnUpdatableNode) {
  on = stream();
  const CuFunction function = noting("k");
  CuLaunchAttribute attribute{};
  attribute.id = CuLaunchAttributeId::kDeviceUpdatableKernelNode;
  attribute.value.device_updatable_kernel_node.device_updatable = 1;
  CuLaunchConfig config{1, 1, 1, 32, 1, 1, 0, on, &attribute, 1};
  EXPECT_EQ(d->cuLaunchKernelEx(&config, function, nullptr, nullptr), CuResult::kNotSupported);
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
  ASSERT_CU(d->cuLaunchKernelEx(&config, function, nullptr, nullptr));
  const CuDeviceNode given = attribute.value.device_updatable_kernel_node.dev_node;
  CuLaunchAttributeValue shown{};
  ASSERT_CU(
      d->cuGraphKernelNodeGetAttribute(nodes_of(end_capture(on)).front(), attribute.id, &shown));
  EXPECT_NE(given, nullptr);
  EXPECT_EQ(shown.device_updatable_kernel_node.dev_node, given);
}

TEST_F(SimExec, AnUpdatableNodeInsideAChildGraphCountsToo) {
  make_add_one();
  CuGraph outer = nullptr, owned = nullptr;
  CuGraphNode child = nullptr;
  ASSERT_CU(d->cuGraphCreate(&outer, 0));
  ASSERT_CU(d->cuGraphAddChildGraphNode(&child, outer, nullptr, 0, graph));
  ASSERT_CU(d->cuGraphChildGraphNodeGetGraph(child, &owned));
  make_updatable(nodes_of(owned).front());
  const CuGraphExec exec = instantiate(outer);
  CuInstantiateParams params{};
  CuGraphExec second = nullptr;
  EXPECT_EQ(d->cuGraphInstantiateWithParams(&second, outer, &params), CuResult::kNotSupported);
  ASSERT_CU(d->cuGraphExecDestroy(exec));
  launch_and_wait(instantiate(outer));
  EXPECT_EQ(get(b), 2u);
}

TEST_F(SimExec, SomeFunctionsCannotBeUpdatedFromTheDevice) {
  on = stream();
  const CuFunction fixed =
      load({.name = "fixed", .params = {}, .run = nullptr, .device_updatable = false});
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
  ASSERT_CU(launch(fixed, on));
  CuLaunchAttributeValue value{};
  value.device_updatable_kernel_node.device_updatable = 1;
  EXPECT_EQ(
      d->cuGraphKernelNodeSetAttribute(nodes_of(end_capture(on)).front(),
                                       CuLaunchAttributeId::kDeviceUpdatableKernelNode, &value),
      CuResult::kNotSupported);
}

TEST_F(SimExec, EverythingThatIsFreedIsGone) {
  make_updated();
  const CuGraphExec exec = instantiate(graph, kInstantiateUpload);
  launch_and_wait(exec);
  const std::size_t before = sim->live_objects();
  ASSERT_CU(d->cuGraphExecDestroy(exec));
  ASSERT_CU(d->cuGraphDestroy(graph));
  EXPECT_EQ(sim->live_objects(), before - 2);
  EXPECT_THAT(sim->violations(), IsEmpty());
}

// Every call of a small recording fails once, and nothing is left behind: the form in which record
// and launch are tested.
TEST_F(SimExec, ARecordingThatCleansUpLeavesNothingWhicheverCallFails) {
  const CuDevicePtr memory = allocate(8);
  const CuFunction function = load("add_one");
  on = stream();
  const std::size_t before = sim->live_objects();
  const auto record = [&] {
    CuDevicePtr in = memory, out = memory + 4;
    std::uint32_t count = 1;
    CuGraph made = nullptr;
    CuGraphExec exec = nullptr;
    CuInstantiateParams params{};
    CuResult result = d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed);
    if (result != CuResult::kSuccess) return result;
    result = launch(function, on, {&in, &out, &count});
    const CuResult ended = d->cuStreamEndCapture(on, &made);
    if (result == CuResult::kSuccess) result = ended;
    if (result == CuResult::kSuccess) {
      result = d->cuGraphInstantiateWithParams(&exec, made, &params);
    }
    if (exec) d->cuGraphExecDestroy(exec);
    if (made) d->cuGraphDestroy(made);
    return result;
  };
  for (std::uint64_t n = 1; n < 20; ++n) {
    sim->fail_call(n, CuResult::kOutOfMemory);
    const CuResult result = record();
    EXPECT_EQ(sim->live_objects(), before) << n << " " << sim->failed_call();
    if (sim->failed_call().empty()) {
      EXPECT_CU(result);
      EXPECT_EQ(n, 7u);
      return;
    }
  }
  FAIL() << "it never got through";
}

}  // namespace
}  // namespace anabranch::sim
