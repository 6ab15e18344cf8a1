// SPDX-License-Identifier: Apache-2.0
// A captured graph as a program and a plan: what its units are used by, and where they may lie.
// Ownership: values.
// Threads:   pure.
// Failure:   kLimitExceeded where the graph is wider than a program may have streams.
// Edges:     a unit that no node names is not in the arena, and lends nothing.
//
// Every node is a step, every unit a buffer, and a node that names a unit may write all of it. The
// graph's edges give the order, its early ones closed (early_edges.h): chains of nodes become
// streams, edges between chains waits. So the planner's arena and its checker serve captured graphs
// as they serve programs.
//
// A node that names memory into which a table was written names what the table names as well, from
// the table's node on until one behind it writes the same words.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "anabranch/status.h"
#include "plan/memory.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/rewrite/tables.h"
#include "record/cuda/sites/step_graph.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

enum class UnitKind : std::uint8_t {
  kGiven,      // memory of the caller: inputs, results, parameters; a slot of its own
  kTemporary,  // allocated in the capture and dead at its end; lies in the arena, or where lent
  kFresh,      // given, and nothing stands in it before a node names it: till then it lends
};

// What temporaries may have of a fresh unit: where it is large, a 64th more than itself, which a
// launch then gives with it. The product of a matrix that was padded is a little larger than the
// result that is cut out of it.
std::uint64_t bytes_to_lend(const Unit& unit);

struct ArenaPlan {
  Program program;  // steps are nodes and buffers are units, by number
  PlanParts parts;
  std::vector<Loan> loans;  // of temporaries that are not in the arena; lenders are fresh
};

// Fresh units must lie at multiples of kUnitAlignment in each launch.
Result<ArenaPlan> plan_arena(const GraphImage& image, std::span<const Site> sites,
                             std::span<const Unit> units, std::span<const UnitKind> kinds,
                             std::span<const TableWrite> tables = {});

}  // namespace anabranch::cuda
