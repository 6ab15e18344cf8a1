// SPDX-License-Identifier: Apache-2.0
// Parameters, graphs and the setters of executable graphs.
#include <algorithm>
#include <cstring>

#include "differential.h"

namespace anabranch::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class Params : public Differential {
 protected:
  // What `extra` of a node spells, and its keys in the order in which they came.
  struct Packed {
    std::vector<void*> keys;
    const void* block = nullptr;
    std::size_t bytes = 0;
  };
  static Packed read_packed(void** extra) {
    Packed packed;
    for (; extra && packed.keys.size() < 4 && *extra != kParamsEnd; extra += 2) {
      packed.keys.push_back(*extra);
      if (*extra == params_buffer_key()) packed.block = extra[1];
      if (*extra == params_size_key()) packed.bytes = *static_cast<std::size_t*>(extra[1]);
    }
    return packed;
  }
};
class Graphs : public Differential {};
class Execs : public Differential {
 protected:
  // add_one(a, b), captured and instantiated.
  void make_add_one() {
    a = allocate(4), b = allocate(4), other = allocate(4);
    put(a, {1}), put(b, {0}), put(other, {0});
    graph = capture([&](CuStream on) { ASSERT_CU(launch_add_one(on, a, b)); });
    node = nodes_of(graph).front();
  }
  CuKernelNodeParams params_writing(CuDevicePtr* out) {
    CuKernelNodeParams params{};
    EXPECT_CU(d.cuGraphKernelNodeGetParams(node, &params));
    pointers = {params.kernel_params[0], out, params.kernel_params[2]};
    params.kernel_params = pointers.data();
    return params;
  }
  CuResult set_updatable(int on) {
    CuLaunchAttributeValue value{};
    value.device_updatable_kernel_node.device_updatable = on;
    return d.cuGraphKernelNodeSetAttribute(node, CuLaunchAttributeId::kDeviceUpdatableKernelNode,
                                           &value);
  }
  CuUpdatable updatable() {
    CuLaunchAttributeValue value{};
    EXPECT_CU(d.cuGraphKernelNodeGetAttribute(node, CuLaunchAttributeId::kDeviceUpdatableKernelNode,
                                              &value));
    return value.device_updatable_kernel_node;
  }
  CuMemcpy3D copy_of(CuDevicePtr dst, CuDevicePtr src, std::size_t bytes) {
    CuMemcpy3D copy{};
    copy.src_memory_type = copy.dst_memory_type = CuMemoryType::kDevice;
    copy.src_device = src;
    copy.dst_device = dst;
    copy.width_bytes = bytes;
    copy.height = copy.depth = 1;
    return copy;
  }

  CuDevicePtr a = 0, b = 0, other = 0;
  CuGraph graph = nullptr;
  CuGraphNode node = nullptr;
  std::vector<void*> pointers;
};

TEST_F(Params, AreListedUntilAnInvalidValue) {
  std::size_t offset = 0, bytes = 0;
  ASSERT_CU(d.cuFuncGetParamInfo(store, 0, &offset, &bytes));
  EXPECT_EQ(offset, 0u);
  EXPECT_EQ(bytes, 4u);
  ASSERT_CU(d.cuFuncGetParamInfo(store, 1, &offset, &bytes));
  EXPECT_EQ(offset, 8u);
  EXPECT_EQ(bytes, 16u);
  EXPECT_EQ(d.cuFuncGetParamInfo(store, 2, &offset, &bytes), CuResult::kInvalidValue);
  EXPECT_EQ(d.cuFuncGetParamInfo(nothing, 0, &offset, &bytes), CuResult::kInvalidValue);
}

