// SPDX-License-Identifier: Apache-2.0
// Lower bounds of an arena that cost little.
// Ownership: values.
// Threads:   pure.
// Failure:   none; a bound may be below the truth, never above.
// Edges:     without lives the bound is 0.
#pragma once

#include <cstdint>

#include "plan/memory_lives.h"

namespace anabranch::memory {

// Most bytes live at one position of the order.
std::uint64_t find_peak_in_order(const Lives& lives);

// Most bytes of lives any two of which conflict, as far as it is found in the few regions where
// the most bytes conflict with one life. Exact for small programs.
std::uint64_t find_peak_across_streams(const Lives& lives, const Conflicts& conflicts);

}  // namespace anabranch::memory
