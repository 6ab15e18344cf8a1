// SPDX-License-Identifier: Apache-2.0
#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::ElementsAre;

class SimGraph : public SimTest {
 protected:
  SimGraph() { EXPECT_CU(d->cuGraphCreate(&graph, 0)); }

  CuGraphNode add_kernel(CuFunction function, std::vector<CuGraphNode> after = {}) {
    const CuKernelNodeParams params{function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, {}, {}};
    CuGraphNode node = nullptr;
    EXPECT_CU(d->cuGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
    return node;
  }
  CuGraphNode add_empty(std::vector<CuGraphNode> after = {}) {
    CuGraphNode node = nullptr;
    EXPECT_CU(d->cuGraphAddEmptyNode(&node, graph, after.data(), after.size()));
    return node;
  }
  std::vector<CuEdgeData> edges() {
    std::size_t count = 0;
    EXPECT_CU(d->cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    std::vector<CuGraphNode> from(count), to(count);
    std::vector<CuEdgeData> data(count);
    EXPECT_CU(d->cuGraphGetEdges(graph, from.data(), to.data(), data.data(), &count));
    return data;
  }
  // Of `before`, `ahead`, `early`, which may begin once `ahead` has, and `behind`: all orders in
  // which seeds run them.
  std::set<std::vector<std::string>> orders(bool waits, const CuEdgeData& data) {
    std::set<std::vector<std::string>> seen;
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
      start({.seed = seed});
      order.clear();
      EXPECT_CU(d->cuGraphCreate(&graph, 0));
      const CuGraphNode before = add_kernel(noting("before")),
                        ahead = add_kernel(noting("ahead"), {before}),
                        early = add_kernel(noting("early", 1000, waits));
      EXPECT_CU(d->cuGraphAddDependencies(graph, &ahead, &early, &data, 1));
      add_kernel(noting("behind"), {early});
      run(graph);
      seen.insert(order);
    }
    return seen;
  }
  void run(CuGraph of) {
    ASSERT_CU(d->cuGraphLaunch(instantiate(of), nullptr));
    ASSERT_CU(d->cuCtxSynchronize());
  }

  CuGraph graph = nullptr;
};

TEST_F(SimGraph, ListsItsNodesInTheOrderOfTheirMaking) {
  const CuGraphNode a = add_empty(), b = add_kernel(noting("b"), {a}), c = add_empty();
  EXPECT_THAT(nodes_of(graph), ElementsAre(a, b, c));
  std::vector<CuGraphNode> room(5);
  std::size_t count = 5;
  ASSERT_CU(d->cuGraphGetNodes(graph, room.data(), &count));
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(room[3], nullptr);
}

TEST_F(SimGraph, ListsEdgesFromBothEnds) {
  const CuGraphNode a = add_empty(), b = add_empty(), c = add_empty({a, b});
  CuGraphNode before[2], after = nullptr;
  CuEdgeData data[2];
  std::size_t count = 2;
  ASSERT_CU(d->cuGraphNodeGetDependencies(c, before, data, &count));
  EXPECT_THAT(before, ElementsAre(a, b));
  count = 1;
  ASSERT_CU(d->cuGraphNodeGetDependentNodes(b, &after, data, &count));
  EXPECT_EQ(after, c);
}

TEST_F(SimGraph, RefusesEdgesThatAreThereOrLeadElsewhere) {
  CuGraph other = nullptr;
  ASSERT_CU(d->cuGraphCreate(&other, 0));
  const CuGraphNode a = add_empty(), b = add_empty({a});
  CuGraphNode far = nullptr;
  EXPECT_EQ(d->cuGraphAddDependencies(graph, &a, &b, nullptr, 1), CuResult::kInvalidValue);
  EXPECT_EQ(d->cuGraphAddDependencies(graph, &a, &a, nullptr, 1), CuResult::kInvalidValue);
  EXPECT_EQ(d->cuGraphAddEmptyNode(&far, other, &a, 1), CuResult::kInvalidValue);
  EXPECT_TRUE(nodes_of(other).empty());
  ASSERT_CU(d->cuGraphRemoveDependencies(graph, &a, &b, nullptr, 1));
  EXPECT_EQ(d->cuGraphRemoveDependencies(graph, &a, &b, nullptr, 1), CuResult::kInvalidValue);
}

TEST_F(SimGraph, ProgrammaticEdgesGoFromKernelToKernel) {
  const CuGraphNode a = add_kernel(noting("a")), b = add_kernel(noting("b")), c = add_empty();
  const CuEdgeData data{kPortProgrammatic, 0, kEdgeProgrammatic, {}};
  EXPECT_EQ(d->cuGraphAddDependencies(graph, &a, &c, &data, 1), CuResult::kInvalidValue);
  EXPECT_EQ(d->cuGraphAddDependencies(graph, &c, &b, &data, 1), CuResult::kInvalidValue);
  EXPECT_CU(d->cuGraphAddDependencies(graph, &a, &b, &data, 1));
  run(graph);
  EXPECT_THAT(order, ElementsAre("a", "b"));
  EXPECT_EQ(sim->now_ns(), 1000u);  // they overlap
}

TEST_F(SimGraph, AKernelThatNeverWaitsMayEndBeforeTheOneAheadAndSoMayWhatIsBehindIt) {
  for (const std::uint8_t port : {kPortProgrammatic, kPortLaunchOrder}) {
    const CuEdgeData data{port, 0, kEdgeProgrammatic, {}};
    EXPECT_THAT(orders(true, data), ElementsAre(ElementsAre("before", "ahead", "early", "behind")));
    EXPECT_THAT(orders(false, data),
                ElementsAre(ElementsAre("before", "ahead", "early", "behind"),
                            ElementsAre("before", "early", "ahead", "behind"),
                            ElementsAre("before", "early", "behind", "ahead")));
  }
}

// There is nothing that it could wait for.
TEST_F(SimGraph, ALaunchBehindTheBeginOfAnotherMayEndBeforeIt) {
  EXPECT_EQ(orders(true, {kPortLaunchOrder, 0, kEdgeDefault, {}}).size(), 3u);
}

TEST_F(SimGraph, AKernelBeginsWhenTheOneAheadHasBegunThoughThatOneWaits) {
  std::set<std::vector<std::string>> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    start({.seed = seed});
    order.clear();
    ASSERT_CU(d->cuGraphCreate(&graph, 0));
    const CuGraphNode a = add_kernel(noting("a")), b = add_kernel(noting("b")),
                      c = add_kernel(noting("c", 1000, false));
    const CuEdgeData data{kPortProgrammatic, 0, kEdgeProgrammatic, {}};
    ASSERT_CU(d->cuGraphAddDependencies(graph, &a, &b, &data, 1));
    ASSERT_CU(d->cuGraphAddDependencies(graph, &b, &c, &data, 1));
    run(graph);
    seen.insert(order);
  }
  EXPECT_THAT(seen, ElementsAre(ElementsAre("a", "b", "c"), ElementsAre("a", "c", "b"),
                                ElementsAre("c", "a", "b")));
}

