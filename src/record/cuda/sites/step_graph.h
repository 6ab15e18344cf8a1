// SPDX-License-Identifier: Apache-2.0
// A captured step once it is known what moves in it: its graph, what each node does with memory,
// and every place that holds an address of the step's memory. Later stages rewrite it, order it and
// place its units; the image alone is what was captured.
// Ownership: values; handles belong to the captured graph.
// Threads:   values.
// Failure:   none.
// Edges:     a node without a site may have facts, and one of which nothing is known may have
// sites.
#pragma once

#include <cstdint>
#include <vector>

#include "record/cuda/image/graph_image.h"
#include "record/cuda/sites/sites.h"

namespace anabranch::cuda {

// The host's memory that a copy touches, all of it from `begin` to `end`.
struct HostBytes {
  std::uint64_t begin = 0, end = 0;
  bool is_written = false;
  bool empty() const { return begin == end; }
};

// What is known of a node's use of memory.
struct NodeFacts {
  static constexpr std::uint32_t kNoWork = ~0u;
  static constexpr std::uint32_t kInTurn = ~0u - 1;  // all works in turn: their nodes are of one
  // Touches nothing but what its sites name, which say how, and its bytes of the host's memory.
  bool is_known = false;
  std::uint32_t work = kNoWork;  // a noted piece of the step, whose nodes stay in order
  HostBytes host_bytes{};        // of a copy that tells itself: see host_copies.h
};

// Where a node holds an address of a unit: of what an address means once its tenants are told
// apart.
struct Site {
  std::uint32_t node = 0;
  Operand operand = Operand::kParam;
  std::uint32_t offset = 0;
  std::uint32_t unit = 0;   // of NodeAccesses::units
  std::uint64_t shift = 0;  // the site holds the unit's address and this many bytes
  bool writes = true;       // whether the node may write there
  // From there on, between whose bounds lies all that the node touches; 0 where that is not known.
  std::uint64_t bytes = 0;
  bool operator==(const Site&) const = default;
};

// Whether the nodes may touch one byte through these two.
inline bool may_share(const Site& a, const Site& b) {
  if (a.unit != b.unit) return false;
  if (a.bytes == 0 || b.bytes == 0) return true;
  return a.shift < b.shift + b.bytes && b.shift < a.shift + a.bytes;
}

struct StepGraph {
  GraphImage image;
  std::vector<NodeFacts> facts;      // by node
  std::vector<Site> sites;           // sorted by node
  std::vector<ParamWord> numbers{};  // that may change between launches; sorted by node
};

}  // namespace anabranch::cuda
