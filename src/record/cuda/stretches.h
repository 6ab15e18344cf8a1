// SPDX-License-Identifier: Apache-2.0
// Stretches: nodes of a step that follow one another, recorded as graphs of their own. A launch
// queues them in turn, and what its caller lets go of between two of them is free for the next.
// Ownership: a stretch borrows the captured graph as its step does.
// Threads:   pure.
// Failure:   none.
// Edges:     a step with tables of addresses or numbers that are followed is found to be one
//            stretch. Copies with the host's memory run ahead within theirs.
//
// Nodes stand in captured order, and every edge leads forward. So stretches that are launched in
// turn on one stream keep every edge between two of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "record/cuda/discover.h"

namespace anabranch::cuda {

// Each costs a launch some microseconds of the CPU, and lets no kernel run beside one of another.
inline constexpr std::uint32_t kMostStretches = 8;

// What a launch in stretches may take beyond what the same nodes take one by one: this share of all
// that they name, and this much in any case.
inline constexpr std::uint64_t kStretchShare = 64;
inline constexpr std::uint64_t kStretchBytes = std::uint64_t{4} << 20;

// Where each stretch ends: the fewest with which a launch takes about what the nodes take one by
// one. Where that are more than kMostStretches, it takes about as little as with so many. `let_go`
// are the given allocations that a launch's caller lets go of once no later node needs them; fresh
// memory is allocated for the stretch that names it first. A step without nodes has no stretch.
std::vector<std::uint32_t> find_stretches(const Discovery& whole,
                                          std::span<const std::uint32_t> let_go);

// The nodes from `begin` to `end`. The first stretch has all words that are unsure. Temporaries
// that other nodes name, too, are memory that the caller gives: fresh in the first stretch that
// names them.
Discovery take_stretch(const Discovery& whole, std::uint32_t begin, std::uint32_t end);

}  // namespace anabranch::cuda