TEST_F(Params, AreTheSameOneByOneAndAsABlock) {
  const CuDevicePtr a = allocate(8), b = allocate(8);
  std::uint32_t count = 2;
  Target target{a, 7, 0};
  ASSERT_CU(launch(store, nullptr, {&count, &target}));
  struct {
    std::uint32_t count, padding;
    Target target;
  } block{2, 0, {b, 9, 0}};
  std::size_t bytes = sizeof block;
  void* extra[] = {params_buffer_key(), &block, params_size_key(), &bytes, kParamsEnd};
  ASSERT_CU(d.cuLaunchKernel(store, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_THAT(get(a, 2), Each(7u));
  EXPECT_THAT(get(b, 2), Each(9u));
  void* params[] = {&count, &target};
  EXPECT_EQ(d.cuLaunchKernel(store, 1, 1, 1, 32, 1, 1, 0, nullptr, params, extra),
            CuResult::kInvalidValue);
}

TEST_F(Params, AreShownByANodeInTheStyleInWhichTheyWereGiven) {
  const CuDevicePtr a = allocate(8);
  struct {
    std::uint32_t count, padding;
    Target target;
  } block{2, 0, {a, 9, 0}};
  std::size_t bytes = sizeof block;
  void* extra[] = {params_buffer_key(), &block, params_size_key(), &bytes, kParamsEnd};
  const CuGraph graph = capture([&](CuStream on) {
    ASSERT_CU(d.cuLaunchKernel(store, 1, 1, 1, 32, 1, 1, 0, on, nullptr, extra));
    ASSERT_CU(launch(store, on, {&block.count, &block.target}));
  });
  const std::vector<CuGraphNode> nodes = nodes_of(graph);
  ASSERT_EQ(nodes.size(), 2u);
  CuKernelNodeParams shown{};
  EXPECT_CU(d.cuGraphKernelNodeGetParams(nodes[0], &shown));
  EXPECT_EQ(shown.func, store);
  EXPECT_EQ(shown.kernel_params, nullptr);
  const Packed packed = read_packed(shown.extra);
  EXPECT_THAT(packed.keys, ElementsAre(params_size_key(), params_buffer_key()));
  EXPECT_EQ(packed.bytes, sizeof block);
  EXPECT_TRUE(packed.block && std::memcmp(packed.block, &block, sizeof block) == 0);
  EXPECT_CU(d.cuGraphKernelNodeSetParams(nodes[0], &shown));  // it can be given back
  EXPECT_CU(d.cuGraphKernelNodeGetParams(nodes[1], &shown));
  EXPECT_EQ(shown.extra, nullptr);
  if (shown.kernel_params) {
    EXPECT_EQ(static_cast<Target*>(shown.kernel_params[1])->out, a);
  } else {
    ADD_FAILURE() << "parameters given one by one are not shown so";
  }
  run(instantiate(graph));
  EXPECT_THAT(get(a, 2), Each(9u));
}

TEST_F(Params, ABlockLongerThanTheParametersIsInvalidAndBreaksNoCapture) {
  const CuDevicePtr a = allocate(8);
  struct {
    std::uint32_t count, padding;
    Target target;
    std::uint64_t more[4];
  } block{2, 0, {a, 9, 0}, {1, 2, 3, 4}};
  std::size_t bytes = sizeof block;
  void* extra[] = {params_buffer_key(), &block, params_size_key(), &bytes, kParamsEnd};
  const CuGraph graph = capture([&](CuStream on) {
    EXPECT_EQ(d.cuLaunchKernel(store, 1, 1, 1, 32, 1, 1, 0, on, nullptr, extra),
              CuResult::kInvalidValue);
  });
  EXPECT_TRUE(nodes_of(graph).empty());
}

// A shorter block is taken by the device (16 bytes for 20), and is nothing to rely on.
TEST_F(Params, ABlockIsAsLongAsTheParametersWithoutThePaddingOfAStruct) {
  const CuDevicePtr a = allocate(4), b = allocate(4);
  put(a, {1}), put(b, {0});
  struct {
    CuDevicePtr in, out;
    std::uint32_t count, padding;
  } block{a, b, 1, 0};
  std::size_t bytes = 20;
  void* extra[] = {params_buffer_key(), &block, params_size_key(), &bytes, kParamsEnd};
  const CuGraph graph = capture([&](CuStream on) {
    EXPECT_CU(d.cuLaunchKernel(add_one, 1, 1, 1, 32, 1, 1, 0, on, nullptr, extra));
    for (const std::size_t wrong : {sizeof block, sizeof block + 8}) {
      bytes = wrong;
      EXPECT_EQ(d.cuLaunchKernel(add_one, 1, 1, 1, 32, 1, 1, 0, on, nullptr, extra),
                CuResult::kInvalidValue)
          << wrong << " bytes";
    }
  });
  const std::vector<CuGraphNode> nodes = nodes_of(graph);
  ASSERT_EQ(nodes.size(), 1u);
  CuKernelNodeParams shown{};
  EXPECT_CU(d.cuGraphKernelNodeGetParams(nodes[0], &shown));
  EXPECT_EQ(read_packed(shown.extra).bytes, 20u);
  run(instantiate(graph));
  EXPECT_THAT(get(b, 1), ElementsAre(2u));
}

TEST_F(Params, ShapesThatNoDeviceTakesAreInvalid) {
  EXPECT_EQ(d.cuLaunchKernel(nothing, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CuResult::kInvalidValue);
  EXPECT_EQ(d.cuLaunchKernel(nothing, 1, 1, 1, 1025, 1, 1, 0, nullptr, nullptr, nullptr),
            CuResult::kInvalidValue);
}

TEST_F(Params, AnUnknownKernelIsNotFound) {
  CuFunction function = nullptr;
  EXPECT_EQ(d.cuModuleGetFunction(&function, module, "unknown"), CuResult::kNotFound);
}

TEST_F(Graphs, ListNodesInTheOrderOfTheirMaking) {
  CuGraph graph = capture([](CuStream) {});
  CuGraphNode nodes[3];
  for (CuGraphNode& made : nodes) ASSERT_CU(d.cuGraphAddEmptyNode(&made, graph, nullptr, 0));
  EXPECT_THAT(nodes_of(graph), ElementsAre(nodes[0], nodes[1], nodes[2]));
}

TEST_F(Graphs, RefuseAnEdgeTwiceAndAnEdgeToItself) {
  CuGraph graph = capture([](CuStream) {});
  CuGraphNode first = nullptr, second = nullptr;
  ASSERT_CU(d.cuGraphAddEmptyNode(&first, graph, nullptr, 0));
  ASSERT_CU(d.cuGraphAddEmptyNode(&second, graph, &first, 1));
  EXPECT_EQ(d.cuGraphAddDependencies(graph, &first, &second, nullptr, 1), CuResult::kInvalidValue);
  EXPECT_EQ(d.cuGraphAddDependencies(graph, &first, &first, nullptr, 1), CuResult::kInvalidValue);
}

TEST_F(Graphs, TakeProgrammaticEdgesBetweenKernelsOnly) {
  const CuGraph graph = capture([&](CuStream on) { ASSERT_CU(launch(nothing, on)); });
  CuGraphNode empty = nullptr;
  ASSERT_CU(d.cuGraphAddEmptyNode(&empty, graph, nullptr, 0));
  const CuGraphNode kernel = nodes_of(graph).front();
  const CuEdgeData data{kPortProgrammatic, 0, kEdgeProgrammatic, {}};
  EXPECT_EQ(d.cuGraphAddDependencies(graph, &kernel, &empty, &data, 1), CuResult::kInvalidValue);
}

TEST_F(Graphs, GiveAllEdgesOfOneCallTheDataOfTheFirst) {
  const CuGraph graph = capture([](CuStream) {});
  const CuKernelNodeParams params{nothing, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, {}, {}};
  CuGraphNode nodes[3];
  for (CuGraphNode& made : nodes) {
    ASSERT_CU(d.cuGraphAddKernelNode(&made, graph, nullptr, 0, &params));
  }
  const CuGraphNode from[] = {nodes[0], nodes[0]}, to[] = {nodes[1], nodes[2]};
  const CuEdgeData data[] = {{}, {kPortProgrammatic, 0, kEdgeProgrammatic, {}}};
  ASSERT_CU(d.cuGraphAddDependencies(graph, from, to, data, 2));
  CuGraphNode found_from[2], found_to[2];
  CuEdgeData found[2];
  std::size_t count = 2;
  ASSERT_CU(d.cuGraphGetEdges(graph, found_from, found_to, found, &count));
  for (const CuEdgeData& edge : found) EXPECT_EQ(edge.type, kEdgeDefault);
}

TEST_F(Graphs, AChildIsACopyOwnedByItsNode) {
  const CuGraph child = capture([&](CuStream on) { ASSERT_CU(launch(nothing, on)); });
  const CuGraph outer = capture([](CuStream) {});
  CuGraphNode node = nullptr;
  CuGraph owned = nullptr;
  ASSERT_CU(d.cuGraphAddChildGraphNode(&node, outer, nullptr, 0, child));
  ASSERT_CU(d.cuGraphChildGraphNodeGetGraph(node, &owned));
  EXPECT_NE(owned, child);
  EXPECT_EQ(nodes_of(owned).size(), 1u);
  run(instantiate(outer));
}

TEST_F(Graphs, ACycleIsInvalidWhenInstantiated) {
  const CuGraph graph = capture([](CuStream) {});
  CuGraphNode first = nullptr, second = nullptr;
  ASSERT_CU(d.cuGraphAddEmptyNode(&first, graph, nullptr, 0));
  ASSERT_CU(d.cuGraphAddEmptyNode(&second, graph, &first, 1));
  ASSERT_CU(d.cuGraphAddDependencies(graph, &second, &first, nullptr, 1));
  CuInstantiateParams params{};
  CuGraphExec exec = nullptr;
  EXPECT_EQ(d.cuGraphInstantiateWithParams(&exec, graph, &params), CuResult::kInvalidValue);
  EXPECT_EQ(params.result, CuInstantiateResult::kInvalidStructure);
}

TEST_F(Execs, ASetterChangesLaterLaunchesOnly) {
  make_add_one();
  const CuGraphExec exec = instantiate(graph);
  const CuStream on = stream();
  ASSERT_CU(d.cuGraphLaunch(exec, on));
  const CuKernelNodeParams params = params_writing(&other);
  ASSERT_CU(d.cuGraphExecKernelNodeSetParams(exec, node, &params));
  ASSERT_CU(d.cuStreamSynchronize(on));
  EXPECT_THAT(get(b, 1), ElementsAre(2u));
  EXPECT_THAT(get(other, 1), ElementsAre(0u));
  run(exec);
  EXPECT_THAT(get(other, 1), ElementsAre(2u));
}

TEST_F(Execs, TheGenericSetterIsTheSetterOfTheNodesType) {
  make_add_one();
  const CuGraphExec exec = instantiate(graph);
  CuGraphNodeParams params{};
  params.type = CuNodeType::kKernel;
  params.kernel = params_writing(&other);
  ASSERT_CU(d.cuGraphExecNodeSetParams(exec, node, &params));
  run(exec);
  EXPECT_THAT(get(other, 1), ElementsAre(2u));
}

TEST_F(Execs, LaunchesOfOneExecutableDoNotOverlap) {
  make_add_one();
  const CuGraphExec exec =
      instantiate(capture([&](CuStream on) { ASSERT_CU(launch_add_one(on, a, a)); }));
  const CuStream first = stream(), second = stream();
  for (int i = 0; i < 50; ++i) {
    ASSERT_CU(d.cuGraphLaunch(exec, first));
    ASSERT_CU(d.cuGraphLaunch(exec, second));
  }
  ASSERT_CU(d.cuCtxSynchronize());
  EXPECT_THAT(get(a, 1), ElementsAre(101u));
}

// Attributes that have no name here count too, as many as this driver has.
TEST_F(Execs, AKernelNodeMadeAgainHasAllAttributesOfTheFirst) {
  make_add_one();
  CuLaunchAttributeValue priority{}, cooperative{};
  priority.priority = -1, cooperative.cooperative = 1;
  ASSERT_CU(d.cuGraphKernelNodeSetAttribute(node, CuLaunchAttributeId::kPriority, &priority));
  ASSERT_CU(d.cuGraphKernelNodeSetAttribute(node, CuLaunchAttributeId::kCooperative, &cooperative));
  CuKernelNodeParams params{};
  ASSERT_CU(d.cuGraphKernelNodeGetParams(node, &params));
  CuGraphNode again = nullptr;
  ASSERT_CU(d.cuGraphAddKernelNode(&again, graph, nullptr, 0, &params));
  ASSERT_CU(d.cuGraphKernelNodeCopyAttributes(again, node));
  for (int id = 1; id < 24; ++id) {
    CuLaunchAttributeValue first{}, second{};
    const auto which = static_cast<CuLaunchAttributeId>(id);
    const CuResult shown = d.cuGraphKernelNodeGetAttribute(node, which, &first);
    ASSERT_EQ(d.cuGraphKernelNodeGetAttribute(again, which, &second), shown);
    EXPECT_EQ(std::memcmp(&first, &second, sizeof first), 0) << id;
  }
  ASSERT_CU(d.cuGraphKernelNodeGetAttribute(again, CuLaunchAttributeId::kPriority, &priority));
  EXPECT_EQ(priority.priority, -1);
  ASSERT_CU(d.cuGraphDestroyNode(node));
  run(instantiate(graph));
  EXPECT_THAT(get(b, 1), ElementsAre(2u));
}

TEST_F(Execs, ADisabledNodeDoesNothing) {
  make_add_one();
  const CuGraphExec exec = instantiate(graph);
  ASSERT_CU(d.cuGraphNodeSetEnabled(exec, node, 0));
  unsigned enabled = 1;
  ASSERT_CU(d.cuGraphNodeGetEnabled(exec, node, &enabled));
  EXPECT_EQ(enabled, 0u);
  run(exec);
  EXPECT_THAT(get(b, 1), ElementsAre(0u));
}

TEST_F(Execs, AnEmptyNodeCannotBeDisabled) {
  const CuGraph empty = capture([](CuStream) {});
  CuGraphNode made = nullptr;
  ASSERT_CU(d.cuGraphAddEmptyNode(&made, empty, nullptr, 0));
  EXPECT_EQ(d.cuGraphNodeSetEnabled(instantiate(empty), made, 0), CuResult::kInvalidValue);
}

TEST_F(Execs, ACopyStaysOneDimensionalBetweenTheSamePlacesAndIsNeverEmpty) {
  make_add_one();
  const CuGraph copies = capture([&](CuStream on) { ASSERT_CU(d.cuMemcpyDtoDAsync(b, a, 4, on)); });
  const CuGraphExec exec = instantiate(copies);
  const CuGraphNode copy_node = nodes_of(copies).front();
  const auto set = [&](const CuMemcpy3D& copy) {
    return d.cuGraphExecMemcpyNodeSetParams(exec, copy_node, &copy, context);
  };
  CuMemcpy3D copy = copy_of(other, a, 4);
  EXPECT_CU(set(copy));
  EXPECT_EQ(set(copy_of(other, a, 0)), CuResult::kInvalidValue);
  copy.height = 2;
  copy.width_bytes = copy.src_pitch = copy.dst_pitch = 2;
  EXPECT_EQ(set(copy), CuResult::kInvalidValue);
  copy = copy_of(0, a, 4);
  copy.dst_memory_type = CuMemoryType::kHost;
  copy.dst_host = allocate_host(4);
  EXPECT_EQ(set(copy), CuResult::kInvalidValue);
  run(exec);
  EXPECT_THAT(get(other, 1), ElementsAre(1u));
}

TEST_F(Execs, AFillKeepsItsHeight) {
  const CuDevicePtr area = allocate(64);
  const auto change = [&](CuMemsetNodeParams before, CuMemsetNodeParams after) {
    const CuGraph fills = capture([](CuStream) {});
    CuGraphNode fill = nullptr;
    EXPECT_CU(d.cuGraphAddMemsetNode(&fill, fills, nullptr, 0, &before, context));
    return d.cuGraphExecMemsetNodeSetParams(instantiate(fills), fill, &after, context);
  };
  EXPECT_CU(change({area, 0, 1, 4, 4, 1}, {area + 32, 0, 2, 4, 4, 1}));
  EXPECT_EQ(change({area, 0, 1, 4, 4, 1}, {area, 16, 2, 4, 2, 2}), CuResult::kInvalidValue);
  EXPECT_EQ(change({area, 0, 1, 4, 4, 1}, {area, 0, 2, 4, 0, 1}), CuResult::kInvalidValue);
  EXPECT_CU(change({area, 16, 1, 4, 2, 2}, {area + 32, 16, 2, 4, 2, 2}));
  EXPECT_EQ(change({area, 16, 1, 4, 2, 2}, {area, 16, 2, 4, 1, 2}), CuResult::kInvalidValue);
}

TEST_F(Execs, AChildIsSetFromAGraphOfTheSameShape) {
  make_add_one();
  const CuGraph outer = capture([](CuStream) {});
  CuGraphNode child = nullptr, extra = nullptr;
  ASSERT_CU(d.cuGraphAddChildGraphNode(&child, outer, nullptr, 0, graph));
  const CuGraphExec exec = instantiate(outer);
  const CuGraph same = capture([&](CuStream on) { ASSERT_CU(launch_add_one(on, a, other)); });
  const CuGraph longer = capture([&](CuStream on) { ASSERT_CU(launch_add_one(on, a, other)); });
  ASSERT_CU(d.cuGraphAddEmptyNode(&extra, longer, nullptr, 0));
  EXPECT_EQ(d.cuGraphExecChildGraphNodeSetParams(exec, child, longer),
            CuResult::kGraphExecUpdateFailure);
  EXPECT_CU(d.cuGraphExecChildGraphNodeSetParams(exec, child, same));
  run(exec);
  EXPECT_THAT(get(b, 1), ElementsAre(0u));
  EXPECT_THAT(get(other, 1), ElementsAre(2u));
}

TEST_F(Execs, AChildOfAnotherShapeChangesNothing) {
  make_add_one();
  const CuGraph child = capture([&](CuStream on) {
    EXPECT_CU(launch_add_one(on, a, b));
    EXPECT_CU(launch(nothing, on));
  });
  const CuGraph outer = capture([](CuStream) {});
  CuGraphNode node_of_child = nullptr;
  ASSERT_CU(d.cuGraphAddChildGraphNode(&node_of_child, outer, nullptr, 0, child));
  const CuGraphExec exec = instantiate(outer);
  const auto set = [&](const std::function<CuResult(CuStream)>& second, bool apart) {
    const CuGraph then = capture([&](CuStream on) {
      EXPECT_CU(launch_add_one(on, a, other));
      EXPECT_CU(second(on));
    });
    const std::vector<CuGraphNode> nodes = nodes_of(then);
    if (apart) {
      EXPECT_CU(d.cuGraphRemoveDependencies(then, &nodes[0], &nodes[1], nullptr, 1));
    }
    return d.cuGraphExecChildGraphNodeSetParams(exec, node_of_child, then);
  };
  const auto fill = [&](CuStream on) { return d.cuMemsetD32Async(a, 1, 1, on); };
  const auto empty = [&](CuStream on) { return launch(nothing, on); };
  EXPECT_EQ(set(fill, false), CuResult::kGraphExecUpdateFailure) << "another type";
  EXPECT_EQ(set(empty, true), CuResult::kGraphExecUpdateFailure) << "no edge";
  EXPECT_EQ(d.cuGraphExecChildGraphNodeSetParams(exec, node_of_child, graph),
            CuResult::kGraphExecUpdateFailure)
      << "fewer nodes";
  run(exec);
  EXPECT_THAT(get(b, 1), ElementsAre(2u));
  EXPECT_THAT(get(other, 1), ElementsAre(0u));
  const auto another = [&](CuStream on) { return launch_add_one(on, a, a); };
  EXPECT_CU(set(another, false)) << "another function";
  run(exec);
  EXPECT_THAT(get(other, 1), ElementsAre(2u));
  EXPECT_THAT(get(a, 1), ElementsAre(2u));
}

TEST_F(Execs, AnUpdatableNodeHasAHandleAndCannotBeUnset) {
  make_add_one();
  ASSERT_CU(set_updatable(1));
  const CuUpdatable first = updatable();
  EXPECT_EQ(first.device_updatable, 1);
  EXPECT_NE(first.dev_node, nullptr);
  EXPECT_EQ(set_updatable(0), CuResult::kNotSupported);
}

TEST_F(Execs, SettingAnUpdatableNodeAgainKeepsItsHandle) {
  make_add_one();
  EXPECT_EQ(updatable().device_updatable, 0);
  EXPECT_CU(set_updatable(0));
  EXPECT_CU(set_updatable(1));
  const CuDeviceNode first = updatable().dev_node;
  EXPECT_CU(set_updatable(1));
  EXPECT_EQ(updatable().dev_node, first);
  EXPECT_EQ(set_updatable(0), CuResult::kNotSupported);
  EXPECT_EQ(updatable().device_updatable, 1);
  EXPECT_EQ(updatable().dev_node, first);
  run(instantiate(graph));
  EXPECT_THAT(get(b, 1), ElementsAre(2u));
}

TEST_F(Execs, ACapturedLaunchCanAskForAnUpdatableNode) {
  const CuStream on = stream();
  CuLaunchAttribute attribute{};
  attribute.id = CuLaunchAttributeId::kDeviceUpdatableKernelNode;
  attribute.value.device_updatable_kernel_node.device_updatable = 1;
  CuLaunchConfig config{1, 1, 1, 32, 1, 1, 0, on, &attribute, 1};
  EXPECT_EQ(d.cuLaunchKernelEx(&config, nothing, nullptr, nullptr), CuResult::kNotSupported);
  begin(on);
  EXPECT_CU(d.cuLaunchKernelEx(&config, nothing, nullptr, nullptr));
  const CuDeviceNode given = attribute.value.device_updatable_kernel_node.dev_node;
  const std::vector<CuGraphNode> nodes = nodes_of(end(on));
  ASSERT_EQ(nodes.size(), 1u);
  node = nodes[0];
  EXPECT_NE(given, nullptr);
  EXPECT_EQ(updatable().dev_node, given);
}

TEST_F(Execs, AGraphWithAnUpdatableNodeIsInstantiatedOnceAtATimeAndNotCloned) {
  make_add_one();
  ASSERT_CU(set_updatable(1));
  EXPECT_EQ(d.cuGraphDestroyNode(node), CuResult::kNotSupported);
  CuGraph clone = nullptr;
  EXPECT_EQ(d.cuGraphClone(&clone, graph), CuResult::kNotSupported);
  CuInstantiateParams params{};
  CuGraphExec exec = nullptr, second = nullptr;
  ASSERT_CU(d.cuGraphInstantiateWithParams(&exec, graph, &params));
  EXPECT_EQ(d.cuGraphInstantiateWithParams(&second, graph, &params), CuResult::kNotSupported);
  EXPECT_CU(d.cuGraphExecDestroy(exec));
  if (second) {
    EXPECT_CU(d.cuGraphExecDestroy(second));
  }
  run(instantiate(graph));
  EXPECT_THAT(get(b, 1), ElementsAre(2u));
}

// A graph with an updatable node is not tried as a child: the driver took it (580.159.04) and the
// process died at the next instantiation.
TEST_F(Execs, ASecondInstantiationOfAGraphWithAnUpdatableNodeIsAnError) {
  make_add_one();
  ASSERT_CU(set_updatable(1));
  instantiate(graph);
  CuInstantiateParams params{};
  CuGraphExec second = nullptr;
  EXPECT_EQ(d.cuGraphInstantiateWithParams(&second, graph, &params), CuResult::kNotSupported);
  EXPECT_EQ(params.result, CuInstantiateResult::kError);
  EXPECT_EQ(params.error_node, nullptr);
  EXPECT_EQ(second, nullptr);
}

TEST_F(Execs, WhatDeviceCodeMayLaunchHoldsNothingOfTheHosts) {
  make_add_one();
  CuEvent event = nullptr;
  ASSERT_CU(d.cuEventCreate(&event, kEventDisableTiming));
  const auto with = [&](const std::function<void(CuStream)>& queue) {
    const CuGraph made = capture([&](CuStream on) {
      ASSERT_CU(launch_add_one(on, a, b));
      queue(on);
    });
    CuInstantiateParams params{kInstantiateDeviceLaunch, nullptr, nullptr, {}};
    CuGraphExec exec = nullptr;
    const CuResult result = d.cuGraphInstantiateWithParams(&exec, made, &params);
    EXPECT_EQ(exec == nullptr, result != CuResult::kSuccess);
    if (exec) {
      EXPECT_CU(d.cuGraphExecDestroy(exec));
    }
    return std::pair(result, params.result);
  };
  const std::pair refused(CuResult::kInvalidValue, CuInstantiateResult::kNodeOperationNotSupported);
  const std::pair made(CuResult::kSuccess, CuInstantiateResult::kSuccess);
  EXPECT_EQ(with([](CuStream) {}), made);
  EXPECT_EQ(with([&](CuStream on) { ASSERT_CU(d.cuMemsetD8Async(a, 1, 4, on)); }), made);
  EXPECT_EQ(with([&](CuStream on) {
              ASSERT_CU(d.cuLaunchHostFunc(
                  on, [](void*) {}, nullptr));
            }),
            refused);
  EXPECT_EQ(with([&](CuStream on) {
              ASSERT_CU(d.cuEventRecordWithFlags(event, on, kEventRecordExternal));
            }),
            refused);
  EXPECT_CU(d.cuEventDestroy(event));
}

// Refused once, it is made without the flag, updatable nodes and all.
TEST_F(Execs, AGraphThatDeviceCodeMayNotLaunchIsInstantiatedForTheHost) {
  make_add_one();
  const CuStream on = stream();
  begin(on);
  ASSERT_CU(launch_add_one(on, a, b));
  ASSERT_CU(d.cuLaunchHostFunc(
      on, [](void*) {}, nullptr));
  graph = end(on);
  node = nodes_of(graph)[0];
  ASSERT_CU(set_updatable(1));
  CuInstantiateParams params{kInstantiateDeviceLaunch, nullptr, nullptr, {}};
  CuGraphExec exec = nullptr;
  ASSERT_NE(d.cuGraphInstantiateWithParams(&exec, graph, &params), CuResult::kSuccess);
  run(instantiate(graph));
  EXPECT_THAT(get(b, 1), ElementsAre(2u));
}

TEST_F(Execs, AHostSetterReachesWhatDeviceCodeMayLaunch) {
  make_add_one();
  CuInstantiateParams params{kInstantiateDeviceLaunch, nullptr, nullptr, {}};
  CuGraphExec exec = nullptr;
  ASSERT_CU(d.cuGraphInstantiateWithParams(&exec, graph, &params));
  ASSERT_CU(d.cuGraphUpload(exec, stream()));
  for (int round = 0; round < 2; ++round) {
    CuKernelNodeParams set = params_writing(&other);
    ASSERT_CU(d.cuGraphExecKernelNodeSetParams(exec, node, &set));
    run(exec);
    EXPECT_THAT(get(other, 1), ElementsAre(2u));
    EXPECT_THAT(get(b, 1), ElementsAre(0u));
  }
  EXPECT_CU(d.cuGraphExecDestroy(exec));
}

// Without kernels that update nodes an upload shows in nothing but its codes: what it overwrites is
// promised by src/device/sim/exec_test.cpp and measured by the updater's own test.
TEST_F(Execs, AHostSetterOfAnUpdatableNodeTakesEffectWithAndWithoutAnUpload) {
  make_add_one();
  ASSERT_CU(set_updatable(1));
  const CuGraphExec exec = instantiate(graph);
  const CuStream on = stream();
  ASSERT_CU(d.cuGraphUpload(exec, on));
  CuKernelNodeParams params = params_writing(&other);
  ASSERT_CU(d.cuGraphExecKernelNodeSetParams(exec, node, &params));
  run(exec);
  EXPECT_THAT(get(other, 1), ElementsAre(2u));
  params = params_writing(&b);
  ASSERT_CU(d.cuGraphExecKernelNodeSetParams(exec, node, &params));
  ASSERT_CU(d.cuGraphUpload(exec, on));
  ASSERT_CU(d.cuStreamSynchronize(on));
  run(exec);
  EXPECT_THAT(get(b, 1), ElementsAre(2u));
}

TEST_F(Execs, EventsAroundANodeOfACloneTellItsTimeInEachLaunch) {
  make_add_one();
  CuGraph twin = nullptr;
  ASSERT_CU(d.cuGraphClone(&twin, graph));
  CuGraphNode there = nullptr, first = nullptr, behind = nullptr;
  ASSERT_CU(d.cuGraphNodeFindInClone(&there, node, twin));
  const CuEvent begin = event(), end = event();
  ASSERT_CU(d.cuGraphAddEventRecordNode(&first, twin, nullptr, 0, begin));
  ASSERT_CU(d.cuGraphAddDependencies(twin, &first, &there, nullptr, 1));
  ASSERT_CU(d.cuGraphAddEventRecordNode(&behind, twin, &there, 1, end));
  const CuGraphExec exec = instantiate(twin);
  for (int round = 0; round < 2; ++round) {
    run(exec);
    EXPECT_CU(d.cuEventQuery(end));
    float milliseconds = -1;
    EXPECT_CU(d.cuEventElapsedTime(&milliseconds, begin, end));
    EXPECT_GT(milliseconds, 0);
  }
  EXPECT_CU(d.cuGraphDestroy(twin));
}

}  // namespace
}  // namespace anabranch::cuda