// The fault of drivers 13000 to 13040: facts that record relies on.
TEST_F(SimGraph, OneCallGivesAllItsEdgesTheDataOfTheFirst) {
  const CuGraphNode a = add_kernel(noting("a")), b = add_kernel(noting("b")),
                    c = add_kernel(noting("c"));
  const CuGraphNode from[] = {a, a}, to[] = {b, c};
  const CuEdgeData data[] = {{}, {kPortProgrammatic, 0, kEdgeProgrammatic, {}}};
  ASSERT_CU(d->cuGraphAddDependencies(graph, from, to, data, 2));
  for (const CuEdgeData& edge : edges()) EXPECT_EQ(edge.type, kEdgeDefault);
}

TEST_F(SimGraph, ShowsParametersInTheStyleInWhichTheyWereGiven) {
  const CuFunction function = load("add_one");
  CuDevicePtr in = allocate(4), out = allocate(4);
  std::uint32_t count = 1;
  void* params[] = {&in, &out, &count};
  CuKernelNodeParams given{function, 1, 1, 1, 1, 1, 1, 0, params, nullptr, nullptr, nullptr};
  CuGraphNode one = nullptr, packed = nullptr;
  ASSERT_CU(d->cuGraphAddKernelNode(&one, graph, nullptr, 0, &given));
  struct {
    CuDevicePtr in, out;
    std::uint32_t count, padding;
  } block{in, out, 1, 0};
  std::size_t bytes = 20;
  void* extra[] = {params_buffer_key(), &block, params_size_key(), &bytes, kParamsEnd};
  given.kernel_params = nullptr;
  given.extra = extra;
  ASSERT_CU(d->cuGraphAddKernelNode(&packed, graph, nullptr, 0, &given));

  CuKernelNodeParams shown{};
  ASSERT_CU(d->cuGraphKernelNodeGetParams(one, &shown));
  EXPECT_EQ(shown.extra, nullptr);
  EXPECT_EQ(*static_cast<CuDevicePtr*>(shown.kernel_params[1]), out);
  ASSERT_CU(d->cuGraphKernelNodeGetParams(packed, &shown));
  EXPECT_EQ(shown.kernel_params, nullptr);
  ASSERT_EQ(shown.extra[0], params_size_key());
  EXPECT_EQ(*static_cast<std::size_t*>(shown.extra[1]), bytes);
  ASSERT_EQ(shown.extra[2], params_buffer_key());
  EXPECT_EQ(std::memcmp(shown.extra[3], &block, bytes), 0);
  EXPECT_EQ(shown.extra[4], kParamsEnd);
  // What is shown can be given back.
  EXPECT_CU(d->cuGraphKernelNodeSetParams(packed, &shown));
}

