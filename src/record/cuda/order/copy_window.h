// SPDX-License-Identifier: Apache-2.0
// The window of prefetched copies: how far copies to the device run ahead of the nodes that read
// what they bring. Unbound, all weights that a step streams from the host's memory would come at
// once, each to a place of its own.
// Ownership: values.
// Threads:   pure.
// Failure:   none.
// Edges:     it is an order that the capture had, and of that what keeps memory small. What the
//            captured order itself has there at once, such as a weight that the backward reads once
//            more, is beside the bound.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "record/cuda/sites/step_graph.h"

namespace anabranch::cuda {

// So many times the largest copy there may always be there, however small the bound: one that is
// read, one that comes, and what is small between the two.
inline constexpr std::uint64_t kLeastCopiesInWindow = 3;

// Pairs, sorted by `to`, of a node and a copy to the device that was captured later. A copy that
// has to wait does so until half of the bytes are free, so that few have to: to wait for a kernel
// costs a copy some microseconds. Where each copy comes behind its nodes, what it brings, and
// others before it of which the last reader was captured before it and may not have ended yet,
// takes no more than `ahead_bytes`, or kLeastCopiesInWindow times the largest of these copies.
// Copies to what no node reads count for nothing. Sites name units lower than `units`.
std::vector<EdgeImage> find_window_edges(const StepGraph& step, std::size_t units,
                                         std::uint64_t ahead_bytes);

}  // namespace anabranch::cuda
