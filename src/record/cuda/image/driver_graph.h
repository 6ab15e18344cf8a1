// SPDX-License-Identifier: Apache-2.0
// The nodes and edges of a graph of the driver, which it tells in two calls each.
// Ownership: values; handles are the graph's.
// Threads:   as the driver, with the context current; also while the graph is captured.
// Failure:   a Status of the driver call.
// Edges:     an empty graph has neither.
#pragma once

#include <vector>

#include "anabranch/status.h"
#include "device/cuda/driver.h"

namespace anabranch::cuda {

struct GraphEdge {
  CuGraphNode from = nullptr, to = nullptr;
  CuEdgeData data{};
};

// In the order of their creation, as far as is known.
Result<std::vector<CuGraphNode>> list_nodes(const Driver& driver, CuGraph graph);
Result<std::vector<GraphEdge>> list_edges(const Driver& driver, CuGraph graph);

}  // namespace anabranch::cuda
