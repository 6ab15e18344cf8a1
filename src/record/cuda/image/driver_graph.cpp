// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/driver_graph.h"

namespace anabranch::cuda {

Result<std::vector<CuGraphNode>> list_nodes(const Driver& driver, CuGraph graph) {
  std::size_t count = 0;
  if (Status asked = recorded("cuGraphGetNodes", driver.cuGraphGetNodes(graph, nullptr, &count));
      !asked.ok()) {
    return asked;
  }
  std::vector<CuGraphNode> nodes(count);
  if (Status got = recorded("cuGraphGetNodes", driver.cuGraphGetNodes(graph, nodes.data(), &count));
      !got.ok()) {
    return got;
  }
  return nodes;
}

Result<std::vector<GraphEdge>> list_edges(const Driver& driver, CuGraph graph) {
  std::size_t count = 0;
  if (Status asked = recorded("cuGraphGetEdges",
                              driver.cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
      !asked.ok()) {
    return asked;
  }
  std::vector<CuGraphNode> from(count), to(count);
  std::vector<CuEdgeData> data(count);
  if (Status got = recorded("cuGraphGetEdges", driver.cuGraphGetEdges(graph, from.data(), to.data(),
                                                                      data.data(), &count));
      !got.ok()) {
    return got;
  }
  std::vector<GraphEdge> edges;
  for (std::size_t i = 0; i < count; ++i) edges.push_back({from[i], to[i], data[i]});
  return edges;
}

}  // namespace anabranch::cuda
