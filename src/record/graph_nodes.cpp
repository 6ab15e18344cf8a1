// SPDX-License-Identifier: Apache-2.0
#include "record/graph_nodes.h"

#include <algorithm>
#include <numeric>

namespace anabranch::cuda {
namespace {

std::vector<std::uint32_t> numbers_by_lane(std::span<const NodeImage> nodes) {
  std::vector<std::uint32_t> numbers(nodes.size());
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::ranges::stable_sort(numbers, {}, [&](std::uint32_t node) { return nodes[node].lane; });
  return numbers;
}

}  // namespace

NodeMaker::NodeMaker(const Driver& driver, CuGraph graph, std::span<NodeImage> nodes,
                     bool is_reordered)
    : driver_(driver),
      graph_(graph),
      nodes_(nodes),
      is_reordered_(is_reordered),
      is_new_(nodes.size()) {}

Status NodeMaker::make_kernels() {
  for (const std::uint32_t number : numbers_by_lane(nodes_)) {
    NodeImage& node = nodes_[number];
    const bool stays = !is_reordered_ || node.work == NodeImage::kInTurn;
    if (node.type != CuNodeType::kKernel || (!node.is_ours && stays)) continue;
    CuGraphNode made = nullptr;
    const CuKernelNodeParams launch = launch_of(node.kernel, room_);
    const CuResult added = driver_.cuGraphAddKernelNode(&made, graph_, nullptr, 0, &launch);
    if (!node.is_ours && is_refused(added)) continue;
    if (Status done = recorded("cuGraphAddKernelNode", added); !done.ok()) return done;
    if (!node.is_ours) {
      const CuResult copied = driver_.cuGraphKernelNodeCopyAttributes(made, node.handle);
      if (is_refused(copied)) {
        driver_.cuGraphDestroyNode(made);
        continue;
      }
      if (Status done = recorded("cuGraphKernelNodeCopyAttributes", copied); !done.ok())
        return done;
    }
    replace(number, made);
  }
  return {};
}

Status NodeMaker::make_copies(CuContext context) {
  for (const std::uint32_t number : numbers_by_lane(nodes_)) {
    NodeImage& node = nodes_[number];
    if (node.host_bytes.empty()) continue;
    CuGraphNode made = nullptr;
    if (Status done =
            recorded("cuGraphAddMemcpyNode",
                     driver_.cuGraphAddMemcpyNode(&made, graph_, nullptr, 0, &node.copy, context));
        !done.ok()) {
      return done;
    }
    replace(number, made);
  }
  return {};
}

void NodeMaker::replace(std::uint32_t node, CuGraphNode made) {
  replaced_.push_back(nodes_[node].handle);
  nodes_[node].handle = made;
  is_new_[node] = true;
}

// One call an edge: drivers give every edge of a call the data of the first.
Status NodeMaker::connect(std::span<const EdgeImage> edges) {
  for (const EdgeImage& edge : edges) {
    if (!is_reordered_ && !is_new_[edge.from] && !is_new_[edge.to]) continue;
    if (Status added =
            recorded("cuGraphAddDependencies",
                     driver_.cuGraphAddDependencies(graph_, &nodes_[edge.from].handle,
                                                    &nodes_[edge.to].handle, &edge.data, 1));
        !added.ok()) {
      return added;
    }
  }
  std::ranges::sort(replaced_);
  const auto again = std::ranges::unique(replaced_);
  replaced_.erase(again.begin(), again.end());
  for (const CuGraphNode node : replaced_) {
    if (Status gone = recorded("cuGraphDestroyNode", driver_.cuGraphDestroyNode(node));
        !gone.ok()) {
      return gone;
    }
  }
  return {};
}

}  // namespace anabranch::cuda
