// SPDX-License-Identifier: Apache-2.0
// What the executables of a recording are made from: the captured graph as it is to run, and every
// place in it that holds an address of a launch.
// Ownership: values; handles belong to the captured graph, copy_room to the maker of executables.
// Threads:   immutable once the first executable is made.
// Failure:   none.
// Edges:     a step without slots and temporaries has no sources, and no sites.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda/driver.h"
#include "record/cuda/arena/placement.h"
#include "record/cuda/arena/sources.h"
#include "record/cuda/exec/make_nodes.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/order/relax_order.h"
#include "record/cuda/sites/step_graph.h"

namespace anabranch::cuda {

// A launch gives one address a source: the slots, and after them the parts of the arena.
struct Repointing {
  GraphImage image;                       // with the edges of the order in which launches run
  std::vector<NodeMaking> making;         // by node
  bool is_reordered = false;              // the image has other edges than the capture
  bool is_stretch = false;                // the capture has other nodes, which go
  std::vector<PlacedSite> sites;          // sorted by node
  std::vector<std::uint32_t> first_site;  // by node, one more than there are
  std::vector<std::uint32_t> nodes;       // that name a source, source by source
  std::vector<std::uint32_t> first_node;  // by source, one more than there are
  std::size_t source_count() const { return first_node.size() - 1; }
  std::uint32_t most_fields = 0;          // of any kernel
  std::vector<std::uint32_t> with_bytes;  // sources that have any
  CuContext context = nullptr;
  bool mapped_memory = false;  // see CudaRecordOptions
  // Memory of the kind that launches give, as large as any of them touches, for the copies and
  // fills of the driver's that are made anew: each keeps the kind of memory that it was
  // instantiated with, captures may have another kind than launches, and theirs may be gone.
  CuDevicePtr copy_room = 0;
};

// Of a step in this order, whose image it becomes, and with this placement. The context, the kind
// of memory and the room for copies are left to the caller.
Repointing make_repointing(GraphImage ordered, std::span<const NodeFacts> facts,
                           const RelaxedOrder& order, const Placement& placement);

}  // namespace anabranch::cuda
