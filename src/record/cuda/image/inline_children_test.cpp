// SPDX-License-Identifier: Apache-2.0
// Which children are opened, and what comes behind what then.
#include "record/cuda/image/inline_children.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <utility>

#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using testing::image_of;
using testing::kernel;
using ::testing::Pair;

CuGraphNode node_number(std::uintptr_t number) { return reinterpret_cast<CuGraphNode>(number); }

NodeImage child(GraphImage inside, std::uintptr_t handle = 1) {
  NodeImage node;
  node.type = CuNodeType::kGraph;
  node.handle = node_number(handle);
  node.child = std::make_shared<const GraphImage>(std::move(inside));
  return node;
}

std::vector<std::string> names_of(const GraphImage& image) {
  std::vector<std::string> names;
  for (const NodeImage& node : image.nodes) {
    names.push_back(node.child                         ? "child"
                    : node.type == CuNodeType::kEmpty  ? "empty"
                    : node.type == CuNodeType::kMemcpy ? "copy"
                    : node.type == CuNodeType::kMemset ? "fill"
                                                       : node.kernel.name);
  }
  return names;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_of(const GraphImage& image) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (const EdgeImage& edge : image.edges) edges.emplace_back(edge.from, edge.to);
  return edges;
}

// Two captures; `make` is given an address of each.
template <typename Make>
std::pair<GraphImage, GraphImage> opened(Make make) {
  std::pair<GraphImage, GraphImage> both{make(1000), make(2000)};
  inline_children(both.first, both.second);
  return both;
}

TEST(InlineChildren, AChildInWhichSomethingMovesGivesItsNodesItsPlace) {
  const auto [first, second] = opened([](std::uint64_t address) {
    GraphImage inside =
        image_of({kernel("a", {address}), kernel("b", {}), kernel("c", {})}, {{0, 1}, {0, 2}});
    return image_of({kernel("before", {}), child(std::move(inside)), kernel("after", {})},
                    {{0, 1}, {1, 2}});
  });
  EXPECT_THAT(names_of(first), ElementsAre("before", "a", "b", "c", "after"));
  EXPECT_THAT(edges_of(first),
              ElementsAre(Pair(0, 1), Pair(1, 2), Pair(1, 3), Pair(2, 4), Pair(3, 4)));
  EXPECT_EQ(names_of(second), names_of(first));
  EXPECT_EQ(edges_of(second), edges_of(first));
  EXPECT_EQ(first.nodes[0].child_of, nullptr);
  EXPECT_EQ(first.nodes[2].captured(), node_number(1));
}

TEST(InlineChildren, OneThatIsTheSameToTheLastWordStays) {
  const auto make = [](std::uint64_t) {
    return image_of({child(image_of({kernel("a", {7}), testing::fill(8)}))});
  };
  EXPECT_THAT(names_of(opened(make).first), ElementsAre("child"));
}

TEST(InlineChildren, OneThatIsBuiltDifferentlyStaysToBeToldOf) {
  const auto make = [](std::uint64_t address) {
    return image_of({child(image_of({kernel(address == 1000 ? "a" : "b", {address})}))});
  };
  auto first = make(1000), second = make(2000);
  second.nodes[0].child =
      std::make_shared<const GraphImage>(image_of({kernel("a", {2000}), kernel("more", {})}));
  inline_children(first, second);
  EXPECT_THAT(names_of(first), ElementsAre("child"));
  EXPECT_THAT(names_of(second), ElementsAre("child"));
}

TEST(InlineChildren, AnyOperandThatMovesOpens) {
  using Make = GraphImage (*)(std::uint64_t);
  const Make makes[] = {
      [](std::uint64_t address) { return image_of({testing::fill(address)}); },
      [](std::uint64_t address) { return image_of({testing::copy(address, 1)}); },
      [](std::uint64_t address) { return image_of({testing::copy(1, address)}); },
      [](std::uint64_t address) {
        GraphImage table = image_of({testing::from_host(1, 2)});
        table.nodes[0].source_bytes.resize(8, static_cast<std::byte>(address & 0xff));
        return table;
      },
  };
  for (const Make make : makes) {
    const auto both =
        opened([&](std::uint64_t address) { return image_of({child(make(address))}); });
    EXPECT_FALSE(both.first.nodes[0].child);
  }
}

TEST(InlineChildren, ChildrenOfAChildComeTooAndEmptyOnesKeepTheOrder) {
  const auto [first, second] = opened([](std::uint64_t address) {
    GraphImage middle = image_of(
        {kernel("a", {}), child(GraphImage(), 2), child(image_of({kernel("b", {address})}), 3)},
        {{0, 1}, {1, 2}});
    return image_of({child(std::move(middle), 1), kernel("after", {})}, {{0, 1}});
  });
  EXPECT_THAT(names_of(first), ElementsAre("a", "empty", "b", "after"));
  EXPECT_THAT(edges_of(first), ElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, 3)));
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(first.nodes[i].child_of, node_number(1));
}

}  // namespace
}  // namespace anabranch::cuda
