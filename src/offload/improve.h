// SPDX-License-Identifier: Apache-2.0
// Better choices near given ones.
// Ownership: values.
// Threads:   pure.
// Failure:   none; the choices must meet the limit.
// Edges:     what must be something stays that.
//
// Where all single changes and all pairs of them are few they are tried, until none is better.
// Otherwise as many as a budget of work allows are drawn, by a generator of fixed seed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "anabranch/experimental/offload.h"

namespace anabranch::offload {

// What is lowest: time, then bytes on the link.
using Score = std::pair<std::uint64_t, std::uint64_t>;

Score score_choices(const Problem& problem, std::uint64_t limit_bytes,
                    const std::vector<Choice>& choices);

void improve_choices(const Problem& problem, std::uint64_t limit_bytes,
                     std::vector<Choice>& choices);

}  // namespace anabranch::offload
