// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/capture_marks.h"

#include "record/cuda/image/driver_graph.h"

namespace anabranch::cuda {

Result<std::uint32_t> CaptureMarks::mark(CuStream stream, std::uint64_t allocations) {
  CuCaptureStatus status = CuCaptureStatus::kNone;
  CuGraph graph = nullptr;
  if (Status asked = recorded("cuStreamGetCaptureInfo",
                              driver_.cuStreamGetCaptureInfo(stream, &status, nullptr, &graph,
                                                             nullptr, nullptr, nullptr));
      !asked.ok()) {
    return asked;
  }
  if (!graph_) graph_ = graph;
  if (status != CuCaptureStatus::kActive || graph != graph_) {
    return Status(StatusCode::kNotRecordable,
                  "record: a mark was asked for on a stream that is not captured, or not into the "
                  "graph of the marks before. Marks are for the time of one capture.");
  }
  const auto nodes = list_nodes(driver_, graph);
  if (!nodes.ok()) return nodes.error();
  for (const CuGraphNode node : *nodes) marks_.try_emplace(node, count());
  allocations_.push_back(allocations);
  return count() - 1;
}

Result<bool> CaptureMarks::has_new(CuStream stream) const {
  CuCaptureStatus status = CuCaptureStatus::kNone;
  CuGraph graph = nullptr;
  if (Status asked = recorded("cuStreamGetCaptureInfo",
                              driver_.cuStreamGetCaptureInfo(stream, &status, nullptr, &graph,
                                                             nullptr, nullptr, nullptr));
      !asked.ok()) {
    return asked;
  }
  if (status != CuCaptureStatus::kActive || (graph_ && graph != graph_)) return false;
  std::size_t nodes = 0;
  if (Status counted = recorded("cuGraphGetNodes", driver_.cuGraphGetNodes(graph, nullptr, &nodes));
      !counted.ok()) {
    return counted;
  }
  return nodes > marks_.size();
}

std::uint32_t CaptureMarks::mark_of(CuGraphNode node) const {
  const auto found = marks_.find(node);
  return found == marks_.end() ? count() : found->second;
}

}  // namespace anabranch::cuda
