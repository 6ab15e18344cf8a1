// SPDX-License-Identifier: Apache-2.0
// For tests: a captured step that streams weights from the host's memory.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "record/cuda/image/graph_image_testing.h"
#include "record/cuda/order/copy_window.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda::testing {

// Copies and kernels in the order of their capture, one behind the other.
struct StreamedStep {
  StepGraph graph;
  std::vector<Unit> units;

  std::uint32_t add_unit(std::uint64_t bytes) {
    units.push_back({0, 0, bytes});
    return static_cast<std::uint32_t>(units.size() - 1);
  }
  std::uint32_t copy(std::uint32_t unit, std::uint64_t bytes, bool to_host = false) {
    const std::uint32_t node = add_node();
    const std::uint64_t begin = std::uint64_t{node} << 32;
    graph.facts[node].host_bytes = {begin, begin + bytes, to_host};
    graph.sites.push_back({node, Operand::kDestination, 0, unit, 0, !to_host, bytes});
    return node;
  }
  // To a unit of its own.
  std::uint32_t copy_new(std::uint64_t bytes) {
    copy(add_unit(bytes), bytes);
    return static_cast<std::uint32_t>(units.size() - 1);
  }
  std::uint32_t kernel(const std::vector<std::uint32_t>& reads,
                       const std::vector<std::uint32_t>& writes = {}) {
    const std::uint32_t node = add_node();
    for (const auto unit : reads) graph.sites.push_back({node, Operand::kParam, 0, unit, 0, false});
    for (const auto unit : writes) graph.sites.push_back({node, Operand::kParam, 8, unit, 0, true});
    return node;
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges(std::uint64_t ahead_bytes) const {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
    for (const EdgeImage& edge : find_window_edges(graph, units.size(), ahead_bytes)) {
      found.emplace_back(edge.from, edge.to);
    }
    return found;
  }

 private:
  std::uint32_t add_node() {
    const auto node = static_cast<std::uint32_t>(graph.facts.size());
    graph.image.nodes.push_back(testing::kernel("k", {}));
    graph.facts.push_back({.is_known = true});
    if (node != 0) graph.image.edges.push_back({node - 1, node, {}});
    return node;
  }
};

}  // namespace anabranch::cuda::testing
