// SPDX-License-Identifier: Apache-2.0
// The setters of executable graphs: they change later launches, within the driver's limits.
#include <algorithm>

#include "device/sim/machine.h"

namespace anabranch::sim {

// A node is named by its handle in the source graph, and so is known as long as it is there.
ExecNode* Machine::find_exec_node(CuGraphExec handle, CuGraphNode node) {
  Exec* const exec = execs_.find(handle);
  if (!exec || !nodes_.find(node)) return nullptr;
  const auto it = exec->index.find(node);
  return it == exec->index.end() ? nullptr : &exec->nodes[it->second];
}

CuResult Machine::set_exec_op(CuGraphExec handle, ExecNode& node, Op op) {
  node.op = std::make_shared<const Op>(std::move(op));
  if (node.device_node) execs_.find(handle)->uploaded = false;
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphExecKernelNodeSetParams(CuGraphExec exec, CuGraphNode handle,
                                                 const CuKernelNodeParams* params) {
  ExecNode* const node = find_exec_node(exec, handle);
  const auto* kernel = node ? std::get_if<KernelOp>(node->op.get()) : nullptr;
  if (!kernel || !params) return CuResult::kInvalidValue;
  KernelOp changed = *kernel;  // attributes are no parameters, and stay
  const CuResult result = make_kernel_op(*params, &changed);
  if (result != CuResult::kSuccess) return result;
  return set_exec_op(exec, *node, std::move(changed));
}

std::array<MemoryKind, 2> Machine::kinds_of(const CuMemcpy3D& copy) const {
  const auto kind = [&](CuMemoryType type, CuDevicePtr address) {
    Range range;
    const bool is_device = type == CuMemoryType::kDevice || type == CuMemoryType::kUnified;
    if (!is_device || !memory_.find(address, &range) || range.place != Place::kDevice) {
      return MemoryKind::kUnknown;
    }
    return range.is_mapped ? MemoryKind::kMapped : MemoryKind::kAllocated;
  };
  return {kind(copy.src_memory_type, copy.src_device), kind(copy.dst_memory_type, copy.dst_device)};
}

CuResult Machine::cuGraphExecMemcpyNodeSetParams(CuGraphExec exec, CuGraphNode handle,
                                                 const CuMemcpy3D* copy, CuContext) {
  ExecNode* const node = find_exec_node(exec, handle);
  const auto* before = node ? std::get_if<CopyOp>(node->op.get()) : nullptr;
  if (!before || !copy) return CuResult::kInvalidValue;
  CuResult result = check_same_operands(before->copy, *copy);
  if (result == CuResult::kSuccess) result = check_copy(*copy);
  if (result != CuResult::kSuccess) return result;
  const auto kinds = kinds_of(*copy);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const bool known = kinds[i] != MemoryKind::kUnknown && node->copied[i] != MemoryKind::kUnknown;
    if (known && kinds[i] != node->copied[i]) return CuResult::kInvalidValue;
  }
  return set_exec_op(exec, *node, bound(CopyOp{*copy, nullptr}));
}

CuResult Machine::cuGraphExecMemsetNodeSetParams(CuGraphExec exec, CuGraphNode handle,
                                                 const CuMemsetNodeParams* params, CuContext) {
  ExecNode* const node = find_exec_node(exec, handle);
  const auto* before = node ? std::get_if<FillOp>(node->op.get()) : nullptr;
  if (!before || !params) return CuResult::kInvalidValue;
  const CuResult result = check_same_fill(before->params, *params);
  if (result != CuResult::kSuccess) return result;
  return set_exec_op(exec, *node, FillOp{*params});
}

CuResult Machine::cuGraphExecHostNodeSetParams(CuGraphExec exec, CuGraphNode handle,
                                               const CuHostNodeParams* params) {
  ExecNode* const node = find_exec_node(exec, handle);
  const bool host = node && std::holds_alternative<HostOp>(*node->op);
  if (!host || !params || !params->fn) return CuResult::kInvalidValue;
  return set_exec_op(exec, *node, HostOp{params->fn, params->user_data});
}

// The same types of nodes and the same edges in the same order, at every depth.
bool Machine::has_shape_of(const Graph& now, const Graph& then) const {
  if (now.nodes.size() != then.nodes.size() || now.edges.size() != then.edges.size()) return false;
  std::map<CuGraphNode, CuGraphNode> twin;
  for (std::size_t i = 0; i < now.nodes.size(); ++i) {
    const Op &mine = nodes_.find(now.nodes[i])->op, &other = nodes_.find(then.nodes[i])->op;
    if (type_of(mine) != type_of(other)) return false;
    const auto *inner = std::get_if<ChildOp>(&mine), *next = std::get_if<ChildOp>(&other);
    if (inner && !has_shape_of(*graphs_.find(inner->graph), *graphs_.find(next->graph))) {
      return false;
    }
    twin[now.nodes[i]] = then.nodes[i];
  }
  return std::equal(
      now.edges.begin(), now.edges.end(), then.edges.begin(),
      [&](const Edge& a, const Edge& b) { return twin[a.from] == b.from && twin[a.to] == b.to; });
}

void Machine::set_child(Exec& exec, const Graph& now, const Graph& then) {
  for (std::size_t i = 0; i < now.nodes.size(); ++i) {
    const Op &mine = nodes_.find(now.nodes[i])->op, &other = nodes_.find(then.nodes[i])->op;
    if (const auto* inner = std::get_if<ChildOp>(&mine)) {
      set_child(exec, *graphs_.find(inner->graph), *graphs_.find(std::get<ChildOp>(other).graph));
    } else {
      set_exec_op(exec.handle, exec.nodes[exec.index.at(now.nodes[i])], other);
    }
  }
}

CuResult Machine::cuGraphExecChildGraphNodeSetParams(CuGraphExec handle, CuGraphNode node_handle,
                                                     CuGraph child) {
  const Node* const node = nodes_.find(node_handle);
  const auto* op = node ? std::get_if<ChildOp>(&node->op) : nullptr;
  const Graph* const then = graphs_.find(child);
  if (!op || !then || !find_exec_node(handle, node_handle)) return CuResult::kInvalidValue;
  const Graph& now = *graphs_.find(op->graph);
  if (!has_shape_of(now, *then)) return CuResult::kGraphExecUpdateFailure;
  set_child(*execs_.find(handle), now, *then);
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphNodeSetEnabled(CuGraphExec exec, CuGraphNode handle, unsigned enabled) {
  ExecNode* const node = find_exec_node(exec, handle);
  if (!node) return CuResult::kInvalidValue;
  const CuNodeType type = type_of(*node->op);
  if (type != CuNodeType::kKernel && type != CuNodeType::kMemcpy && type != CuNodeType::kMemset) {
    return CuResult::kInvalidValue;
  }
  node->enabled = enabled != 0;
  if (node->device_node) execs_.find(exec)->uploaded = false;
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphNodeGetEnabled(CuGraphExec exec, CuGraphNode handle, unsigned* enabled) {
  const ExecNode* const node = find_exec_node(exec, handle);
  if (!node) return CuResult::kInvalidValue;
  *enabled = node->enabled ? 1 : 0;
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphExecNodeSetParams(CuGraphExec exec, CuGraphNode node,
                                           CuGraphNodeParams* params) {
  if (!params) return CuResult::kInvalidValue;
  switch (params->type) {
    case CuNodeType::kKernel:
      return cuGraphExecKernelNodeSetParams(exec, node, &params->kernel);
    case CuNodeType::kMemcpy:
      return cuGraphExecMemcpyNodeSetParams(exec, node, &params->memcpy.copy,
                                            params->memcpy.context);
    case CuNodeType::kMemset:
      return cuGraphExecMemsetNodeSetParams(exec, node, &params->memset.memset,
                                            params->memset.context);
    case CuNodeType::kHost:
      return cuGraphExecHostNodeSetParams(exec, node, &params->host);
    case CuNodeType::kGraph:
      return cuGraphExecChildGraphNodeSetParams(exec, node, params->graph.graph);
    default:
      return CuResult::kInvalidValue;
  }
}

}  // namespace anabranch::sim
