// SPDX-License-Identifier: Apache-2.0
// Stream capture: who may do what while it lasts, how streams join it, what breaks it.
#include <algorithm>

#include "device/sim/machine.h"

namespace anabranch::sim {

void Machine::invalidate(Capture& capture) {
  if (capture.status == CuCaptureStatus::kActive) capture.status = CuCaptureStatus::kInvalidated;
}

// A call that is not queued, and so would be missing from the graph, breaks every capture that
// forbids it: those of this thread, and global ones of others, unless this thread says otherwise.
// A capture that is broken already forbids it still, and with the same code.
CuResult Machine::check_unsafe() {
  const auto id = std::this_thread::get_id();
  const CuCaptureMode mode = thread_modes_[id];
  if (mode == CuCaptureMode::kRelaxed) return CuResult::kSuccess;
  CuResult result = CuResult::kSuccess;
  for (const auto& capture : captures_) {
    const bool own = capture->owner == id && capture->mode != CuCaptureMode::kRelaxed;
    const bool other = capture->owner != id && capture->mode == CuCaptureMode::kGlobal &&
                       mode == CuCaptureMode::kGlobal;
    if (!own && !other) continue;
    invalidate(*capture);
    result = CuResult::kStreamCaptureUnsupported;
  }
  return result;
}

bool Machine::is_used_by(const Capture& capture, bool (*which)(const Stream&)) const {
  const auto uses = [&](const Stream& stream) {
    return stream.capture.get() == &capture && which(stream);
  };
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& entry) { return uses(*entry.second); }) ||
         std::any_of(per_thread_streams_.begin(), per_thread_streams_.end(),
                     [&](const auto& entry) { return uses(entry.second); });
}

// The legacy stream would have to wait for blocking streams that do not run.
CuResult Machine::check_legacy(const Stream& stream) {
  if (!stream.legacy) return CuResult::kSuccess;
  CuResult result = CuResult::kSuccess;
  for (const auto& capture : captures_) {
    if (!is_used_by(*capture, [](const Stream& other) { return other.blocking(); })) continue;
    invalidate(*capture);
    result = CuResult::kStreamCaptureImplicit;
  }
  return result;
}

CuResult Machine::check_capturing(Stream& stream) {
  const bool broken = stream.capture && stream.capture->status == CuCaptureStatus::kInvalidated;
  return broken ? CuResult::kStreamCaptureInvalidated : CuResult::kSuccess;
}

CuResult Machine::use_event(Event& event) {
  if (!event.capture) return CuResult::kSuccess;
  if (event.capture->status != CuCaptureStatus::kActive) return CuResult::kInvalidValue;
  invalidate(*event.capture);
  return CuResult::kCapturedEvent;
}

// A programmatic launch makes an edge on which it may start before the kernel ahead has ended.
CuResult Machine::capture_op(Stream& stream, Op op) {
  Capture& capture = *stream.capture;
  std::vector<Dependency> after = stream.capture_after;
  if (const auto* kernel = std::get_if<KernelOp>(&op); kernel && kernel->programmatic) {
    for (Dependency& dependency : after) {
      const Node* const node = nodes_.find(dependency.node);
      if (!node || !std::holds_alternative<KernelOp>(node->op)) continue;
      dependency.data.from_port = kPortProgrammatic;
      dependency.data.type = kEdgeProgrammatic;
    }
  }
  CuGraphNode node = nullptr;
  const CuResult result = add_node(capture.graph, after, std::move(op), &node);
  if (result != CuResult::kSuccess) return result;
  capture.captured.insert(node);
  stream.capture_after = {{node, {}}};
  return CuResult::kSuccess;
}

// Waiting for an event of a capture takes a stream into it.
CuResult Machine::wait_captured(Stream& stream, Event& event) {
  Capture& capture = *event.capture;
  if (capture.status != CuCaptureStatus::kActive) {
    if (stream.capture) invalidate(*stream.capture);
    return CuResult::kInvalidValue;
  }
  if (stream.legacy) {
    invalidate(capture);
    return CuResult::kStreamCaptureImplicit;
  }
  if (stream.capture && stream.capture != event.capture) {
    invalidate(capture);
    invalidate(*stream.capture);
    return CuResult::kStreamCaptureMerge;
  }
  stream.capture = event.capture;
  for (const Dependency& dependency : event.capture_after) {
    const bool known = std::any_of(stream.capture_after.begin(), stream.capture_after.end(),
                                   [&](const Dependency& d) { return d.node == dependency.node; });
    if (!known) stream.capture_after.push_back(dependency);
  }
  return CuResult::kSuccess;
}

CuResult Machine::cuStreamBeginCapture(CuStream handle, CuCaptureMode mode) {
  Stream* stream = nullptr;
  const CuResult result = find_stream(handle, &stream);
  if (result != CuResult::kSuccess) return result;
  if (stream->legacy) return CuResult::kStreamCaptureUnsupported;
  if (stream->capture) return CuResult::kIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = next_capture_++;
  capture->mode = mode;
  capture->owner = std::this_thread::get_id();
  capture->origin = stream;
  Graph& graph = graphs_.make();
  graph.captured_into = true;
  capture->graph = graph.handle;
  stream->capture = capture;
  stream->capture_after.clear();
  captures_.push_back(std::move(capture));
  return CuResult::kSuccess;
}

