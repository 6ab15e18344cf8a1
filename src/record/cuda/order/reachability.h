// SPDX-License-Identifier: Apache-2.0
// Reachability in a graph: which nodes have ended when another begins, and the fewest edges that
// say so.
// Ownership: values.
// Threads:   pure.
// Failure:   none.
// Edges:     takes a bit for each pair of nodes: 32 MiB for 16,384.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "record/cuda/image/graph_image.h"

namespace anabranch::cuda {

// For each node the set of those that have ended when it begins, which come before it: all from
// which a path leads to it whose first edge is not early.
class Reachability {
 public:
  explicit Reachability(std::size_t nodes) : words_((nodes + 63) / 64), bits_(nodes * words_) {}

  bool contains(std::uint32_t node, std::uint32_t other) const {
    return row(node)[other / 64] >> (other % 64) & 1;
  }
  // What comes before its first node comes before its second, and so does its first, unless it is
  // early.
  void add(const EdgeImage& edge) {
    const std::uint64_t* const from = bits_.data() + edge.from * words_;
    std::uint64_t* const to = bits_.data() + edge.to * words_;
    for (std::size_t i = 0; i < words_; ++i) to[i] |= from[i];
    if (!is_early(edge)) to[edge.from / 64] |= std::uint64_t{1} << (edge.from % 64);
  }
  // A bit for each node that comes before this one, the lowest first.
  std::span<const std::uint64_t> row(std::uint32_t node) const {
    return {bits_.data() + node * words_, words_};
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

// A graph that is made node by node, without edges that others imply. An early edge is more than
// an order, since its second node may wait: it stays where its first may still run.
class ReducedEdges {
 public:
  explicit ReducedEdges(std::size_t nodes) : before_(nodes) {}

  // All edges that lead to one node, in any order, more than once too. Nodes come in their order.
  void add(std::vector<EdgeImage>& to_node) {
    std::sort(to_node.begin(), to_node.end(), [](const EdgeImage& a, const EdgeImage& b) {
      return std::pair(b.from, is_early(a)) < std::pair(a.from, is_early(b));
    });
    // From the latest on: one from a node that comes before one of those says nothing new.
    const std::size_t first = edges_.size();
    for (const EdgeImage& edge : to_node) {
      if (before_.contains(edge.to, edge.from)) continue;
      before_.add(edge);
      edges_.push_back(edge);
    }
    std::reverse(edges_.begin() + static_cast<std::ptrdiff_t>(first), edges_.end());
  }

  const Reachability& before() const { return before_; }
  std::span<const EdgeImage> edges() const { return edges_; }  // sorted by `to`, then by `from`
  std::vector<EdgeImage> take_edges() { return std::move(edges_); }

 private:
  Reachability before_;
  std::vector<EdgeImage> edges_;
};

}  // namespace anabranch::cuda