TEST_F(SimGraph, ChangingANodeChangesLaterInstantiationsOnly) {
  const CuDevicePtr a = allocate(4);
  CuMemsetNodeParams fill{a, 0, 1, 4, 1, 1};
  CuGraphNode node = nullptr;
  ASSERT_CU(d->cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context));
  const CuGraphExec before = instantiate(graph);
  fill.value = 2;
  ASSERT_CU(d->cuGraphMemsetNodeSetParams(node, &fill));
  ASSERT_CU(d->cuGraphLaunch(before, nullptr));
  EXPECT_EQ(get(a), 1u);
  run(graph);
  EXPECT_EQ(get(a), 2u);
}

TEST_F(SimGraph, CopyAndHostNodesShowWhatTheyWereGiven) {
  const CuDevicePtr a = allocate(4), b = allocate(4);
  CuMemcpy3D copy{}, copy_shown{};
  copy.src_memory_type = copy.dst_memory_type = CuMemoryType::kDevice;
  copy.src_device = a;
  copy.dst_device = b;
  copy.width_bytes = 4;
  copy.height = copy.depth = 1;
  CuGraphNode copy_node = nullptr, host_node = nullptr;
  ASSERT_CU(d->cuGraphAddMemcpyNode(&copy_node, graph, nullptr, 0, &copy, context));
  ASSERT_CU(d->cuGraphMemcpyNodeGetParams(copy_node, &copy_shown));
  EXPECT_EQ(copy_shown.dst_device, b);
  int calls = 0;
  const CuHostNodeParams host{[](void* data) { ++*static_cast<int*>(data); }, &calls};
  CuHostNodeParams host_shown{};
  ASSERT_CU(d->cuGraphAddHostNode(&host_node, graph, &copy_node, 1, &host));
  ASSERT_CU(d->cuGraphHostNodeGetParams(host_node, &host_shown));
  EXPECT_EQ(host_shown.user_data, &calls);
  put(a, 5);
  run(graph);
  EXPECT_EQ(get(b), 5u);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(d->cuGraphHostNodeGetParams(copy_node, &host_shown), CuResult::kInvalidValue);
}

