// SPDX-License-Identifier: Apache-2.0
// What each node of a captured graph does with the units it names, as far as notes of the capture
// tell, and which of an address's tenants it means.
// Ownership: values.
// Threads:   pure.
// Failure:   none; what the notes do not tell is taken for the worst.
// Edges:     without notes every node may write what it names, and an address is one unit.
//
// The capture's allocator gives one address to several tensors, one after the other. A node that
// came between two marks means those of them that were there between the two; those that cannot be
// told apart stay one unit, as large as the largest. Scratch memory of noted work is a unit of
// its own each time: what is left in it is never read. What is left over in the parameters of
// independent nodes (CaptureWork) is no site.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "record/cuda/image/capture_marks.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/sites/sites.h"
#include "record/cuda/sites/step_graph.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// A unit here is what lay at an address for some time: a tenant, or several that cannot be told
// apart. Units are numbered in the order of their first allocations.
struct NodeAccesses {
  std::vector<Unit> units;
  std::vector<std::uint32_t> unit_of;  // by allocation
  std::vector<Site> sites;
  // By node. Known are nodes of noted work that touch nothing but what their sites name; their work
  // is named if its nodes stay in order among themselves, kInTurn for all that are in turn.
  std::vector<NodeFacts> facts;
};

// Of `found` those that are sites, each with its unit and whether the node may write there.
// `allocations` and `image` are of the capture that the notes are of, `units` of both; `of_second`
// says which of the two it is there. `notes` may be null.
NodeAccesses find_accesses(std::span<const CaptureAllocation> allocations, const UnitTable& units,
                           bool of_second, const Notes* notes, const GraphImage& image,
                           std::vector<FoundSite> found);

}  // namespace anabranch::cuda
