// SPDX-License-Identifier: Apache-2.0
// Where each temporary lives: one arena for all streams, and bytes that others lend.
// Ownership: values.
// Threads:   pure.
// Failure:   none; the order must name every step once and no wait may name a later step.
// Edges:     unused temporaries are not in the arena; one without bytes is at offset 0.
//
// A temporary takes bytes of another only if every access of the other happens before every access
// of its own, by stream order and waits. Offsets are multiples of the buffer's alignment: the arena
// itself must be aligned to the largest of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/plan.h"

namespace anabranch {

ArenaLayout plan_memory(const Program& program, std::span<const StepId> order,
                        std::span<const Wait> waits);

// A temporary that lies `offset` bytes into a buffer of the caller, and is over before the lender's
// first access.
struct Loan {
  BufferId temporary{};
  BufferId lender{};
  std::uint64_t offset = 0;
  bool operator==(const Loan&) const = default;
};

struct MemoryPlan {
  ArenaLayout arena;        // of the temporaries that lie nowhere else; its bounds are of these
  std::vector<Loan> loans;  // by number of the temporary
};

// `lenders` are no temporaries, and nothing stands in them before their first access. The arena is
// never larger than without them.
MemoryPlan plan_memory(const Program& program, std::span<const StepId> order,
                       std::span<const Wait> waits, std::span<const BufferId> lenders);

}  // namespace anabranch
