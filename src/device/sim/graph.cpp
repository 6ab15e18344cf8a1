// SPDX-License-Identifier: Apache-2.0
// Graphs: nodes in the order of their making, edges with data, clones.
#include "device/sim/machine.h"

#include <algorithm>
#include <cstring>

namespace anabranch::sim {
namespace {

bool is_default(const CuEdgeData& data) {
  static constexpr CuEdgeData kZero{};
  return std::memcmp(&data, &kZero, sizeof data) == 0;
}

// The lists of the driver: null asks for the count, a longer array is padded with nulls.
struct Listing {
  CuGraphNode* from = nullptr;
  CuGraphNode* to = nullptr;
  CuEdgeData* data = nullptr;
  std::size_t* count = nullptr;
};

CuResult list_edges(const std::vector<Edge>& edges, const Listing& out) {
  if (!out.count) return CuResult::kInvalidValue;
  if (!out.from && !out.to) {
    *out.count = edges.size();
    return out.data ? CuResult::kInvalidValue : CuResult::kSuccess;
  }
  const std::size_t room = *out.count;
  for (std::size_t i = 0; i < room; ++i) {
    const Edge edge = i < edges.size() ? edges[i] : Edge{};
    if (!out.data && !is_default(edge.data)) return CuResult::kLossyQuery;
    if (out.from) out.from[i] = edge.from;
    if (out.to) out.to[i] = edge.to;
    if (out.data) out.data[i] = edge.data;
  }
  *out.count = std::min(room, edges.size());
  return CuResult::kSuccess;
}

CuResult list_nodes(const std::vector<CuGraphNode>& nodes, CuGraphNode* out, std::size_t* count) {
  if (!count) return CuResult::kInvalidValue;
  if (!out) {
    *count = nodes.size();
    return CuResult::kSuccess;
  }
  for (std::size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i] : nullptr;
  *count = std::min(*count, nodes.size());
  return CuResult::kSuccess;
}

}  // namespace

CuNodeType type_of(const Op& op) {
  if (const auto* opaque = std::get_if<OpaqueOp>(&op)) return opaque->type;
  static constexpr CuNodeType kTypes[] = {
      CuNodeType::kEmpty, CuNodeType::kKernel,      CuNodeType::kMemcpy,    CuNodeType::kMemset,
      CuNodeType::kHost,  CuNodeType::kEventRecord, CuNodeType::kWaitEvent, CuNodeType::kGraph};
  return kTypes[op.index()];
}

std::string name_of(const Op& op) {
  if (const auto* kernel = std::get_if<KernelOp>(&op)) return kernel->kernel->name;
  static constexpr const char* kNames[] = {"empty",      "kernel",      "copy",
                                           "fill",       "host",        "event record",
                                           "event wait", "child graph", "opaque"};
  return kNames[op.index()];
}

// Programmatic edges go from kernel to kernel, and say by which port.
CuResult Machine::check_edge(const Graph& graph, const Edge& edge) const {
  const Node* const from = nodes_.find(edge.from);
  const Node* const to = nodes_.find(edge.to);
  if (!from || !to || from == to || from->graph != graph.handle || to->graph != graph.handle) {
    return CuResult::kInvalidValue;
  }
  const CuEdgeData& data = edge.data;
  const bool from_kernel = std::holds_alternative<KernelOp>(from->op);
  const bool to_kernel = std::holds_alternative<KernelOp>(to->op);
  const bool programmatic = data.type == kEdgeProgrammatic;
  if (data.to_port != 0 || data.from_port > kPortLaunchOrder || data.type > kEdgeProgrammatic ||
      (data.from_port != kPortDefault && !from_kernel) ||
      (programmatic && (!from_kernel || !to_kernel || data.from_port == kPortDefault)) ||
      (!programmatic && data.from_port == kPortProgrammatic)) {
    return CuResult::kInvalidValue;
  }
  const bool there = std::any_of(graph.edges.begin(), graph.edges.end(), [&](const Edge& e) {
    return e.from == edge.from && e.to == edge.to;
  });
  return there ? CuResult::kInvalidValue : CuResult::kSuccess;
}

CuResult Machine::add_node(CuGraph handle, const std::vector<Dependency>& after, Op op,
                           CuGraphNode* out) {
  Graph* const graph = graphs_.find(handle);
  if (!graph) return CuResult::kInvalidValue;
  Node& node = nodes_.make();
  node.graph = handle;
  node.op = std::move(op);
  const std::size_t edges_before = graph->edges.size();
  for (const auto& [first, data] : after) {
    const Edge edge{first, node.handle, data};
    const CuResult result = check_edge(*graph, edge);
    if (result != CuResult::kSuccess) {
      graph->edges.resize(edges_before);
      nodes_.erase(node.handle);
      return result;
    }
    graph->edges.push_back(edge);
  }
  graph->nodes.push_back(node.handle);
  *out = node.handle;
  return CuResult::kSuccess;
}

CuResult Machine::add_node(CuGraph graph, const CuGraphNode* after, std::size_t count, Op op,
                           CuGraphNode* node) {
  if (!node || (count > 0 && !after)) return CuResult::kInvalidValue;
  std::vector<Dependency> dependencies(count);
  for (std::size_t i = 0; i < count; ++i) dependencies[i].node = after[i];
  return add_node(graph, dependencies, std::move(op), node);
}

// Each node after what it depends on, otherwise as made; shorter than the graph if it has a cycle.
std::vector<CuGraphNode> Machine::in_order(const Graph& graph) const {
  std::map<CuGraphNode, std::size_t> waits_for;
  std::map<CuGraphNode, std::vector<CuGraphNode>> next;
  for (const Edge& edge : graph.edges) {
    ++waits_for[edge.to];
    next[edge.from].push_back(edge.to);
  }
  std::set<CuGraphNode> ready;  // handles grow, so the smallest was made first
  for (const CuGraphNode node : graph.nodes) {
    if (waits_for[node] == 0) ready.insert(node);
  }
  std::vector<CuGraphNode> order;
  while (!ready.empty()) {
    const CuGraphNode node = *ready.begin();
    ready.erase(ready.begin());
    order.push_back(node);
    for (const CuGraphNode after : next[node]) {
      if (--waits_for[after] == 0) ready.insert(after);
    }
  }
  return order;
}

Graph& Machine::copy_graph(const Graph& original) {
  Graph& copy = graphs_.make();
  copy.cloned_from = original.handle;
  std::map<CuGraphNode, CuGraphNode> twin;
  for (const CuGraphNode handle : original.nodes) {
    const Node& node = *nodes_.find(handle);
    Node& made = nodes_.make();
    made.graph = copy.handle;
    made.cloned_from = handle;
    made.op = node.op;
    if (auto* child = std::get_if<ChildOp>(&made.op)) {
      Graph& inner = copy_graph(*graphs_.find(child->graph));
      inner.owner = made.handle;
      child->graph = inner.handle;
    }
    twin[handle] = made.handle;
    copy.nodes.push_back(made.handle);
  }
  for (const Edge& edge : original.edges) {
    copy.edges.push_back({twin[edge.from], twin[edge.to], edge.data});
  }
  return copy;
}

void Machine::destroy_graph(Graph& graph) {
  for (const CuGraphNode handle : graph.nodes) {
    const Node* const node = nodes_.find(handle);
    if (const auto* child = std::get_if<ChildOp>(&node->op)) {
      destroy_graph(*graphs_.find(child->graph));
    }
    nodes_.erase(handle);
  }
  graphs_.erase(graph.handle);
}

CuResult Machine::cuGraphCreate(CuGraph* graph, unsigned flags) {
  if (flags != 0) return CuResult::kInvalidValue;
  *graph = graphs_.make().handle;
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphDestroy(CuGraph handle) {
  Graph* const graph = graphs_.find(handle);
  if (!graph || graph->owner || graph->captured_into) return CuResult::kInvalidValue;
  destroy_graph(*graph);
  return CuResult::kSuccess;
}

// Memory and conditional nodes cannot be cloned, nor can what device code updates: the attribute
// belongs to its node.
CuResult Machine::cuGraphClone(CuGraph* clone, CuGraph handle) {
  const Graph* const graph = graphs_.find(handle);
  if (!graph) return CuResult::kInvalidValue;
  for (const CuGraphNode node : graph->nodes) {
    const Node& found = *nodes_.find(node);
    if (found.device_node || std::holds_alternative<OpaqueOp>(found.op)) {
      return CuResult::kNotSupported;
    }
  }
  *clone = copy_graph(*graph).handle;
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphNodeFindInClone(CuGraphNode* node, CuGraphNode original, CuGraph clone) {
  const Graph* const graph = graphs_.find(clone);
  if (!graph) return CuResult::kInvalidValue;
  for (const CuGraphNode handle : graph->nodes) {
    if (nodes_.find(handle)->cloned_from != original) continue;
    *node = handle;
    return CuResult::kSuccess;
  }
  return CuResult::kInvalidValue;
}

CuResult Machine::cuGraphGetNodes(CuGraph handle, CuGraphNode* nodes, std::size_t* count) {
  const Graph* const graph = graphs_.find(handle);
  return graph ? list_nodes(graph->nodes, nodes, count) : CuResult::kInvalidValue;
}

CuResult Machine::cuGraphGetEdges(CuGraph handle, CuGraphNode* from, CuGraphNode* to,
                                  CuEdgeData* edges, std::size_t* count) {
  const Graph* const graph = graphs_.find(handle);
  if (!graph || !from != !to) return CuResult::kInvalidValue;
  return list_edges(graph->edges, {from, to, edges, count});
}

CuResult Machine::cuGraphNodeGetType(CuGraphNode node, CuNodeType* type) {
  const Node* const found = nodes_.find(node);
  if (!found) return CuResult::kInvalidValue;
  *type = type_of(found->op);
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphNodeGetDependencies(CuGraphNode handle, CuGraphNode* from,
                                             CuEdgeData* edges, std::size_t* count) {
  const Node* const node = nodes_.find(handle);
  if (!node) return CuResult::kInvalidValue;
  std::vector<Edge> found;
  for (const Edge& edge : graphs_.find(node->graph)->edges) {
    if (edge.to == handle) found.push_back(edge);
  }
  return list_edges(found, {from, nullptr, edges, count});
}

CuResult Machine::cuGraphNodeGetDependentNodes(CuGraphNode handle, CuGraphNode* to,
                                               CuEdgeData* edges, std::size_t* count) {
  const Node* const node = nodes_.find(handle);
  if (!node) return CuResult::kInvalidValue;
  std::vector<Edge> found;
  for (const Edge& edge : graphs_.find(node->graph)->edges) {
    if (edge.from == handle) found.push_back(edge);
  }
  return list_edges(found, {nullptr, to, edges, count});
}

// Drivers 13000 to 13040 give every edge of one call the data of the first: so does this one.
CuResult Machine::cuGraphAddDependencies(CuGraph handle, const CuGraphNode* from,
                                         const CuGraphNode* to, const CuEdgeData* edges,
                                         std::size_t count) {
  Graph* const graph = graphs_.find(handle);
  if (!graph || (count > 0 && (!from || !to))) return CuResult::kInvalidValue;
  const std::size_t edges_before = graph->edges.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Edge edge{from[i], to[i], edges ? edges[0] : CuEdgeData{}};
    if (const CuResult result = check_edge(*graph, edge); result != CuResult::kSuccess) {
      graph->edges.resize(edges_before);
      return result;
    }
    graph->edges.push_back(edge);
  }
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphRemoveDependencies(CuGraph handle, const CuGraphNode* from,
                                            const CuGraphNode* to, const CuEdgeData*,
                                            std::size_t count) {
  Graph* const graph = graphs_.find(handle);
  if (!graph) return CuResult::kInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    const auto it = std::find_if(graph->edges.begin(), graph->edges.end(), [&](const Edge& edge) {
      return edge.from == from[i] && edge.to == to[i];
    });
    if (it == graph->edges.end()) return CuResult::kInvalidValue;
    graph->edges.erase(it);
  }
  return CuResult::kSuccess;
}

CuResult Machine::cuGraphDestroyNode(CuGraphNode handle) {
  const Node* const node = nodes_.find(handle);
  if (!node) return CuResult::kInvalidValue;
  if (node->device_node) return CuResult::kNotSupported;
  Graph& graph = *graphs_.find(node->graph);
  if (graph.captured_into) return CuResult::kInvalidValue;
  if (const auto* child = std::get_if<ChildOp>(&node->op)) {
    destroy_graph(*graphs_.find(child->graph));
  }
  std::erase(graph.nodes, handle);
  std::erase_if(graph.edges, [&](const Edge& e) { return e.from == handle || e.to == handle; });
  nodes_.erase(handle);
  return CuResult::kSuccess;
}

}  // namespace anabranch::sim
