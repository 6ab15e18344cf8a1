// SPDX-License-Identifier: Apache-2.0
// Correct plans with one thing broken, and whether the race checker notices. For tests.
// Ownership: values.
// Threads:   pure.
// Failure:   counted in the tally; a program the planner refuses counts as a false alarm.
// Edges:     a mutant that is still correct must be accepted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "anabranch/plan.h"
#include "plan/check_brute.h"
#include "plan/memory.h"
#include "plan/order.h"
#include "plan/random_program.h"
#include "plan/waits.h"

namespace anabranch::check {

struct Tally {
  std::uint64_t mutants = 0;
  std::uint64_t racy = 0;          // as brute force sees it
  std::uint64_t missed = 0;        // racy, and not reported
  std::uint64_t false_alarms = 0;  // reported, and not racy

  void add(bool is_racy, bool is_reported) {
    ++mutants;
    racy += is_racy ? 1 : 0;
    missed += is_racy && !is_reported ? 1 : 0;
    false_alarms += is_reported && !is_racy ? 1 : 0;
  }
};

struct Tallies {
  std::uint64_t programs = 0;
  Tally complete;          // nothing broken
  Tally dropped_waits;     // each wait left out
  Tally redirected_waits;  // each wait for an earlier step of the same stream
  Tally swapped_steps;     // neighbours of a stream, in the order
  Tally moved_buffers;     // each temporary at the place of another
  Tally shrunk_accesses;   // planned as if an access had half its bytes
};

inline PlanParts make_parts(const Program& program) {
  PlanParts parts;
  parts.order = make_order(program);
  parts.waits = *derive_waits(program, parts.order);
  parts.arena = plan_memory(program, parts.order, parts.waits);
  return parts;
}

class Mutants {
 public:
  Mutants(const Program& program, Tallies& tallies)
      : program_(program), brute_(program), parts_(make_parts(program)), tallies_(tallies) {}

  void run() {
    ++tallies_.programs;
    try_plan(tallies_.complete, parts_);
    drop_waits();
    redirect_waits();
    swap_steps();
    move_buffers();
    shrink_accesses();
  }

 private:
  void try_plan(Tally& tally, const PlanParts& parts) {
    tally.add(brute_.has_race(parts), !find_races(program_, parts, 1)->empty());
  }

  void drop_waits() {
    for (std::size_t i = 0; i < parts_.waits.size(); ++i) {
      PlanParts parts = parts_;
      parts.waits.erase(parts.waits.begin() + static_cast<std::ptrdiff_t>(i));
      try_plan(tallies_.dropped_waits, parts);
    }
  }

  void redirect_waits() {
    for (std::size_t i = 0; i < parts_.waits.size(); ++i) {
      const StepId on = parts_.waits[i].on;
      for (const StepId step : parts_.order) {
        if (step == on) break;
        if (program_.step(step).stream != program_.step(on).stream) continue;
        PlanParts parts = parts_;
        parts.waits[i].on = step;
        try_plan(tallies_.redirected_waits, parts);
      }
    }
  }

  void swap_steps() {
    for (std::size_t i = 0; i < parts_.order.size(); ++i) {
      for (std::size_t k = i + 1; k < parts_.order.size(); ++k) {
        const StepId first = parts_.order[i];
        if (program_.step(first).stream != program_.step(parts_.order[k]).stream) continue;
        PlanParts parts = parts_;
        std::swap(parts.order[i], parts.order[k]);
        try_plan(tallies_.swapped_steps, parts);
        break;
      }
    }
  }

  void move_buffers() {
    const std::vector<std::uint64_t>& offsets = parts_.arena.offsets;
    for (std::size_t a = 0; a < offsets.size(); ++a) {
      for (std::size_t b = 0; b < offsets.size(); ++b) {
        if (a == b || offsets[a] == kNotInArena || offsets[b] == kNotInArena) continue;
        if ((a + b) % 4 != 0) continue;  // a quarter of the pairs is enough
        PlanParts parts = parts_;
        parts.arena.offsets[a] = offsets[b];
        try_plan(tallies_.moved_buffers, parts);
      }
    }
  }

  void shrink_accesses() {
    for (std::uint32_t step = 0; step < program_.steps().size(); ++step) {
      if (program_.steps()[step].kind != StepKind::kCompute) continue;
      for (std::size_t i = step % 2; i < program_.steps()[step].accesses.size(); i += 2) {
        const Result<Program> shrunk = shrink(StepId{step}, i);
        if (shrunk) try_plan(tallies_.shrunk_accesses, make_parts(*shrunk));
      }
    }
  }

  Result<Program> shrink(StepId shrunk, std::size_t access) const {
    ProgramBuilder builder;
    for (std::size_t i = 1; i < program_.streams().size(); ++i) {
      builder.add_stream(program_.streams()[i], program_.origins()[i], program_.priorities()[i]);
    }
    for (const std::string& event : program_.events()) builder.add_event(event);
    for (const Buffer& buffer : program_.buffers()) builder.add_buffer(buffer);
    for (std::uint32_t i = 0; i < program_.steps().size(); ++i) {
      Step step = program_.steps()[i];
      if (StepId{i} == shrunk) halve(step.accesses[access].view);
      builder.add_step(std::move(step));
    }
    return builder.build();
  }
  static void halve(View& view) {
    if (view.dims.empty()) {
      view.item_bytes /= 2;
    } else {
      view.dims.front().size -= view.dims.front().size / 2;
    }
  }

  const Program& program_;
  BruteForce brute_;
  PlanParts parts_;
  Tallies& tallies_;
};

// Small programs of all kinds: one to five streams, with and without the user's own syncs.
inline Program random_small_program(std::uint64_t seed) {
  RandomProgramOptions options;
  options.steps = 8 + static_cast<std::uint32_t>(seed % 33);
  options.streams = 1 + static_cast<std::uint32_t>(seed % 5);
  options.syncs = seed % 3 == 0 ? 20 : 0;
  options.travels = 40;
  options.switches = 50;
  options.in_place = 30;
  options.views = 40;
  options.max_bytes = 512;
  return random_program(seed, options);
}

inline Tallies run_mutants(std::uint64_t first_seed, std::uint64_t count) {
  Tallies tallies;
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    const Program program = random_small_program(seed);
    Mutants(program, tallies).run();
  }
  return tallies;
}

inline std::ostream& operator<<(std::ostream& out, const Tallies& tallies) {
  const std::pair<const char*, const Tally*> lines[] = {
      {"complete plans", &tallies.complete},
      {"dropped waits", &tallies.dropped_waits},
      {"redirected waits", &tallies.redirected_waits},
      {"swapped steps", &tallies.swapped_steps},
      {"moved buffers", &tallies.moved_buffers},
      {"shrunk accesses", &tallies.shrunk_accesses}};
  out << tallies.programs << " programs\n";
  for (const auto& [name, tally] : lines) {
    out << name << ": " << tally->mutants << ", racy " << tally->racy << ", missed "
        << tally->missed << ", false alarms " << tally->false_alarms << "\n";
  }
  return out;
}

}  // namespace anabranch::check