// Every captured node must lead to what the origin would do next.
bool Machine::all_joined(const Capture& capture) const {
  const Graph& graph = *graphs_.find(capture.graph);
  std::vector<CuGraphNode> open(capture.released.begin(), capture.released.end());
  for (const Dependency& dependency : capture.origin->capture_after) {
    open.push_back(dependency.node);
  }
  std::map<CuGraphNode, std::vector<CuGraphNode>> before;
  for (const Edge& edge : graph.edges) before[edge.to].push_back(edge.from);
  std::set<CuGraphNode> reached;
  while (!open.empty()) {
    const CuGraphNode node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), before[node].begin(), before[node].end());
  }
  return std::includes(reached.begin(), reached.end(), capture.captured.begin(),
                       capture.captured.end());
}

// Its streams are free again; its events are nothing until they are recorded anew.
void Machine::end_capture(Capture& capture) {
  const auto leave = [&](Stream& stream) {
    if (stream.capture.get() != &capture) return;
    stream.capture.reset();
    stream.capture_after.clear();
  };
  const bool broken = capture.status != CuCaptureStatus::kActive;
  capture.status = CuCaptureStatus::kNone;
  Graph* const graph = graphs_.find(capture.graph);
  if (graph) graph->captured_into = false;
  if (graph && broken) destroy_graph(*graph);
  const auto keep = std::find_if(captures_.begin(), captures_.end(),
                                 [&](const auto& c) { return c.get() == &capture; });
  const std::shared_ptr<Capture> alive = keep == captures_.end() ? nullptr : *keep;
  if (alive) captures_.erase(keep);
  for (const auto& [handle, stream] : streams_) leave(*stream);
  for (auto& [key, stream] : per_thread_streams_) leave(stream);
}

CuResult Machine::cuStreamEndCapture(CuStream handle, CuGraph* graph) {
  *graph = nullptr;
  Stream* stream = nullptr;
  CuResult result = find_stream(handle, &stream);
  if (result != CuResult::kSuccess) return result;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return CuResult::kIllegalState;
  if (capture->origin != stream) {
    invalidate(*capture);
    return CuResult::kStreamCaptureUnmatched;
  }
  const bool own_thread = capture->owner == std::this_thread::get_id();
  if (capture->mode != CuCaptureMode::kRelaxed && !own_thread) {
    result = CuResult::kStreamCaptureWrongThread;  // and ended it is, without a graph
  } else if (capture->status == CuCaptureStatus::kInvalidated) {
    result = CuResult::kStreamCaptureInvalidated;
  } else if (!all_joined(*capture)) {
    result = CuResult::kStreamCaptureUnjoined;
  }
  // A caller that is answered an error has no use for the graph, and no way to free it.
  if (result != CuResult::kSuccess || answers_late_) invalidate(*capture);
  end_capture(*capture);
  if (capture->status == CuCaptureStatus::kNone && graphs_.find(capture->graph)) {
    *graph = capture->graph;
  }
  return result;
}

CuResult Machine::cuStreamIsCapturing(CuStream handle, CuCaptureStatus* status) {
  return cuStreamGetCaptureInfo(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

CuResult Machine::cuStreamGetCaptureInfo(CuStream handle, CuCaptureStatus* status,
                                         std::uint64_t* id, CuGraph* graph,
                                         const CuGraphNode** nodes, const CuEdgeData** edges,
                                         std::size_t* count) {
  Stream* stream = nullptr;
  const CuResult result = find_stream(handle, &stream);
  if (result != CuResult::kSuccess) return result;
  const auto blocking = [](const Stream& other) { return other.blocking(); };
  if (stream->legacy && std::any_of(captures_.begin(), captures_.end(), [&](const auto& capture) {
        return is_used_by(*capture, blocking);
      })) {
    return CuResult::kStreamCaptureImplicit;  // asking breaks nothing
  }
  *status = stream->capture ? stream->capture->status : CuCaptureStatus::kNone;
  if (*status != CuCaptureStatus::kActive) return CuResult::kSuccess;
  stream->shown_nodes.clear();
  stream->shown_edges.clear();
  for (const auto& [node, data] : stream->capture_after) {
    stream->shown_nodes.push_back(node);
    stream->shown_edges.push_back(data);
  }
  if (id) *id = stream->capture->id;
  if (graph) *graph = stream->capture->graph;
  if (nodes) *nodes = stream->shown_nodes.data();
  if (edges) *edges = stream->shown_edges.data();
  if (count) *count = stream->shown_nodes.size();
  return CuResult::kSuccess;
}

CuResult Machine::cuStreamUpdateCaptureDependencies(CuStream handle, CuGraphNode* nodes,
                                                    const CuEdgeData* edges, std::size_t count,
                                                    unsigned flags) {
  Stream* stream = nullptr;
  CuResult result = find_stream(handle, &stream);
  if (result == CuResult::kSuccess) result = check_capturing(*stream);
  if (result != CuResult::kSuccess) return result;
  if (!stream->capture) return CuResult::kIllegalState;
  if (flags > kSetCaptureDependencies) return CuResult::kInvalidValue;
  std::vector<Dependency> after;
  for (std::size_t i = 0; i < count; ++i) {
    const Node* const node = nodes_.find(nodes[i]);
    if (!node || node->graph != stream->capture->graph) return CuResult::kInvalidValue;
    after.push_back({nodes[i], edges ? edges[i] : CuEdgeData{}});
  }
  if (flags == kSetCaptureDependencies) {
    for (const Dependency& old : stream->capture_after) stream->capture->released.insert(old.node);
    stream->capture_after.clear();
  }
  stream->capture_after.insert(stream->capture_after.end(), after.begin(), after.end());
  return CuResult::kSuccess;
}

CuResult Machine::cuThreadExchangeStreamCaptureMode(CuCaptureMode* mode) {
  std::swap(thread_modes_[std::this_thread::get_id()], *mode);
  return CuResult::kSuccess;
}

}  // namespace anabranch::sim
