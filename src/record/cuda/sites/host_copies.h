// SPDX-License-Identifier: Apache-2.0
// Copies between a unit and the host's memory, which stay the driver's: copy engines do them beside
// kernels. What one touches can be read off it, whether or not it was noted.
// Ownership: values.
// Threads:   find_host_copies() calls the driver for the current context.
// Failure:   a Status of a driver call. Of what is not of this kind nothing more is known.
// Edges:     the host's side is where it was in both captures, or it would be a site or a table; so
//            it belongs to no unit. Boxes of several pieces are left out: the driver sets none.
//            Kernels that are given the same memory of the host are not looked for.
#pragma once

#include <cstdint>
#include <span>

#include "record/cuda/sites/step_graph.h"

namespace anabranch::cuda {

// Sets the facts of such nodes, and what their sites say of their units. `tables` are those that
// find_sites() has found, which are other nodes later.
Status find_host_copies(const Driver& driver, std::span<const std::uint32_t> tables,
                        StepGraph& step);

// Whether two of them have to keep their order for what they do in the host's memory.
inline bool may_clash(const HostBytes& a, const HostBytes& b) {
  return (a.is_written || b.is_written) && a.begin < b.end && b.begin < a.end;
}

}  // namespace anabranch::cuda
