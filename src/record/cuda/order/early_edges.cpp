// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/early_edges.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace anabranch::cuda {
namespace {

using Ahead = std::vector<std::vector<std::uint32_t>>;  // by node, the other ends of early edges

Ahead find_ahead(const GraphImage& image) {
  Ahead ahead(image.nodes.size());
  for (const EdgeImage& edge : image.edges) {
    if (is_early(edge)) ahead[edge.to].push_back(edge.from);
  }
  return ahead;
}

// All nodes that may still run when this one has ended.
std::set<std::uint32_t> find_overtaken(const Ahead& ahead, std::uint32_t node) {
  std::set<std::uint32_t> overtaken;
  std::vector<std::uint32_t> open{node};
  while (!open.empty()) {
    const std::uint32_t next = open.back();
    open.pop_back();
    for (const std::uint32_t other : ahead[next]) {
      if (overtaken.insert(other).second) open.push_back(other);
    }
  }
  return overtaken;
}

}  // namespace

void close_early_edges(GraphImage& image) {
  if (std::ranges::none_of(image.edges, is_early)) return;
  const Ahead ahead = find_ahead(image);
  std::vector<EdgeImage> all;
  for (auto edge = image.edges.begin(); edge != image.edges.end();) {
    const std::uint32_t node = edge->to;
    std::set<std::uint32_t> known, missing;
    for (; edge != image.edges.end() && edge->to == node; ++edge) {
      all.push_back(*edge);
      known.insert(edge->from);
      if (!is_early(*edge)) missing.merge(find_overtaken(ahead, edge->from));
    }
    for (const std::uint32_t from : missing) {
      if (!known.contains(from)) all.push_back({from, node, {}, true});
    }
  }
  std::ranges::sort(all, {}, [](const EdgeImage& edge) { return std::pair(edge.to, edge.from); });
  image.edges = std::move(all);
}

}  // namespace anabranch::cuda
