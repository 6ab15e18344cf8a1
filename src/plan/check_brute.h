// SPDX-License-Identifier: Apache-2.0
// What the race checker and the memory planner are tested against: every pair of steps of a small
// program, byte by byte. For tests; shares nothing with what it tests.
// Ownership: values; a BruteForce borrows its program.
// Threads:   pure.
// Failure:   programs have at most 64 steps.
// Edges:     a wait for a step that the order names later gives no order.
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "plan/waits_oracle.h"

namespace anabranch::check {

using StepMask = std::uint64_t;

inline StepMask mask_of(StepId step) { return StepMask{1} << index_of(step); }

// By step, all steps that have ended whenever it starts.
inline std::vector<StepMask> find_ended_before(const Program& program,
                                               std::span<const StepId> order,
                                               std::span<const Wait> waits) {
  assert(program.steps().size() <= 64);
  std::vector<StepMask> ended(program.steps().size(), 0);
  std::vector<StepMask> of_stream(program.streams().size(), 0);
  StepMask named = 0;
  for (const StepId step : order) {
    StepMask& stream = of_stream[index_of(program.step(step).stream)];
    StepMask& mask = ended[index_of(step)];
    mask = stream;
    for (const Wait& wait : waits) {
      if (wait.step != step || (named & mask_of(wait.on)) == 0) continue;
      mask |= ended[index_of(wait.on)] | mask_of(wait.on);
    }
    stream |= mask | mask_of(step);
    named |= mask_of(step);
  }
  return ended;
}

class BruteForce {
 public:
  explicit BruteForce(const Program& program)
      : program_(program), needs_(program.steps().size(), 0), uses_(program.buffers().size(), 0) {
    const Relation needs = find_needs(program);
    for (std::uint32_t b = 0; b < needs.size(); ++b) {
      for (std::uint32_t a = 0; a < b; ++a) {
        if (needs[a][b] || keeps_place(a, b)) needs_[b] |= mask_of(StepId{a});
      }
      for (const Access& access : program.steps()[b].accesses) {
        uses_[index_of(access.view.buffer)] |= mask_of(StepId{b});
      }
    }
  }

  bool has_race(const PlanParts& parts) const {
    const std::vector<StepMask> ended = find_ended_before(program_, parts.order, parts.waits);
    for (std::size_t step = 0; step < needs_.size(); ++step) {
      if ((needs_[step] & ~ended[step]) != 0) return true;
    }
    for (std::size_t a = 0; a < uses_.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (!share_bytes(parts.arena, a, b)) continue;
        if (!all_before(ended, a, b) && !all_before(ended, b, a)) return true;
      }
    }
    return false;
  }
  bool share_bytes(const ArenaLayout& arena, std::size_t a, std::size_t b) const {
    if (arena.offsets[a] == kNotInArena || arena.offsets[b] == kNotInArena) return false;
    const std::uint64_t end_a = arena.offsets[a] + program_.buffers()[a].size_bytes;
    const std::uint64_t end_b = arena.offsets[b] + program_.buffers()[b].size_bytes;
    if (arena.offsets[a] == end_a || arena.offsets[b] == end_b) return false;
    return arena.offsets[a] < end_b && arena.offsets[b] < end_a;
  }
  // Every step that uses buffer a has ended before any that uses buffer b.
  bool all_before(const std::vector<StepMask>& ended, std::size_t a, std::size_t b) const {
    for (std::uint32_t step = 0; step < ended.size(); ++step) {
      const bool uses_b = (uses_[b] & mask_of(StepId{step})) != 0;
      if (uses_b && (uses_[a] & ~ended[step]) != 0) return false;
    }
    return true;
  }

 private:
  // The two are of one stream and must not change places: an event or a barrier lies on one.
  bool keeps_place(std::uint32_t a, std::uint32_t b) const {
    const Step& first = program_.steps()[a];
    const Step& second = program_.steps()[b];
    return first.stream == second.stream &&
           (first.kind == StepKind::kWaitEvent || second.kind == StepKind::kRecordEvent ||
            second.kind == StepKind::kSynchronize);
  }

  const Program& program_;
  std::vector<StepMask> needs_;  // by step, those that must have ended
  std::vector<StepMask> uses_;   // by buffer
};

}  // namespace anabranch::check
