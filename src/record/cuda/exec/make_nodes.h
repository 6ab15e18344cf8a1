// SPDX-License-Identifier: Apache-2.0
// Nodes of a clone that are made again: kernels of ours in place of copies and fills, what was in
// child graphs, and what runs side by side, lane by lane. Drivers lay an executable out as its
// nodes were made. A capture makes those of several lanes in turn; on an H200 copies beside kernels
// are then 2 % slower than where one lane was made behind the other, and two to four lanes of small
// kernels that wait for one another 5 to 10 % (docs/measuring.md).
// Ownership: borrows everything; the graph owns its nodes.
// Threads:   calls the driver for the current context.
// Failure:   a Status of a driver call; the graph is then of no use.
// Edges:     of what runs side by side a kernel that the driver does not make again stays as it was
//            captured. So do collectives, whose library may know its launches by more than their
//            nodes, and what is neither a kernel nor a copy with the host's memory. All these come
//            first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "record/cuda/image/graph_image.h"

namespace anabranch::cuda {

// How a node of an executable is made, beside its image.
struct NodeMaking {
  std::uint32_t lane = 0;     // nodes of one lane are made one behind the other
  bool is_host_copy = false;  // a copy with the host's memory: the driver's, and made last
  bool is_in_turn = false;    // of a collective: stays as it was captured
};

// A copy or a fill of the driver's that is made anew, at other memory than its capture's.
bool is_made_elsewhere(const NodeImage& node, const NodeMaking& making);
// The most that one touches in either place.
std::uint64_t extent_of(const NodeImage& node);

class NodeMaker {
 public:
  // `nodes` have handles in this graph, those of opened children in these, and get those of what
  // is made for them; several kernels of ours may stand for one node. `making` is by node. Of the
  // image's edges the graph has those between nodes that stay, but for ours, or with `is_reordered`
  // none.
  NodeMaker(const Driver& driver, CuGraph graph, CuContext context, std::span<NodeImage> nodes,
            std::span<const NodeMaking> making, bool is_reordered);

  // Ours, those of opened children, and where all are reordered the captured kernels, with all
  // attributes that these have.
  Status make_nodes();
  // Copies with the host's memory, one way behind the other. Behind all kernels, the updater's too:
  // with a kernel made after them they are slow again.
  Status make_copies();
  // Gives what was made its edges, and destroys what it was made for.
  Status connect(std::span<const EdgeImage> edges);

 private:
  bool may_be_made_again(std::uint32_t node) const;
  Status make(std::uint32_t node);
  struct Call {
    const char* name;
    CuResult result;
  };
  Call make_kernel(NodeImage& node, CuGraphNode* made);
  Call make_other(const NodeImage& node, CuGraphNode* made);

  const Driver& driver_;
  const CuGraph graph_;
  const CuContext context_;
  const std::span<NodeImage> nodes_;
  const std::span<const NodeMaking> making_;
  const bool is_reordered_;
  std::vector<bool> is_new_;  // by node
  std::vector<CuGraphNode> replaced_;
  LaunchRoom room_;
};

}  // namespace anabranch::cuda
