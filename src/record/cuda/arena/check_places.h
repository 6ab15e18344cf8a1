// SPDX-License-Identifier: Apache-2.0
// Whether units that share bytes where launches put them are over before one another.
// Ownership: borrows everything.
// Threads:   pure.
// Failure:   kRace names two nodes that nothing orders, and the bytes that they share; kPlanInvalid
//            a unit whose place is none.
// Edges:     units without bytes share nothing.
//
// It looks at what launches will write into nodes, behind all planning: each site once as it names
// a unit and once as it names a source. Of what planned the places it shares nothing but
// `table_reach`, which says what a table is read by. It has no chains and no waits, only the edges.
//
// A unit is over at a node if every node that uses it has ended when that one begins. An early edge
// (is_early) does not say so of the node it comes from, neither there nor behind the node to which
// it leads.
//
// Time is the number of edges times that of nodes / 64, where sharing asks for all nodes; memory is
// linear but for what is asked: pairs of nodes of units that follow one another in some byte.
#pragma once

#include <span>

#include "anabranch/status.h"
#include "record/cuda/arena/plan_arena.h"
#include "record/cuda/arena/sources.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/rewrite/tables.h"
#include "record/cuda/sites/step_graph.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// What is to be launched. Sites stand in the same order in both.
struct PlacedStep {
  std::span<const Site> by_unit;
  std::span<const PlacedSite> by_source;
  std::span<const Unit> units;
  std::span<const UnitKind> kinds;    // by unit
  std::span<const CudaSlot> slots;    // the first sources
  std::span<const SourceRule> rules;  // by source
};

// Given units lie at the beginning of their slots. Besides them a slot may hold temporaries if its
// unit is fresh and they are over before each node that uses it.
Status check_places(const GraphImage& image, const PlacedStep& placed,
                    std::span<const TableWrite> tables = {});

}  // namespace anabranch::cuda
