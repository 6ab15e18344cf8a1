// SPDX-License-Identifier: Apache-2.0
// Where the units of a captured step lie in each launch: in slots, in parts of the arena, or lent
// bytes of a slot.
// Ownership: values.
// Threads:   pure.
// Failure:   that of plan_arena().
// Edges:     given memory that no node names is no slot; a step without temporaries has no arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "anabranch/status.h"
#include "record/cuda/arena/plan_arena.h"
#include "record/cuda/arena/sources.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/rewrite/tables.h"
#include "record/cuda/sites/node_accesses.h"
#include "record/cuda/sites/step_graph.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// By unit, from those of the allocations. Given memory stays given where others that the capture's
// allocator put there cannot be told from it, and fresh where none of these was there before the
// launch. What a launch may put anywhere lends nothing: temporaries need their alignment.
std::vector<UnitKind> kinds_of_units(const NodeAccesses& accesses, std::span<const UnitKind> kinds);

// Of the units that are no temporaries those that `sites` name. `unit_of`: by allocation.
std::vector<CudaSlot> find_slots(std::span<const Unit> units,
                                 std::span<const std::uint32_t> unit_of,
                                 std::span<const UnitKind> of_units, std::span<const Site> sites);

// What memory is that each launch allocates: kFresh, or kGiven where its slot asks for too little
// alignment to lend anything.
UnitKind kind_of_allocated(const Unit& unit);

struct Placement {
  std::vector<CudaSlot> slots;            // those that lend have room for what lies in them
  ArenaLayout arena;                      // as it was planned, before it was cut
  std::vector<SourceRule> rules;          // by source
  std::vector<std::uint32_t> with_bytes;  // sources that have any
  std::vector<PlacedSite> sites;          // in the order of the step's; sorted by node
};

// `image` has the edges of the order in which launches run. Each part of the arena spans so many
// bytes at least, see arena_parts.h.
Result<Placement> place_units(const GraphImage& image, std::span<const Site> sites,
                              std::span<const Unit> units, std::span<const UnitKind> kinds,
                              std::span<const CudaSlot> slots, std::span<const TableWrite> tables,
                              std::uint64_t least_part_bytes);

// Adds sources for numbers, one for all words that were the same in both captures that tell them,
// and their sites. Answers them in the order of their sources.
std::vector<CudaNumber> place_numbers(std::span<const ParamWord> words, Placement& placement);

}  // namespace anabranch::cuda
