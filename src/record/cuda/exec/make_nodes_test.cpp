// SPDX-License-Identifier: Apache-2.0
// What is made again in a clone, in which order, and that it is the same.
#include "record/cuda/exec/make_nodes.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/image/driver_graph.h"
#include "record/cuda/image/graph_image_testing.h"
#include "record/cuda/rewrite/transfer_kernels.h"

namespace anabranch::cuda {
namespace {

using ::testing::AllOf;
using testing::Arrow;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::Field;
using ::testing::Not;

class NodeMakerTest : public sim::SimTest {
 protected:
  void SetUp() override {
    ASSERT_CU(d->cuGraphCreate(&graph, 0));
    void* made = nullptr;
    ASSERT_CU(d->cuMemHostAlloc(&made, 64, 0));
    host = reinterpret_cast<std::uint64_t>(made);
  }
  void TearDown() override { EXPECT_CU(d->cuGraphDestroy(graph)); }

  void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

  // What the image says, in the graph and in its order; with edges, unless it is to be reordered.
  void add(GraphImage& image, bool with_edges) {
    for (NodeImage& node : image.nodes) add(node);
    for (const EdgeImage& edge : image.edges) {
      if (!with_edges) break;
      ASSERT_CU(d->cuGraphAddDependencies(graph, &image.nodes[edge.from].handle,
                                          &image.nodes[edge.to].handle, &edge.data, 1));
    }
  }
  void add(NodeImage& node) {
    if (node.type == CuNodeType::kKernel) {
      node.kernel.launch.func = noting(node.kernel.name);
      CuKernelNodeParams& launch = node.kernel.launch;
      launch.grid_y = launch.grid_z = launch.block_y = launch.block_z = 1;
      ASSERT_CU(d->cuGraphAddKernelNode(&node.handle, graph, nullptr, 0, &launch));
    } else if (node.type == CuNodeType::kMemcpy) {
      ASSERT_CU(d->cuGraphAddMemcpyNode(&node.handle, graph, nullptr, 0, &node.copy, context));
    } else {
      ASSERT_CU(d->cuGraphAddMemsetNode(&node.handle, graph, nullptr, 0, &node.fill, context));
    }
  }
  // A node, and how it is to be made.
  struct Made {
    NodeImage node;
    NodeMaking making;
  };
  Made from_host(std::uint32_t lane) {
    return {testing::from_host(allocate(64), host), {lane, true, false}};
  }
  Made to_host(std::uint32_t lane) {
    return {testing::to_host(host, allocate(64)), {lane, true, false}};
  }
  static Made kernel(std::uint32_t lane, const std::string& name) {
    return {testing::kernel(name, {}), {lane, false, false}};
  }
  GraphImage image_of(const std::vector<Made>& nodes,
                      std::initializer_list<testing::Arrow> arrows) {
    std::vector<NodeImage> images;
    making.clear();
    for (const Made& each : nodes) {
      images.push_back(each.node);
      making.push_back(each.making);
    }
    return testing::image_of(std::move(images), arrows);
  }
  void remake(GraphImage& image, bool is_reordered) {
    NodeMaker maker(*d, graph, context, image.nodes, making, is_reordered);
    expect_ok(maker.make_nodes());
    expect_ok(maker.make_copies());
    expect_ok(maker.connect(image.edges));
  }
  // Numbers of the image's nodes, as they were made.
  std::vector<std::uint32_t> order_of(const GraphImage& image) {
    std::vector<std::uint32_t> numbers;
    for (const CuGraphNode made : nodes_of(graph)) {
      const auto found = std::ranges::find(image.nodes, made, &NodeImage::handle);
      numbers.push_back(static_cast<std::uint32_t>(found - image.nodes.begin()));
    }
    return numbers;
  }
  void expect_edges(const GraphImage& image) {
    const auto edges = *list_edges(*d, graph);
    ASSERT_EQ(edges.size(), image.edges.size());
    for (const EdgeImage& edge : image.edges) {
      EXPECT_THAT(edges, Contains(AllOf(Field(&GraphEdge::from, image.nodes[edge.from].handle),
                                        Field(&GraphEdge::to, image.nodes[edge.to].handle),
                                        Field(&GraphEdge::data, Field(&CuEdgeData::from_port,
                                                                      edge.data.from_port)))));
    }
  }

