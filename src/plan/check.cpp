// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "anabranch/plan.h"
#include "plan/check_order.h"
#include "plan/check_overlap.h"

namespace anabranch {
namespace {

using check::ByteSet;
using check::Demand;
using check::Overlap;

// The bytes between the bounds of both views, for people.
bool set_shared_bytes(Race& race, const View& first, const View& second, CompareWork& work) {
  const ByteSet a = check::make_byte_set(first);
  const ByteSet b = check::make_byte_set(second);
  const Overlap overlap = check::find_overlap(a, b, work);
  if (overlap == Overlap::kNone) return false;
  race.begin_byte = std::max(a.begin, b.begin);
  race.end_byte = std::min(a.end, b.end);
  race.exact = overlap == Overlap::kShared;
  return true;
}

void set_conflict(Race& race, const Program& program, CompareWork& work) {
  for (const Access& first : program.step(race.first).accesses) {
    for (const Access& second : program.step(race.second).accesses) {
      if (first.view.buffer != race.buffer || second.view.buffer != race.buffer) continue;
      if (!check::writes(first) && !check::writes(second)) continue;
      const bool shared = set_shared_bytes(race, first.view, second.view, work);
      if ((shared && race.exact) || work.exhausted()) return;
    }
  }
}

void set_shared_arena(Race& race, const Program& program, const ArenaLayout& arena) {
  const std::uint64_t first = arena.offsets[index_of(race.buffer)];
  const std::uint64_t second = arena.offsets[index_of(race.other_buffer)];
  race.begin_byte = std::max(first, second) - first;
  race.end_byte = std::min(first + program.buffer(race.buffer).size_bytes,
                           second + program.buffer(race.other_buffer).size_bytes) -
                  first;
}

Race make_race(const Demand& unmet, const Program& program, const ArenaLayout& arena,
               CompareWork& work) {
  Race race{.first = unmet.first,
            .second = unmet.second,
            .buffer = unmet.buffer,
            .other_buffer = unmet.other,
            .missing = {unmet.second, unmet.first}};
  if (race.buffer == kNoBuffer) return race;
  if (race.buffer == race.other_buffer) {
    set_conflict(race, program, work);
  } else {
    set_shared_arena(race, program, arena);
  }
  return race;
}

std::string describe_step(const Program& program, StepId id) {
  static constexpr std::string_view kKinds[] = {"compute",      "copy",       "fill",       "host",
                                                "record_event", "wait_event", "synchronize"};
  const Step& step = program.step(id);
  std::string_view name = step.name;
  if (name.empty()) name = kKinds[static_cast<std::size_t>(step.kind)];
  const std::string_view comma = step.source.empty() ? "" : ", ";
  return fmt::format("step {} '{}' ({}{}stream '{}')", index_of(id), printable_text(name),
                     printable_text(step.source), comma,
                     printable_text(program.streams()[index_of(step.stream)]));
}

struct Verb {
  std::string_view does;
  std::string_view may_do;
};

Verb describe_access(const Program& program, StepId id, BufferId buffer) {
  unsigned modes = 0;
  for (const Access& access : program.step(id).accesses) {
    if (access.view.buffer == buffer) modes |= static_cast<unsigned>(access.mode);
  }
  static constexpr Verb kVerbs[] = {
      {"names", "name"}, {"reads", "read"}, {"writes", "write"}, {"changes", "change"}};
  return kVerbs[modes];
}

std::string describe_cause(const Program& program, const Race& race) {
  const std::string first = describe_step(program, race.first);
  const std::string second = describe_step(program, race.second);
  if (race.buffer == kNoBuffer) {
    return fmt::format("{} must come after {}", second, first);
  }
  const std::string name = printable_text(program.buffer(race.buffer).name);
  const std::string bytes = fmt::format("{}..{}", race.begin_byte, race.end_byte);
  if (race.buffer != race.other_buffer) {
    return fmt::format("{} uses '{}' while {} may still use '{}', which has bytes {} in common",
                       second, printable_text(program.buffer(race.other_buffer).name), first, name,
                       bytes);
  }
  return fmt::format("{} {} '{}' bytes {}{} while {} may still {} them", second,
                     describe_access(program, race.second, race.buffer).does, name, bytes,
                     race.exact ? "" : " (overlap not decidable)", first,
                     describe_access(program, race.first, race.buffer).may_do);
}

// Says what is wrong with the order of the two, and what would mend it.
std::string describe_remedy(const Program& program, const Race& race,
                            const std::vector<std::size_t>& position) {
  const std::uint32_t first = index_of(race.first);
  const std::uint32_t second = index_of(race.second);
  if (first == second) return "Remedy: give the two buffers different bytes of the arena";
  const bool one_stream = program.step(race.first).stream == program.step(race.second).stream;
  if (position[first] < position[second]) {
    return fmt::format("nothing orders the two. Remedy: let step {} wait for step {}", second,
                       first);
  }
  return fmt::format("the plan names step {} first. Remedy: move step {} before it{}", second,
                     first, one_stream ? "" : " and let it wait");
}

std::vector<std::size_t> positions(const Program& program, std::span<const StepId> order) {
  std::vector<std::size_t> position(program.steps().size(), order.size());
  for (std::size_t i = order.size(); i-- > 0;) {
    if (index_of(order[i]) < position.size()) position[index_of(order[i])] = i;
  }
  return position;
}

}  // namespace

Result<std::vector<Race>> find_races(const Program& program, const PlanParts& parts,
                                     std::size_t limit) {
  const check::Clocks clocks(program, parts.order, parts.waits);
  const check::AccessesByBuffer accesses(program);
  check::Demands demands(program, clocks);
  CompareWork work(program);
  check::demand_access_order(demands, accesses, work);
  if (work.exhausted()) return work.refusal("check");
  check::demand_arena_order(demands, accesses, parts.arena);
  check::demand_sync_order(demands);
  std::vector<Demand>& unmet = demands.unmet;
  std::sort(unmet.begin(), unmet.end());
  unmet.erase(std::unique(unmet.begin(), unmet.end()), unmet.end());
  unmet.resize(std::min(unmet.size(), limit));
  std::vector<Race> races;
  races.reserve(unmet.size());
  for (const Demand& demand : unmet) races.push_back(make_race(demand, program, parts.arena, work));
  return races;
}

Status check_plan(const Program& program, const PlanParts& parts) {
  constexpr std::size_t kShown = 4;
  const Result<std::vector<Race>> found = find_races(program, parts, kShown + 1);
  if (!found) return found.error();
  const std::vector<Race>& races = *found;
  if (races.empty()) return {};
  const std::vector<std::size_t> position = positions(program, parts.order);
  std::string text;
  for (std::size_t i = 0; i < std::min(races.size(), kShown); ++i) {
    text += fmt::format("{}check: {}; {}.", i == 0 ? "" : "\n", describe_cause(program, races[i]),
                        describe_remedy(program, races[i], position));
  }
  if (races.size() > kShown) text += "\ncheck: more races follow these.";
  return Status(StatusCode::kRace, std::move(text));
}

}  // namespace anabranch
