// SPDX-License-Identifier: Apache-2.0
// When copies run, under given choices and a limit of memory.
// Ownership: values.
// Threads:   pure.
// Failure:   none; `limit_bytes` must not lie below the floor of the choices (lives.h).
// Edges:     without offloaded tensors there is nothing to time.
//
// Out: in the order in which tensors are made, each as soon as it is. A step waits for copies out
// only if it, or a copy in that is due, has no room otherwise: a copy that is slower than predicted
// then delays nobody who does not need its memory.
// In: in the order of first use, each begun so that it ends in time if all before it do: the latest
// beginnings, found from the last use backward, as a forward pass over the steps has room for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/experimental/offload.h"

namespace anabranch::offload {

std::vector<Decision> schedule_copies(const Problem& problem, std::span<const Choice> choices,
                                      std::uint64_t limit_bytes);

}  // namespace anabranch::offload
