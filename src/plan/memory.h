// SPDX-License-Identifier: Apache-2.0
// Where each temporary lives: one arena for all streams.
// Ownership: values.
// Threads:   pure.
// Failure:   none; the order must name every step once and no wait may name a later step.
// Edges:     unused temporaries are not in the arena; one without bytes is at offset 0.
//
// A temporary takes bytes of another only if every access of the other happens before every access
// of its own, by stream order and waits. Offsets are multiples of the buffer's alignment: the arena
// itself must be aligned to the largest of them.
#pragma once

#include <span>

#include "anabranch/plan.h"

namespace anabranch {

ArenaLayout plan_memory(const Program& program, std::span<const StepId> order,
                        std::span<const Wait> waits);

}  // namespace anabranch
