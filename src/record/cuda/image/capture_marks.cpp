// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/capture_marks.h"

#include "record/cuda/image/driver_graph.h"

namespace anabranch::cuda {
namespace {

// The graph into which a stream is captured; null where it is not.
Result<CuGraph> captured_into(const Driver& driver, CuStream stream) {
  CuCaptureStatus status = CuCaptureStatus::kNone;
  CuGraph graph = nullptr;
  if (Status asked = recorded("cuStreamGetCaptureInfo",
                              driver.cuStreamGetCaptureInfo(stream, &status, nullptr, &graph,
                                                            nullptr, nullptr, nullptr));
      !asked.ok()) {
    return asked;
  }
  return status == CuCaptureStatus::kActive ? graph : nullptr;
}

}  // namespace

Result<std::uint32_t> CaptureMarks::mark(CuStream stream, std::uint64_t allocations) {
  const Result<CuGraph> graph = captured_into(driver_, stream);
  if (!graph.ok()) return graph.error();
  if (!graph_) graph_ = *graph;
  if (!*graph || *graph != graph_) {
    return Status(StatusCode::kNotRecordable,
                  "record: a mark was asked for on a stream that is not captured, or not into the "
                  "graph of the marks before. Marks are for the time of one capture.");
  }
  const auto nodes = list_nodes(driver_, *graph);
  if (!nodes.ok()) return nodes.error();
  for (const CuGraphNode node : *nodes) marks_.try_emplace(node, count());
  allocations_.push_back(allocations);
  return count() - 1;
}

Result<bool> CaptureMarks::has_new(CuStream stream) const {
  const Result<CuGraph> graph = captured_into(driver_, stream);
  if (!graph.ok()) return graph.error();
  if (!*graph || (graph_ && *graph != graph_)) return false;
  std::size_t nodes = 0;
  if (Status counted =
          recorded("cuGraphGetNodes", driver_.cuGraphGetNodes(*graph, nullptr, &nodes));
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
