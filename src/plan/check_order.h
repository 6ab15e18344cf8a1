// SPDX-License-Identifier: Apache-2.0
// What the race checker demands of a plan: pairs of steps, each with the reason why the first must
// have ended before the second starts. Only as many pairs as imply all others.
// Ownership: a Demands borrows program, plan and clocks.
// Threads:   one thread.
// Failure:   none; demands that the plan does not meet are kept as `unmet`.
// Edges:     a step makes no demand of itself.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "anabranch/program.h"
#include "plan/check_clocks.h"
#include "plan/compare_work.h"

namespace anabranch::check {

// buffer == other: conflicting accesses. Different: two tenants of the same arena bytes.
// kNoBuffer: an event or a synchronize asks for it.
struct Demand {
  StepId second{};
  StepId first{};
  BufferId buffer{};
  BufferId other{};
  auto operator<=>(const Demand&) const = default;
};

class Demands {
 public:
  Demands(const Program& asked, const Clocks& times) : program(asked), clocks(times) {}

  // Answers whether the plan meets it.
  bool demand(StepId first, StepId second, BufferId buffer, BufferId other) {
    if (first == second || clocks.before(first, second)) return true;
    unmet.push_back({second, first, buffer, other});
    return false;
  }

  const Program& program;
  const Clocks& clocks;
  std::vector<Demand> unmet;
};

// The accesses of each buffer, in program order.
class AccessesByBuffer {
 public:
  struct Entry {
    StepId step{};
    std::uint32_t access = 0;  // in step.accesses
  };
  explicit AccessesByBuffer(const Program& program);
  std::span<const Entry> of(BufferId buffer) const {
    const std::size_t begin = begin_[index_of(buffer)];
    return {entries_.data() + begin, begin_[index_of(buffer) + 1] - begin};
  }

 private:
  std::vector<std::size_t> begin_;
  std::vector<Entry> entries_;
};

inline bool writes(const Access& access) { return access.mode != AccessMode::kRead; }

// Conflicting accesses, ordered as in program order. Ends early where the work is exhausted.
void demand_access_order(Demands& demands, const AccessesByBuffer& accesses, CompareWork& work);
// Temporaries that share bytes of the arena: all accesses of one before all of the next.
void demand_arena_order(Demands& demands, const AccessesByBuffer& accesses,
                        const ArenaLayout& arena);
// What the user's events and synchronize steps ask for.
void demand_sync_order(Demands& demands);

}  // namespace anabranch::check
