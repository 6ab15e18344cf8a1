// SPDX-License-Identifier: Apache-2.0
// Nodes of graphs: made, shown, changed.
#include "device/sim/machine.h"

namespace anabranch::sim {

// Parameters are shown in the style in which they were given, in memory that the node owns; a block
// with its size first, as the driver has it, whatever the order in which they were given.
void Machine::show_params(Node& node, KernelOp& op, CuKernelNodeParams* params) {
  *params = {op.function, op.grid.x,       op.grid.y, op.grid.z, op.block.x, op.block.y,
             op.block.z,  op.shared_bytes, nullptr,   nullptr,   nullptr,    nullptr};
  const Function* const function = functions_.find(op.function);
  if (options_.nodes_show_kernels && function) {
    params->func = nullptr;
    params->kernel = function->library_kernel;
  }
  if (op.packed) {
    node.packed_bytes = op.params.size();
    void* const extra[] = {params_size_key(), &node.packed_bytes, params_buffer_key(),
                           op.params.data(), kParamsEnd};
    std::copy(std::begin(extra), std::end(extra), node.extra);
    params->extra = node.extra;
    return;
  }
  node.param_pointers.clear();
  for (const auto& [offset, bytes] : op.kernel->params) {
    node.param_pointers.push_back(op.params.data() + offset);
  }
  params->kernel_params = node.param_pointers.empty() ? nullptr : node.param_pointers.data();
}

CuResult Machine::cuGraphAddKernelNode(CuGraphNode* node, CuGraph graph, const CuGraphNode* after,
                                       std::size_t count, const CuKernelNodeParams* params) {
  if (!params) return CuResult::kInvalidValue;
  KernelOp op;
  const CuResult result = make_kernel_op(*params, &op);
  if (result != CuResult::kSuccess) return result;
  return add_node(graph, after, count, std::move(op), node);
}

CuResult Machine::cuGraphKernelNodeGetParams(CuGraphNode handle, CuKernelNodeParams* params) {
  Node* node = nullptr;
  KernelOp* op = nullptr;
  const CuResult result = find_op(handle, &node, &op);
  if (result == CuResult::kSuccess) show_params(*node, *op, params);
  return result;
}

CuResult Machine::cuGraphKernelNodeSetParams(CuGraphNode handle, const CuKernelNodeParams* params) {
  Node* node = nullptr;
  KernelOp* op = nullptr;
  CuResult result = params ? find_op(handle, &node, &op) : CuResult::kInvalidValue;
  if (result != CuResult::kSuccess) return result;
  KernelOp changed = *op;  // attributes are no parameters, and stay
  result = make_kernel_op(*params, &changed);
  if (result == CuResult::kSuccess) *op = std::move(changed);
  return result;
}

CuResult Machine::cuGraphKernelNodeGetAttribute(CuGraphNode handle, CuLaunchAttributeId id,
                                                CuLaunchAttributeValue* value) {
  Node* node = nullptr;
  KernelOp* op = nullptr;
  const CuResult result = find_op(handle, &node, &op);
  if (result != CuResult::kSuccess) return result;
  *value = {};
  switch (id) {
    case CuLaunchAttributeId::kCooperative:
      value->cooperative = op->cooperative;
      return result;
    case CuLaunchAttributeId::kClusterDimension:
      value->cluster_dim = op->cluster;
      return result;
    case CuLaunchAttributeId::kPriority:
      value->priority = op->priority;
      return result;
    case CuLaunchAttributeId::kDeviceUpdatableKernelNode:
      value->device_updatable_kernel_node = {node->device_node ? 1 : 0, node->device_node};
      return result;
    default:
      return CuResult::kInvalidValue;
  }
}

CuResult Machine::cuGraphKernelNodeSetAttribute(CuGraphNode handle, CuLaunchAttributeId id,
                                                const CuLaunchAttributeValue* value) {
  Node* node = nullptr;
  KernelOp* op = nullptr;
  const CuResult result = find_op(handle, &node, &op);
  if (result != CuResult::kSuccess) return result;
  switch (id) {
    case CuLaunchAttributeId::kCooperative:
      op->cooperative = value->cooperative != 0;
      return result;
    case CuLaunchAttributeId::kClusterDimension:
      op->cluster = value->cluster_dim;
      return result;
    case CuLaunchAttributeId::kPriority:
      op->priority = value->priority;
      return result;
    case CuLaunchAttributeId::kDeviceUpdatableKernelNode: {
      const bool wanted = value->device_updatable_kernel_node.device_updatable != 0;
      const bool is_set = node->device_node != nullptr;
      if (!wanted) return is_set ? CuResult::kNotSupported : result;  // it cannot be unset
      if (is_set) return result;
      if (!op->kernel->device_updatable) return CuResult::kNotSupported;
      node->device_node = reinterpret_cast<CuDeviceNode>(next_handle());
      device_nodes_[node->device_node].node = handle;
      return result;
    }
    default:
      return CuResult::kInvalidValue;
  }
}

// All but that it is updatable, which only the node itself is.
CuResult Machine::cuGraphKernelNodeCopyAttributes(CuGraphNode to, CuGraphNode from) {
  Node* node = nullptr;
  KernelOp *target = nullptr, *source = nullptr;
  CuResult result = find_op(to, &node, &target);
  if (result == CuResult::kSuccess) result = find_op(from, &node, &source);
  if (result != CuResult::kSuccess) return result;
  target->cooperative = source->cooperative;
  target->cluster = source->cluster;
  target->priority = source->priority;
  return result;
}

CuResult Machine::cuGraphAddMemcpyNode(CuGraphNode* node, CuGraph graph, const CuGraphNode* after,
                                       std::size_t count, const CuMemcpy3D* copy, CuContext) {
  if (!copy) return CuResult::kInvalidValue;
  const CuResult result = check_copy(*copy);
  if (result != CuResult::kSuccess) return result;
  return add_node(graph, after, count, CopyOp{*copy, nullptr}, node);
}

CuResult Machine::cuGraphMemcpyNodeGetParams(CuGraphNode handle, CuMemcpy3D* copy) {
  Node* node = nullptr;
  CopyOp* op = nullptr;
  const CuResult result = find_op(handle, &node, &op);
  if (result == CuResult::kSuccess) *copy = op->copy;
  return result;
}

CuResult Machine::cuGraphMemcpyNodeSetParams(CuGraphNode handle, const CuMemcpy3D* copy) {
  Node* node = nullptr;
  CopyOp* op = nullptr;
  CuResult result = copy ? find_op(handle, &node, &op) : CuResult::kInvalidValue;
  if (result == CuResult::kSuccess) result = check_copy(*copy);
  if (result == CuResult::kSuccess) op->copy = *copy;
  return result;
}

CuResult Machine::cuGraphAddMemsetNode(CuGraphNode* node, CuGraph graph, const CuGraphNode* after,
                                       std::size_t count, const CuMemsetNodeParams* params,
                                       CuContext) {
  if (!params) return CuResult::kInvalidValue;
  const CuResult result = check_fill(*params);
  if (result != CuResult::kSuccess) return result;
  return add_node(graph, after, count, FillOp{*params}, node);
}

CuResult Machine::cuGraphMemsetNodeGetParams(CuGraphNode handle, CuMemsetNodeParams* params) {
  Node* node = nullptr;
  FillOp* op = nullptr;
  const CuResult result = find_op(handle, &node, &op);
  if (result == CuResult::kSuccess) *params = op->params;
  return result;
}

CuResult Machine::cuGraphMemsetNodeSetParams(CuGraphNode handle, const CuMemsetNodeParams* params) {
  Node* node = nullptr;
  FillOp* op = nullptr;
  CuResult result = params ? find_op(handle, &node, &op) : CuResult::kInvalidValue;
  if (result == CuResult::kSuccess) result = check_fill(*params);
  if (result == CuResult::kSuccess) op->params = *params;
  return result;
}

CuResult Machine::cuGraphAddHostNode(CuGraphNode* node, CuGraph graph, const CuGraphNode* after,
                                     std::size_t count, const CuHostNodeParams* params) {
  if (!params || !params->fn) return CuResult::kInvalidValue;
  return add_node(graph, after, count, HostOp{params->fn, params->user_data}, node);
}

CuResult Machine::cuGraphHostNodeGetParams(CuGraphNode handle, CuHostNodeParams* params) {
  Node* node = nullptr;
  HostOp* op = nullptr;
  const CuResult result = find_op(handle, &node, &op);
  if (result == CuResult::kSuccess) *params = {op->fn, op->user_data};
  return result;
}

CuResult Machine::cuGraphHostNodeSetParams(CuGraphNode handle, const CuHostNodeParams* params) {
  Node* node = nullptr;
  HostOp* op = nullptr;
  if (!params || !params->fn) return CuResult::kInvalidValue;
  const CuResult result = find_op(handle, &node, &op);
  if (result == CuResult::kSuccess) *op = {params->fn, params->user_data};
  return result;
}

// The node owns a clone, so that the child may change or go.
CuResult Machine::cuGraphAddChildGraphNode(CuGraphNode* node, CuGraph graph,
                                           const CuGraphNode* after, std::size_t count,
                                           CuGraph child) {
  if (child == graph) return CuResult::kInvalidValue;
  CuGraph clone = nullptr;
  CuResult result = cuGraphClone(&clone, child);
  if (result != CuResult::kSuccess) return result;
  result = add_node(graph, after, count, ChildOp{clone}, node);
  if (result == CuResult::kSuccess) {
    graphs_.find(clone)->owner = *node;
  } else {
    destroy_graph(*graphs_.find(clone));
  }
  return result;
}

CuResult Machine::cuGraphChildGraphNodeGetGraph(CuGraphNode handle, CuGraph* graph) {
  Node* node = nullptr;
  ChildOp* op = nullptr;
  const CuResult result = find_op(handle, &node, &op);
  if (result == CuResult::kSuccess) *graph = op->graph;
  return result;
}

CuResult Machine::cuGraphAddEmptyNode(CuGraphNode* node, CuGraph graph, const CuGraphNode* after,
                                      std::size_t count) {
  return add_node(graph, after, count, EmptyOp{}, node);
}

CuResult Machine::cuGraphAddEventRecordNode(CuGraphNode* node, CuGraph graph,
                                            const CuGraphNode* after, std::size_t count,
                                            CuEvent event) {
  if (!events_.find(event)) return CuResult::kInvalidValue;
  return add_node(graph, after, count, RecordOp{event}, node);
}

CuResult Machine::cuGraphEventRecordNodeGetEvent(CuGraphNode handle, CuEvent* event) {
  Node* node = nullptr;
  RecordOp* op = nullptr;
  const CuResult result = find_op(handle, &node, &op);
  if (result == CuResult::kSuccess) *event = op->event;
  return result;
}

CuResult Machine::cuGraphAddEventWaitNode(CuGraphNode* node, CuGraph graph,
                                          const CuGraphNode* after, std::size_t count,
                                          CuEvent event) {
  if (!events_.find(event)) return CuResult::kInvalidValue;
  return add_node(graph, after, count, WaitOp{event}, node);
}

CuResult Machine::cuGraphEventWaitNodeGetEvent(CuGraphNode handle, CuEvent* event) {
  Node* node = nullptr;
  WaitOp* op = nullptr;
  const CuResult result = find_op(handle, &node, &op);
  if (result == CuResult::kSuccess) *event = op->event;
  return result;
}

}  // namespace anabranch::sim
