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
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// By the numbers that sites have afterwards, in the order of their first allocations.
struct Tenants {
  std::vector<Unit> units;
  std::vector<std::uint32_t> tenant_of;  // by allocation
  // By node: whether it is of noted work, and touches nothing but what its sites name.
  std::vector<bool> is_known;
  // By node: that work, if its nodes stay in order among themselves, kInTurn for all that are in
  // turn; else NodeImage::kNoWork.
  std::vector<std::uint32_t> work_of;
};

// Sets `writes` and `unit` of sites, drops those that are none, and answers the units that they are
// of now. `allocations` and `image` are of the capture that the notes are of, `units` of both;
// `of_second` says which of the two it is there. `notes` may be null.
Tenants find_accesses(std::span<const CaptureAllocation> allocations, const UnitTable& units,
                      bool of_second, const Notes* notes, const GraphImage& image,
                      std::vector<Site>& sites);

}  // namespace anabranch::cuda
