// SPDX-License-Identifier: Apache-2.0
// Executable graphs: made, uploaded, launched; and what device code may change in them.
//
// A device-updatable node has two forms: what the host last set, and the device's copy of it. An
// upload overwrites the second with the first. A launch of an executable whose host form has
// changed uploads for itself while it runs, so what its own kernels change in it is lost.
#include "device/sim/machine.h"

#include <cstring>

namespace anabranch::sim {
namespace {

void overwrite_copies(Exec& exec, const std::vector<ExecNode>& nodes) {
  for (auto& [index, copy] : exec.copies) {
    const auto& kernel = std::get<KernelOp>(*nodes[index].op);
    copy = {kernel.params, kernel.grid, nodes[index].enabled};
  }
}

// A graph's kernels run with the priority of the stream that it is launched on, unless it was made
// to go by its nodes.
std::shared_ptr<const Op> launched_op(const Exec& exec, const ExecNode& node, int priority) {
  const auto* kernel = std::get_if<KernelOp>(node.op.get());
  if (exec.by_node || !kernel) return node.op;
  KernelOp launched = *kernel;
  launched.priority = priority;
  return std::make_shared<const Op>(std::move(launched));
}

}  // namespace

// What device code may launch is all the device's: kernels, fills, and copies without pageable
// memory; not nothing, nor a node that does nothing.
bool Machine::is_device_launchable(const Graph& graph, CuGraphNode* culprit) const {
  if (graph.nodes.empty()) return false;
  for (const CuGraphNode handle : graph.nodes) {
    const Op& op = nodes_.find(handle)->op;
    const auto* const copy = std::get_if<CopyOp>(&op);
    const auto* const child = std::get_if<ChildOp>(&op);
    const bool may_be = std::holds_alternative<KernelOp>(op) ||
                        std::holds_alternative<FillOp>(op) || (copy && !copy->staged);
    if (may_be || (child && is_device_launchable(*graphs_.find(child->graph), culprit))) continue;
    if (!*culprit) *culprit = handle;
    return false;
  }
  return true;
}

CuResult Machine::check_instantiable(const Graph& graph, CuGraphNode* culprit) const {
  if (in_order(graph).size() < graph.nodes.size()) {
    *culprit = graph.nodes.front();
    return CuResult::kInvalidValue;
  }
  for (const CuGraphNode handle : graph.nodes) {
    const Node& node = *nodes_.find(handle);
    if (std::holds_alternative<OpaqueOp>(node.op)) {
      *culprit = handle;
      return CuResult::kNotSupported;
    }
    if (const auto* child = std::get_if<ChildOp>(&node.op)) {
      const CuResult result = check_instantiable(*graphs_.find(child->graph), culprit);
      if (result != CuResult::kSuccess) return result;
    }
  }
  return CuResult::kSuccess;
}

// A child graph becomes a node that begins it, its nodes, and a node that ends it. Whoever depends
// on the child depends on its end.
void Machine::flatten(const Graph& graph, Exec& exec, std::optional<std::size_t> inside) {
  std::map<CuGraphNode, std::vector<const Edge*>> edges;
  for (const Edge& edge : graph.edges) edges[edge.to].push_back(&edge);
  for (const CuGraphNode handle : in_order(graph)) {
    const Node& node = *nodes_.find(handle);
    std::vector<ExecNode::After> after;
    for (const Edge* edge : edges[handle]) {
      after.push_back({exec.index.at(edge->from), edge->data.from_port != kPortDefault,
                       edge->data.type == kEdgeProgrammatic});
    }
    if (after.empty() && inside) after.push_back({*inside, false, false});
    const std::size_t index = exec.nodes.size();
    exec.nodes.push_back(
        {handle, std::make_shared<const Op>(node.op), true, node.device_node, std::move(after)});
    exec.index[handle] = index;
    if (node.device_node) exec.copies[index] = {};
    const auto* child = std::get_if<ChildOp>(&node.op);
    if (!child) continue;
    flatten(*graphs_.find(child->graph), exec, index);
    ExecNode end{nullptr, std::make_shared<const Op>(EmptyOp{}), true, nullptr, {}};
    for (std::size_t i = index; i < exec.nodes.size(); ++i) end.after.push_back({i, false, false});
    exec.index[handle] = exec.nodes.size();
    exec.nodes.push_back(std::move(end));
  }
}

CuResult Machine::cuGraphInstantiateWithParams(CuGraphExec* handle, CuGraph source,
                                               CuInstantiateParams* params) {
  Graph* const graph = graphs_.find(source);
  if (!graph || !params || !current_device()) return CuResult::kInvalidValue;
  params->error_node = nullptr;
  params->result = CuInstantiateResult::kError;
  CuResult result = check_instantiable(*graph, &params->error_node);
  if (result != CuResult::kSuccess) {
    params->result = result == CuResult::kNotSupported
                         ? CuInstantiateResult::kNodeOperationNotSupported
                         : CuInstantiateResult::kInvalidStructure;
    return result;
  }
  if ((params->flags & kInstantiateDeviceLaunch) != 0 &&
      !is_device_launchable(*graph, &params->error_node)) {
    params->result = CuInstantiateResult::kNodeOperationNotSupported;
    return CuResult::kInvalidValue;
  }
  const bool uploads = (params->flags & kInstantiateUpload) != 0;
  Stream* stream = nullptr;
  if (uploads) result = find_stream(params->upload_stream, &stream);
  if (result != CuResult::kSuccess) return result;
  Exec& exec = execs_.make();
  exec.source = source;
  exec.by_node = (params->flags & kInstantiateUseNodePriority) != 0;
  flatten(*graph, exec, std::nullopt);
  if (!exec.copies.empty() && graph->execs > 0) {  // device code could not tell the two apart
    execs_.erase(exec.handle);
    return CuResult::kNotSupported;
  }
  for (ExecNode& node : exec.nodes) {
    const auto* copy = std::get_if<CopyOp>(node.op.get());
    if (!copy) continue;
    node.copied = kinds_of(copy->copy);
    node.op = std::make_shared<const Op>(bound(*copy));
  }
  graph->execs += exec.copies.empty() ? 0 : 1;
  for (const auto& [index, copy] : exec.copies) {
    device_nodes_[exec.nodes[index].device_node].exec = execs_.share(exec.handle);
  }
  overwrite_copies(exec, exec.nodes);
  if (uploads) result = upload(exec.handle, *stream);
  params->result = CuInstantiateResult::kSuccess;
  *handle = exec.handle;
  return result;
}

// What is queued still runs: work holds the executable.
CuResult Machine::cuGraphExecDestroy(CuGraphExec handle) {
  const Exec* const exec = execs_.find(handle);
  if (!exec) return CuResult::kInvalidValue;
  Graph* const graph = graphs_.find(exec->source);
  if (graph && !exec->copies.empty()) --graph->execs;
  execs_.erase(handle);
  return CuResult::kSuccess;
}

CuResult Machine::upload(CuGraphExec handle, Stream& stream) {
  const std::shared_ptr<Exec> exec = execs_.share(handle);
  auto nodes = std::make_shared<const std::vector<ExecNode>>(exec->nodes);
  Work work{"graph upload", nullptr, 1000, [exec, nodes] { overwrite_copies(*exec, *nodes); }};
  exec->tail = enqueue(stream, std::move(work), {{exec->tail}});
  exec->uploaded = true;
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphUpload(CuGraphExec handle, CuStream stream_handle) {
  Stream* stream = nullptr;
  CuResult result = find_stream(stream_handle, &stream);
  if (result == CuResult::kSuccess) result = check_legacy(*stream);
  if (result != CuResult::kSuccess) return result;
  if (!execs_.find(handle)) return CuResult::kInvalidValue;
  if (!stream->capture) return upload(handle, *stream);
  invalidate(*stream->capture);
  return CuResult::kStreamCaptureUnsupported;
}

CuResult Machine::cuGraphLaunch(CuGraphExec handle, CuStream stream_handle) {
  Stream* stream = nullptr;
  CuResult result = find_stream(stream_handle, &stream);
  if (result == CuResult::kSuccess) result = check_legacy(*stream);
  if (result == CuResult::kSuccess) result = check_capturing(*stream);
  if (result != CuResult::kSuccess) return result;
  if (!execs_.find(handle)) return CuResult::kInvalidValue;
  if (stream->capture) {
    invalidate(*stream->capture);
    return CuResult::kStreamCaptureUnsupported;
  }
  const std::shared_ptr<Exec> exec = execs_.share(handle);
  Work begin{"graph begins", nullptr, 0, nullptr};
  if (!exec->uploaded) {
    auto nodes = std::make_shared<const std::vector<ExecNode>>(exec->nodes);
    begin.run = [exec, nodes] {
      overwrite_copies(*exec, *nodes);
      exec->uploading_itself = true;
    };
  }
  // One launch of an executable at a time: behind its stream and behind its own earlier launches.
  const WorkRef root = enqueue(*stream, std::move(begin), {{exec->tail}});
  std::vector<After> ends = launch_nodes(exec, *stream, root);
  ends.push_back({root});
  Work end{"graph ends", stream->handle, 0, [exec] { exec->uploading_itself = false; }};
  stream->tail = exec->tail = engine_.add(std::move(end), ends);
  exec->uploaded = true;
  return CuResult::kSuccess;
}

std::vector<After> Machine::launch_nodes(const std::shared_ptr<Exec>& exec, const Stream& stream,
                                         const WorkRef& root) {
  std::vector<After> launched;
  for (std::size_t i = 0; i < exec->nodes.size(); ++i) {
    const ExecNode& node = exec->nodes[i];
    const auto* const kernel = std::get_if<KernelOp>(node.op.get());
    const bool waits = kernel && kernel->kernel->waits;
    std::vector<After> after;
    for (const auto& [index, at_start, may_wait] : node.after) {
      after.push_back({launched[index].work, at_start, may_wait && waits});
    }
    if (after.empty()) after.push_back({root});
    launched.push_back({launch_node(exec, node, i, stream, std::move(after))});
  }
  return launched;
}

WorkRef Machine::launch_node(const std::shared_ptr<Exec>& exec, const ExecNode& node,
                             std::size_t index, const Stream& stream, std::vector<After> after) {
  const std::shared_ptr<const Op> op = launched_op(*exec, node, stream.priority);
  if (const auto* wait = std::get_if<WaitOp>(op.get())) {
    if (const Event* const event = events_.find(wait->event)) after.push_back({event->mark});
  }
  Work work{name_of(*op), stream.handle, duration_of(*op), nullptr};
  if (node.device_node) {
    work.run = [this, exec, op, index] {
      const DeviceCopy& copy = exec->copies.at(index);
      if (!copy.enabled || sticky_ != CuResult::kSuccess) return;
      KernelOp kernel = std::get<KernelOp>(*op);
      kernel.params = copy.params;
      kernel.grid = copy.grid;
      run_kernel(kernel);
    };
  } else if (node.enabled) {
    work.run = [this, op] { run_op(*op); };
  }
  const WorkRef mark = engine_.add(std::move(work), after);
  if (const auto* record = std::get_if<RecordOp>(op.get())) {
    if (Event* const event = events_.find(record->event)) {
      event->recorded = true;
      event->capture.reset();
      event->mark = mark;
    }
  }
  return mark;
}

// Null where the node is unknown, not yet instantiated, or no kernel runs that could ask.
DeviceCopy* Machine::find_device_copy(CuDeviceNode node, bool* undone) {
  const auto it = device_nodes_.find(node);
  if (it == device_nodes_.end() || !kernel_running_) return nullptr;
  const std::shared_ptr<Exec> exec = it->second.exec.lock();
  if (!exec) return nullptr;
  *undone = exec->uploading_itself;
  return &exec->copies.at(exec->index.at(it->second.node));
}

CuResult SimDriver::update_param(CuDeviceNode node, std::size_t offset, const void* value,
                                 std::size_t size) {
  bool undone = false;
  DeviceCopy* const copy = Machine::active->find_device_copy(node, &undone);
  if (!copy || offset > copy->params.size() || size > copy->params.size() - offset) {
    return CuResult::kInvalidValue;
  }
  if (!undone) std::memcpy(copy->params.data() + offset, value, size);
  return CuResult::kSuccess;
}

CuResult SimDriver::set_enabled(CuDeviceNode node, bool enabled) {
  bool undone = false;
  DeviceCopy* const copy = Machine::active->find_device_copy(node, &undone);
  if (!copy) return CuResult::kInvalidValue;
  if (!undone) copy->enabled = enabled;
  return CuResult::kSuccess;
}

CuResult SimDriver::set_grid(CuDeviceNode node, CuDim3 grid) {
  bool undone = false;
  DeviceCopy* const copy = Machine::active->find_device_copy(node, &undone);
  if (!copy || grid.x == 0 || grid.y == 0 || grid.z == 0) return CuResult::kInvalidValue;
  if (!undone) copy->grid = grid;
  return CuResult::kSuccess;
}

}  // namespace anabranch::sim
