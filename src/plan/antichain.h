// SPDX-License-Identifier: Apache-2.0
// The most bytes of temporaries any two of which live together: no layout is smaller. It is the
// heaviest antichain of the order "all of A before all of B". By Dilworth's theorem it weighs what
// the lightest cover by chains weighs, which is a maximum flow.
// Ownership: values.
// Threads:   pure.
// Failure:   none.
// Edges:     time and memory grow with the square of the lives: for some hundreds of them.
#pragma once

#include <cstdint>
#include <span>

#include "plan/memory_lives.h"

namespace anabranch::memory {

// Among some lives, given by rising index in Lives::all.
std::uint64_t find_heaviest_antichain(const Lives& lives, std::span<const std::uint32_t> among);

}  // namespace anabranch::memory
