// SPDX-License-Identifier: Apache-2.0
// What the deriver of waits is tested against: every byte and every pair of steps, one by one.
// Shares nothing with it; only for programs of some dozen steps over buffers of some hundred bytes.
#pragma once

#include <span>
#include <vector>

#include "anabranch/plan.h"

namespace anabranch {

// By byte of the buffer, whether the view has it.
std::vector<bool> bytes_of(const View& view, std::uint64_t size_bytes);

// A relation of steps: related[a][b], a comes before b.
using Relation = std::vector<std::vector<bool>>;

// Conflicts and syncs alone; steps of one stream are related only by these.
Relation find_needs(const Program& program);
// The order of each stream, as `order` has it.
Relation find_stream_order(const Program& program, std::span<const StepId> order);
Relation relation_of(const Program& program, std::span<const Wait> waits);

Relation join(const Relation& a, const Relation& b);
Relation closure_of(Relation relation);

// The pairs of steps of different streams that nothing between them implies, sorted as a plan's
// waits are. `closure` is transitive.
std::vector<Wait> reduction_of(const Program& program, std::span<const StepId> order,
                               const Relation& closure);

}  // namespace anabranch