  CuGraph graph = nullptr;
  std::uint64_t host = 0;
  std::vector<NodeMaking> making;  // of the image that was made last
};

TEST_F(NodeMakerTest, AnEdgeOfOursIsAddedWhereNothingIsMadeAgain) {
  GraphImage image = image_of({kernel(0, "a"), kernel(0, "b"), kernel(0, "c")}, {{0, 1}, {1, 2}});
  image.edges[0].data = {kPortProgrammatic, 0, kEdgeProgrammatic, {}};
  add(image, true);
  image.edges.insert(image.edges.begin() + 1, {0, 2, {}, true});
  remake(image, false);
  EXPECT_THAT(order_of(image), ElementsAre(0, 1, 2));
  expect_edges(image);
}

TEST_F(NodeMakerTest, WhatIsReorderedIsMadeLaneByLaneAndCopiesLastOneWayBehindTheOther) {
  GraphImage image = image_of({from_host(4), kernel(0, "a"), kernel(1, "b"), to_host(5),
                               from_host(4), kernel(0, "c"), kernel(1, "d"), to_host(5)},
                              {{0, 1}, {1, 2}, {2, 3}, {0, 4}, {1, 5}, {4, 6}, {5, 6}, {6, 7}});
  image.edges[1].data.from_port = kPortLaunchOrder;
  add(image, false);
  remake(image, true);
  EXPECT_THAT(order_of(image), ElementsAre(1, 5, 2, 6, 0, 4, 3, 7));
  expect_edges(image);
}

TEST_F(NodeMakerTest, AKernelThatIsMadeAgainKeepsItsParametersAndAttributes) {
  GraphImage image = image_of({kernel(0, "a"), kernel(1, "b")}, {});
  add(image, false);
  CuLaunchAttributeValue priority{}, cluster{}, shown{};
  priority.priority = -3;
  cluster.cluster_dim = {2, 1, 1};
  image.nodes[0].kernel.launch.grid_x = 2;
  ASSERT_CU(d->cuGraphKernelNodeSetParams(image.nodes[0].handle, &image.nodes[0].kernel.launch));
  const auto set = [&](CuLaunchAttributeId id, const CuLaunchAttributeValue& value) {
    ASSERT_CU(d->cuGraphKernelNodeSetAttribute(image.nodes[0].handle, id, &value));
  };
  set(CuLaunchAttributeId::kPriority, priority);
  set(CuLaunchAttributeId::kClusterDimension, cluster);
  const CuGraphNode before = image.nodes[0].handle;
  remake(image, true);
  const CuGraphNode now = image.nodes[0].handle;
  EXPECT_NE(now, before);
  ASSERT_CU(d->cuGraphKernelNodeGetAttribute(now, CuLaunchAttributeId::kPriority, &shown));
  EXPECT_EQ(shown.priority, -3);
  ASSERT_CU(d->cuGraphKernelNodeGetAttribute(now, CuLaunchAttributeId::kClusterDimension, &shown));
  EXPECT_EQ(shown.cluster_dim.x, 2u);
  CuKernelNodeParams params{};
  ASSERT_CU(d->cuGraphKernelNodeGetParams(now, &params));
  EXPECT_EQ(params.func, image.nodes[0].kernel.launch.func);
  EXPECT_EQ(params.grid_x, 2u);
}

TEST_F(NodeMakerTest, CollectivesStayAsTheyWereCaptured) {
  GraphImage image =
      image_of({kernel(0, "a"), kernel(0, "gather"), kernel(1, "b")}, {{0, 1}, {1, 2}});
  making[1].is_in_turn = true;
  add(image, false);
  const CuGraphNode gather = image.nodes[1].handle;
  remake(image, true);
  EXPECT_EQ(image.nodes[1].handle, gather);
  EXPECT_THAT(order_of(image), ElementsAre(1, 0, 2));
  expect_edges(image);
}

TEST_F(NodeMakerTest, AKernelThatTheDriverDoesNotMakeAgainStays) {
  for (const std::string_view call : {"cuGraphAddKernelNode", "cuGraphKernelNodeCopyAttributes"}) {
    GraphImage image = image_of({kernel(1, "a"), kernel(0, "b"), kernel(1, "c")}, {{0, 1}, {1, 2}});
    const std::size_t others = nodes_of(graph).size();
    add(image, false);
    const CuGraphNode first = image.nodes[1].handle;
    sim->fail_call(1, CuResult::kNotSupported, call);
    NodeMaker maker(*d, graph, context, image.nodes, making, true);
    expect_ok(maker.make_nodes());
    expect_ok(maker.connect(image.edges));
    EXPECT_EQ(sim->failed_call(), call);
    EXPECT_EQ(image.nodes[1].handle, first);
    EXPECT_EQ(nodes_of(graph).size(), others + 3);
  }
}

TEST_F(NodeMakerTest, WhereTheOrderStaysOnlyOurKernelsAndCopiesAreMadeAndHaveTheEdges) {
  const std::unique_ptr<DeviceCode> code =
      *DeviceCode::load(*d, sim::add_device_code(*sim).c_str());
  GraphImage image = image_of({kernel(0, "before"),
                               {testing::copy(allocate(64), allocate(64)), {}},
                               {testing::fill(allocate(64)), {}},
                               from_host(0),
                               kernel(0, "after")},
                              {{0, 1}, {1, 2}, {0, 3}, {2, 4}, {3, 4}, {0, 4}});
  image.edges[0].data.from_port = kPortLaunchOrder;
  add(image, true);
  const std::vector<NodeImage> before = image.nodes;
  StepGraph step{std::move(image),
                 std::vector<NodeFacts>(5),
                 {{1, Operand::kSource, 0, 0, 0}, {2, Operand::kDestination, 0, 0, 0}}};
  expect_ok(replace_transfers(*d, *code, step));
  image = std::move(step.image);
  remake(image, false);
  EXPECT_THAT(order_of(image), ElementsAre(0, 4, 1, 2, 3));
  for (const std::uint32_t kept : {0, 4}) {
    EXPECT_EQ(image.nodes[kept].handle, before[kept].handle);
  }
  std::vector<CuNodeType> types;
  for (const CuGraphNode node : nodes_of(graph)) {
    ASSERT_CU(d->cuGraphNodeGetType(node, &types.emplace_back()));
  }
  EXPECT_THAT(types, ElementsAre(CuNodeType::kKernel, CuNodeType::kKernel, CuNodeType::kKernel,
                                 CuNodeType::kKernel, CuNodeType::kMemcpy));
  expect_edges(image);
}

TEST_F(NodeMakerTest, SeveralKernelsOfOursMayStandForOneNode) {
  GraphImage image = image_of({kernel(0, "before"), {testing::fill(allocate(64)), {}}}, {{0, 1}});
  add(image, true);
  for (const char* const name : {"one", "two"}) {
    NodeImage ours = testing::kernel(name, {});
    ours.is_ours = true;
    ours.kernel.launch.func = noting(name);
    CuKernelNodeParams& launch = ours.kernel.launch;
    launch.grid_y = launch.grid_z = launch.block_y = launch.block_z = 1;
    ours.handle = image.nodes[1].handle;
    image.nodes.push_back(std::move(ours));
  }
  image.nodes.erase(image.nodes.begin() + 1);
  making.resize(image.nodes.size());
  image.edges = {{0, 1, {}}, {1, 2, {}}};
  remake(image, false);
  EXPECT_THAT(order_of(image), ElementsAre(0, 1, 2));
  expect_edges(image);
}

}  // namespace
}  // namespace anabranch::cuda
