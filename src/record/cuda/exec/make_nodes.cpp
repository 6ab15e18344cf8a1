// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/exec/make_nodes.h"

#include <algorithm>
#include <numeric>

#include "record/cuda/image/copy_box.h"

namespace anabranch::cuda {
namespace {

std::vector<std::uint32_t> numbers_by_lane(std::span<const NodeMaking> making) {
  std::vector<std::uint32_t> numbers(making.size());
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::ranges::stable_sort(numbers, {}, [&](std::uint32_t node) { return making[node].lane; });
  return numbers;
}

// Ours, and those of children that were taken in.
bool has_no_node(const NodeImage& node) { return node.is_ours || node.child_of; }

}  // namespace

bool is_made_elsewhere(const NodeImage& node, const NodeMaking& making) {
  const bool is_transfer = node.type == CuNodeType::kMemcpy || node.type == CuNodeType::kMemset;
  return is_transfer && (node.child_of || making.is_host_copy);
}

std::uint64_t extent_of(const NodeImage& node) {
  if (node.type == CuNodeType::kMemcpy) {
    const CuMemcpy3D& copy = node.copy;
    return std::max(source_shift(copy) + source_extent(copy),
                    destination_shift(copy) + destination_extent(copy));
  }
  return extent_of(node.fill);
}

NodeMaker::NodeMaker(const Driver& driver, CuGraph graph, CuContext context,
                     std::span<NodeImage> nodes, std::span<const NodeMaking> making,
                     bool is_reordered)
    : driver_(driver),
      graph_(graph),
      context_(context),
      nodes_(nodes),
      making_(making),
      is_reordered_(is_reordered),
      is_new_(nodes.size()) {}

Status NodeMaker::make_nodes() {
  for (const std::uint32_t number : numbers_by_lane(making_)) {
    if (making_[number].is_host_copy) continue;
    if (!has_no_node(nodes_[number]) && !may_be_made_again(number)) continue;
    if (Status made = make(number); !made.ok()) return made;
  }
  return {};
}

Status NodeMaker::make_copies() {
  for (const std::uint32_t number : numbers_by_lane(making_)) {
    if (!making_[number].is_host_copy) continue;
    if (Status made = make(number); !made.ok()) return made;
  }
  return {};
}

bool NodeMaker::may_be_made_again(std::uint32_t node) const {
  return is_reordered_ && nodes_[node].type == CuNodeType::kKernel && !making_[node].is_in_turn;
}

Status NodeMaker::make(std::uint32_t number) {
  NodeImage& node = nodes_[number];
  CuGraphNode made = nullptr;
  const Call call =
      node.type == CuNodeType::kKernel ? make_kernel(node, &made) : make_other(node, &made);
  if (is_refused(call.result) && !has_no_node(node) && may_be_made_again(number)) return {};
  if (Status done = recorded(call.name, call.result); !done.ok()) return done;
  if (!node.child_of) replaced_.push_back(node.handle);
  node.handle = made;
  is_new_[number] = true;
  return {};
}

NodeMaker::Call NodeMaker::make_kernel(NodeImage& node, CuGraphNode* made) {
  const CuKernelNodeParams launch = launch_of(node.kernel, room_);
  const auto add = [&] { return driver_.cuGraphAddKernelNode(made, graph_, nullptr, 0, &launch); };
  CuResult added = add();
  if (added == CuResult::kInvalidValue && allow_shared_memory(driver_, node.kernel)) added = add();
  if (added != CuResult::kSuccess || node.is_ours) return {"cuGraphAddKernelNode", added};
  const CuResult copied = driver_.cuGraphKernelNodeCopyAttributes(*made, node.handle);
  if (copied != CuResult::kSuccess) driver_.cuGraphDestroyNode(*made);
  return {"cuGraphKernelNodeCopyAttributes", copied};
}

NodeMaker::Call NodeMaker::make_other(const NodeImage& node, CuGraphNode* made) {
  switch (node.type) {
    case CuNodeType::kMemcpy:
      return {"cuGraphAddMemcpyNode",
              driver_.cuGraphAddMemcpyNode(made, graph_, nullptr, 0, &node.copy, context_)};
    case CuNodeType::kMemset:
      return {"cuGraphAddMemsetNode",
              driver_.cuGraphAddMemsetNode(made, graph_, nullptr, 0, &node.fill, context_)};
    case CuNodeType::kHost:
      return {"cuGraphAddHostNode",
              driver_.cuGraphAddHostNode(made, graph_, nullptr, 0, &node.host)};
    case CuNodeType::kWaitEvent:
      return {"cuGraphAddEventWaitNode",
              driver_.cuGraphAddEventWaitNode(made, graph_, nullptr, 0, node.event)};
    case CuNodeType::kEventRecord:
      return {"cuGraphAddEventRecordNode",
              driver_.cuGraphAddEventRecordNode(made, graph_, nullptr, 0, node.event)};
    default:
      return {"cuGraphAddEmptyNode", driver_.cuGraphAddEmptyNode(made, graph_, nullptr, 0)};
  }
}

// One call an edge: drivers give every edge of a call the data of the first.
Status NodeMaker::connect(std::span<const EdgeImage> edges) {
  for (const EdgeImage& edge : edges) {
    const bool is_there = !edge.is_ours && !is_new_[edge.from] && !is_new_[edge.to];
    if (!is_reordered_ && is_there) continue;
    if (Status added =
            recorded("cuGraphAddDependencies",
                     driver_.cuGraphAddDependencies(graph_, &nodes_[edge.from].handle,
                                                    &nodes_[edge.to].handle, &edge.data, 1));
        !added.ok()) {
      return added;
    }
  }
  std::sort(replaced_.begin(), replaced_.end());
  replaced_.erase(std::unique(replaced_.begin(), replaced_.end()), replaced_.end());
  for (const CuGraphNode node : replaced_) {
    if (Status gone = recorded("cuGraphDestroyNode", driver_.cuGraphDestroyNode(node));
        !gone.ok()) {
      return gone;
    }
  }
  return {};
}

}  // namespace anabranch::cuda
