// SPDX-License-Identifier: Apache-2.0
#include "plan/memory.h"

#include <algorithm>
#include <utility>

#include "plan/check_clocks.h"
#include "plan/memory_bound.h"
#include "plan/memory_lives.h"
#include "plan/memory_loans.h"
#include "plan/memory_place.h"

namespace anabranch {
namespace {

using memory::Layout;
using memory::Lives;

// What planning may look at, so that its time stays in proportion to the program's length.
constexpr std::size_t kLeastPairs = 1'000'000;
constexpr std::size_t kPairsPerLife = 200;
constexpr std::size_t kLeastNeighbours = 50'000;
constexpr std::size_t kNeighboursPerLife = 50;
constexpr std::size_t kLeastBorrowers = 10'000'000;
constexpr std::size_t kBorrowersPerLife = 1000;

void keep_smaller(Layout& best, Layout other) {
  if (other.size_bytes < best.size_bytes) best = std::move(other);
}

struct Placed {
  Layout layout;
  std::uint64_t lower_bound_bytes = 0;
  std::uint64_t naive_bytes = 0;
};

Placed place(const Lives& lives) {
  Placed placed{memory::place_apart(lives), memory::find_peak_in_order(lives), 0};
  placed.naive_bytes = placed.layout.size_bytes;
  const std::size_t pairs = kLeastPairs + kPairsPerLife * lives.all.size();
  const auto conflicts = find_conflicts(lives, pairs);
  if (!conflicts) {
    keep_smaller(placed.layout, memory::place_in_order(lives, pairs));
    return placed;
  }
  std::uint64_t& bound = placed.lower_bound_bytes;
  bound = std::max(bound, memory::find_peak_across_streams(lives, *conflicts));
  const std::size_t budget = kLeastNeighbours + kNeighboursPerLife * lives.all.size();
  keep_smaller(placed.layout, memory::place_by_size(lives, *conflicts, bound, budget));
  return placed;
}

// By buffer; those without a life are not there, but where they are used and have no bytes.
ArenaLayout make_arena(const Program& program, const Lives& lives, Placed placed) {
  ArenaLayout arena;
  arena.offsets.assign(program.buffers().size(), kNotInArena);
  arena.size_bytes = placed.layout.size_bytes;
  arena.lower_bound_bytes = placed.lower_bound_bytes;
  arena.naive_bytes = placed.naive_bytes;
  for (const Step& step : program.steps()) {
    for (const Access& access : step.accesses) {
      const Buffer& buffer = program.buffer(access.view.buffer);
      const bool here = buffer.role == Role::kTemporary && buffer.size_bytes == 0;
      if (here) arena.offsets[index_of(access.view.buffer)] = 0;
    }
  }
  for (std::size_t i = 0; i < lives.all.size(); ++i) {
    arena.offsets[index_of(lives.all[i].buffer)] = placed.layout.offsets[i];
  }
  return arena;
}

std::vector<BufferId> without_borrowers(const Program& program, const Lives& lives,
                                        std::span<const Loan> loans) {
  std::vector<bool> borrows(program.buffers().size());
  for (const Loan& loan : loans) borrows[index_of(loan.temporary)] = true;
  std::vector<BufferId> rest;
  for (const memory::Life& life : lives.all) {
    if (!borrows[index_of(life.buffer)]) rest.push_back(life.buffer);
  }
  return rest;
}

// Where all temporaries had a place, those of the rest alone.
Layout keep_rest(const Lives& all, const Layout& layout, const Lives& rest) {
  Layout kept;
  for (std::size_t i = 0; i < all.all.size() && kept.offsets.size() < rest.all.size(); ++i) {
    const memory::Life& life = rest.all[kept.offsets.size()];
    if (all.all[i].buffer != life.buffer) continue;  // both are in one order
    kept.offsets.push_back(layout.offsets[i]);
    kept.size_bytes = std::max(kept.size_bytes, layout.offsets[i] + life.size_bytes);
  }
  return kept;
}

}  // namespace

ArenaLayout plan_memory(const Program& program, std::span<const StepId> order,
                        std::span<const Wait> waits) {
  const check::Clocks clocks(program, order, waits);
  const Lives lives(program, order, clocks);
  return make_arena(program, lives, place(lives));
}

MemoryPlan plan_memory(const Program& program, std::span<const StepId> order,
                       std::span<const Wait> waits, std::span<const BufferId> lenders) {
  const check::Clocks clocks(program, order, waits);
  const Lives all(program, order, clocks);
  MemoryPlan plan;
  const std::size_t budget = kLeastBorrowers + kBorrowersPerLife * all.all.size();
  plan.loans = memory::find_loans(all, Lives(program, order, clocks, lenders), budget);
  const Lives rest(program, order, clocks, without_borrowers(program, all, plan.loans));
  Placed placed = place(rest);
  // Fewer are not always packed better; no packing of all is below their peak.
  if (!plan.loans.empty() && placed.layout.size_bytes > memory::find_peak_in_order(all)) {
    keep_smaller(placed.layout, keep_rest(all, place(all).layout, rest));
  }
  plan.arena = make_arena(program, rest, std::move(placed));
  return plan;
}

}  // namespace anabranch
