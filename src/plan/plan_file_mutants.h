// SPDX-License-Identifier: Apache-2.0
// Plan files with something broken under a right checksum, and a judge of what the reader takes.
// For tests. The judge shares no code with reader, builder and checker: it goes through every byte
// and every pair of steps, and knows events and synchronizes.
// Ownership: values.
// Threads:   pure: the same seeds give the same mutants on every machine.
// Failure:   counted in the tally, with the first that was wrong.
// Edges:     plans that are too large to be judged byte by byte are counted as such.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "plan/check_brute.h"
#include "plan/plan_file.h"
#include "plan/random_program.h"

namespace anabranch {

// Whether a plan keeps what SECURITY.md promises of one that was read.
class PlanJudge {
 public:
  PlanJudge(const Program& program, const PlanParts& parts) : program_(program), parts_(parts) {}

  // Small enough to be looked at byte by byte.
  bool can_judge() const {
    const auto& buffers = program_.buffers();
    return program_.steps().size() <= 64 &&
           std::all_of(buffers.begin(), buffers.end(),
                       [](const Buffer& buffer) { return buffer.size_bytes <= kMostBytes; }) &&
           all_views([](const View& view) { return count_items(view) <= kMostBytes; });
  }
  // Empty: nothing.
  std::string find_fault() const {
    if (!all_views([&](const View& view) { return is_inside(view); })) return "a view leaves";
    if (!is_order_complete()) return "the order is not complete";
    if (!is_arena_kept()) return "a temporary leaves the arena";
    return check::BruteForce(program_).has_race(parts_) ? "a race" : "";
  }

 private:
  static constexpr std::uint64_t kMostBytes = 4096;
  __extension__ using Wide = __int128;

  template <typename Holds>
  bool all_views(Holds holds) const {
    for (const Step& step : program_.steps()) {
      for (const Access& access : step.accesses) {
        if (!holds(access.view)) return false;
      }
    }
    return true;
  }
  static std::uint64_t count_items(const View& view) {
    std::uint64_t count = std::max<std::uint64_t>(view.item_bytes, 1);
    for (const Dim& dim : view.dims) {
      if (count > kMostBytes || dim.size > kMostBytes) return kMostBytes + 1;
      count *= std::max<std::uint64_t>(dim.size, 1);
    }
    return count;
  }
  bool is_inside(const View& view) const {
    if (index_of(view.buffer) >= program_.buffers().size()) return false;
    if (view.item_bytes == 0) return true;
    Wide first = view.offset_bytes;
    Wide end = first + view.item_bytes;
    for (const Dim& dim : view.dims) {
      if (dim.size == 0) return true;
      const Wide reach = Wide{dim.stride_bytes} * (dim.size - 1);
      (reach < 0 ? first : end) += reach;
    }
    return first >= 0 && end <= Wide{program_.buffer(view.buffer).size_bytes};
  }
  bool is_order_complete() const {
    std::vector<int> named(program_.steps().size(), 0);
    for (const StepId step : parts_.order) {
      if (index_of(step) >= named.size() || named[index_of(step)]++ != 0) return false;
    }
    return parts_.order.size() == named.size();
  }
  bool is_arena_kept() const {
    for (std::size_t i = 0; i < program_.buffers().size(); ++i) {
      const Buffer& buffer = program_.buffers()[i];
      const std::uint64_t offset = parts_.arena.offsets[i];
      if (offset == kNotInArena) continue;
      const bool inside = Wide{offset} + buffer.size_bytes <= parts_.arena.size_bytes;
      if (buffer.role != Role::kTemporary || !inside || offset % buffer.alignment != 0)
        return false;
    }
    return true;
  }

  const Program& program_;
  const PlanParts& parts_;
};

// Changes a payload so that much of it still makes sense: its numbers are mostly words of four or
// eight bytes, so these are exchanged, copied and moved a little.
class PayloadMutator {
 public:
  explicit PayloadMutator(std::uint64_t seed) : random_(seed) {}

  std::vector<std::uint8_t> mutate(std::vector<std::uint8_t> payload) {
    for (std::uint64_t changes = 1 + random_.below(3); changes > 0; --changes) change(payload);
    return payload;
  }

 private:
  using Payload = std::vector<std::uint8_t>;

