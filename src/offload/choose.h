// SPDX-License-Identifier: Apache-2.0
// Which tensors stay, are computed again or are offloaded, so that a limit of memory can be met.
// Ownership: values.
// Threads:   pure.
// Failure:   cover_limit answers false where its greedy choice cannot meet the limit.
// Edges:     what must be something, by a user's wish, is that.
//
// Sources: Peng and others, Capuchin (ASPLOS 2020), for what ranks tensors; see README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "anabranch/experimental/offload.h"

namespace anabranch::offload {

// What users wish; all other tensors stay.
std::vector<Choice> wished_choices(const Problem& problem);

// Choices whose floor (lives.h) is within the limit. From all that stays on, what costs least time
// for its bytes over the steps above the limit is given up first. So long as copies take no more
// than `hidden_ns` they cost next to nothing, later ones all of their time. Then those stay after
// all without which the limit holds.
bool cover_limit(const Problem& problem, std::uint64_t limit_bytes, double hidden_ns,
                 std::vector<Choice>& choices);

// The choices with the least peak that a greedy way finds: at the first step with the highest
// peak the largest tensor is given up, again and again until no tensor lowers the peak.
std::vector<Choice> choose_least(const Problem& problem);

// From the least choices on, as many as the limit allows are computed again and not copied.
void relax_least(const Problem& problem, std::uint64_t limit_bytes, std::vector<Choice>& choices);

// The floor's peak.
std::uint64_t least_peak(const Problem& problem, const std::vector<Choice>& choices);

}  // namespace anabranch::offload