TEST_F(SimGraph, AChildGraphIsACopyThatRunsInItsPlace) {
  CuGraph child = nullptr, owned = nullptr;
  const CuGraph outer = graph;
  ASSERT_CU(d->cuGraphCreate(&child, 0));
  graph = child;
  add_kernel(noting("inner_2"), {add_kernel(noting("inner_1"))});
  graph = outer;
  const CuGraphNode first = add_kernel(noting("first"));
  CuGraphNode node = nullptr;
  ASSERT_CU(d->cuGraphAddChildGraphNode(&node, graph, &first, 1, child));
  add_kernel(noting("last"), {node});
  ASSERT_CU(d->cuGraphChildGraphNodeGetGraph(node, &owned));
  EXPECT_NE(owned, child);
  EXPECT_EQ(d->cuGraphDestroy(owned), CuResult::kInvalidValue);
  ASSERT_CU(d->cuGraphDestroy(child));
  run(graph);
  EXPECT_THAT(order, ElementsAre("first", "inner_1", "inner_2", "last"));
}

TEST_F(SimGraph, AClonesNodesAreFoundByThoseOfTheOriginal) {
  const CuGraphNode a = add_kernel(noting("a"));
  CuGraph clone = nullptr;
  CuGraphNode twin = nullptr;
  ASSERT_CU(d->cuGraphClone(&clone, graph));
  ASSERT_CU(d->cuGraphNodeFindInClone(&twin, a, clone));
  EXPECT_THAT(nodes_of(clone), ElementsAre(twin));
  ASSERT_CU(d->cuGraphDestroy(graph));
  run(clone);
  EXPECT_THAT(order, ElementsAre("a"));
}

TEST_F(SimGraph, ADestroyedNodeTakesItsEdgesAlong) {
  const CuGraphNode a = add_empty(), b = add_empty({a});
  add_empty({b});
  ASSERT_CU(d->cuGraphDestroyNode(b));
  EXPECT_TRUE(edges().empty());
  EXPECT_EQ(d->cuGraphDestroyNode(b), CuResult::kInvalidValue);
}

TEST_F(SimGraph, ACycleIsFoundWhenItIsInstantiated) {
  const CuGraphNode a = add_empty(), b = add_empty({a});
  ASSERT_CU(d->cuGraphAddDependencies(graph, &b, &a, nullptr, 1));
  CuInstantiateParams params{};
  CuGraphExec exec = nullptr;
  EXPECT_EQ(d->cuGraphInstantiateWithParams(&exec, graph, &params), CuResult::kInvalidValue);
  EXPECT_EQ(params.result, CuInstantiateResult::kInvalidStructure);
}

TEST_F(SimGraph, NodesOfOtherTypesCanBeMetButNotRun) {
  const CuGraphNode node = sim->add_opaque_node(graph, CuNodeType::kConditional);
  CuNodeType type{};
  ASSERT_CU(d->cuGraphNodeGetType(node, &type));
  EXPECT_EQ(type, CuNodeType::kConditional);
  CuInstantiateParams params{};
  CuGraphExec exec = nullptr;
  EXPECT_EQ(d->cuGraphInstantiateWithParams(&exec, graph, &params), CuResult::kNotSupported);
  EXPECT_EQ(params.error_node, node);
  CuGraph clone = nullptr;
  EXPECT_EQ(d->cuGraphClone(&clone, graph), CuResult::kNotSupported);
}

TEST_F(SimGraph, AttributesAreReadAsTheyWereSet) {
  const CuGraphNode node = add_kernel(noting("a"));
  CuLaunchAttributeValue value{};
  value.priority = -3;
  ASSERT_CU(d->cuGraphKernelNodeSetAttribute(node, CuLaunchAttributeId::kPriority, &value));
  value = {};
  ASSERT_CU(d->cuGraphKernelNodeGetAttribute(node, CuLaunchAttributeId::kPriority, &value));
  EXPECT_EQ(value.priority, -3);
  ASSERT_CU(d->cuGraphKernelNodeGetAttribute(node, CuLaunchAttributeId::kDeviceUpdatableKernelNode,
                                             &value));
  EXPECT_EQ(value.device_updatable_kernel_node.device_updatable, 0);
}

}  // namespace
}  // namespace anabranch::sim