  void change(Payload& payload) {
    switch (random_.below(6)) {
      case 0:
        payload[random_.below(payload.size())] ^= static_cast<std::uint8_t>(1 << random_.below(8));
        return;
      case 1:
        return put(payload, word(payload, 4), random_.below(16), 4);
      case 2:
        return put(payload, word(payload, 8), 64 * random_.below(32), 8);
      case 3: {
        const std::size_t at = word(payload, 4);
        return put(payload, at, get(payload, at, 4) + random_.below(5) - 2, 4);
      }
      case 4:
        return put(payload, word(payload, 4), get(payload, word(payload, 4), 4), 4);
      default:
        return exchange(payload);
    }
  }
  // With a neighbour: of the order, or of the waits.
  void exchange(Payload& payload) {
    const std::size_t a = word(payload, 4);
    const std::size_t b = std::min(a + 4 * (1 + random_.below(4)), payload.size() / 4 * 4 - 4);
    const std::uint64_t value = get(payload, a, 4);
    put(payload, a, get(payload, b, 4), 4);
    put(payload, b, value, 4);
  }
  std::size_t word(const Payload& payload, std::size_t bytes) {
    const std::size_t words = payload.size() / bytes;
    return bytes * random_.below(random_.chance(50) ? words : words / kFront);
  }
  static std::uint64_t get(const Payload& payload, std::size_t at, std::size_t bytes) {
    std::uint64_t value = 0;
    std::memcpy(&value, payload.data() + at, bytes);
    return value;
  }
  static void put(Payload& payload, std::size_t at, std::uint64_t value, std::size_t bytes) {
    std::memcpy(payload.data() + at, &value, bytes);
  }

  // Order and waits are written last, and lie in front.
  static constexpr std::size_t kFront = 6;

  RandomNumbers random_;
};

struct FileTally {
  std::uint64_t mutants = 0;
  std::uint64_t taken = 0;   // by the reader
  std::uint64_t judged = 0;  // of these
  std::uint64_t races = 0;   // refused as such
  std::uint64_t wrong = 0;   // taken, and the judge found a fault
  std::string first_wrong{};

  void add(const FileTally& other) {
    mutants += other.mutants;
    taken += other.taken;
    judged += other.judged;
    races += other.races;
    wrong += other.wrong;
    if (first_wrong.empty()) first_wrong = other.first_wrong;
  }
};

inline std::ostream& operator<<(std::ostream& out, const FileTally& tally) {
  return out << tally.mutants << " plan files, " << tally.taken << " taken, " << tally.judged
             << " judged, " << tally.races << " refused for a race, " << tally.wrong << " wrong "
             << tally.first_wrong << "\n";
}

// A program of few steps, with everything that programs have.
inline Program random_tiny_program(std::uint64_t seed) {
  RandomProgramOptions options;
  options.steps = 4 + static_cast<std::uint32_t>(seed % 9);
  options.streams = 2 + static_cast<std::uint32_t>(seed % 3);
  options.syncs = seed % 2 == 0 ? 30 : 0;
  options.travels = 50;
  options.switches = 60;
  options.in_place = 30;
  options.views = 40;
  options.max_bytes = 256;
  return random_program(seed, options);
}

inline void try_mutant(FileTally& tally, const std::vector<std::uint8_t>& payload,
                       std::uint64_t seed) {
  ++tally.mutants;
  const Result<Plan> plan = read_plan(seal_plan_payload(payload));
  if (!plan) {
    tally.races += plan.error().code() == StatusCode::kRace ? 1 : 0;
    return;
  }
  ++tally.taken;
  const PlanParts parts{{plan->order().begin(), plan->order().end()},
                        {plan->waits().begin(), plan->waits().end()},
                        plan->arena()};
  const PlanJudge judge(plan->program(), parts);
  if (!judge.can_judge()) return;
  ++tally.judged;
  const std::string fault = judge.find_fault();
  if (fault.empty()) return;
  if (tally.wrong++ == 0) tally.first_wrong = fault + ", seed " + std::to_string(seed);
}

// `each` mutants of each of the programs that the seeds give.
inline FileTally run_file_mutants(std::uint64_t first_seed, std::uint64_t seeds,
                                  std::uint64_t each) {
  FileTally tally;
  for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    const Result<Plan> plan = make_plan(random_tiny_program(seed));
    if (!plan) continue;  // streams of the user that lack a sync
    const std::vector<std::uint8_t> payload = write_plan_payload(*plan);
    PayloadMutator mutator(seed);
    for (std::uint64_t i = 0; i < each; ++i) try_mutant(tally, mutator.mutate(payload), seed);
  }
  return tally;
}

}  // namespace anabranch
