// SPDX-License-Identifier: Apache-2.0
// Whether the order of a captured graph's nodes is one that their memory allows.
// Ownership: borrows everything.
// Threads:   pure.
// Failure:   kRace names the two nodes.
// Edges:     a graph without edges to lose or to miss is right.
//
// It looks for what relax_order must not do, pair by pair, and shares with it only the bits that
// say which node comes before which and how two places of a unit are compared.
#pragma once

#include <span>

#include "anabranch/status.h"
#include "record/cuda/rewrite/tables.h"
#include "record/cuda/sites/step_graph.h"

namespace anabranch::cuda {

// Whether the edges `made` keep the order that the step's capture gave to every two nodes that need
// one: those that share memory, the host's included, one of the two writing, those of which not all
// is known, both ends of an early edge, and those of one work. Early edges are kept, too. Two nodes
// that the capture left unordered are not asked about: a step's own streams may use parts of a unit
// side by side.
Status check_relaxed(const StepGraph& step, std::span<const EdgeImage> made,
                     std::span<const TableWrite> tables = {});

}  // namespace anabranch::cuda
