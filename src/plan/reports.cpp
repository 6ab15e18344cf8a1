// SPDX-License-Identifier: Apache-2.0
// Races between steps that the user's own syncs leave unordered. A race is one of three levels; for
// each there is a clock that knows the user's order and what was reported of this and graver
// levels, so that a race is reported unless it follows from such: a warning never hides an error.
#include "plan/reports.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "plan/overlap.h"
#include "plan/user_order.h"
#include "plan/waits_history.h"
#include "program/user_streams.h"

namespace anabranch {
namespace {

enum Level : std::uint8_t { kMutation, kFlow, kUndecided, kLevelCount };

constexpr ReportKind kKinds[] = {ReportKind::kRaceMutation, ReportKind::kRaceFlow,
                                 ReportKind::kInexact};

Severity severity_of(ReportKind kind, bool strict) {
  switch (kind) {
    case ReportKind::kRaceMutation:
      return Severity::kError;
    case ReportKind::kRaceFlow:
    case ReportKind::kUnrecorded:
      return strict ? Severity::kError : Severity::kWarning;
    case ReportKind::kUnjoined:
      return strict ? Severity::kWarning : Severity::kNote;
    default:
      return Severity::kNote;
  }
}

bool writes(const Access& access) { return access.mode != AccessMode::kRead; }

// A race with one step that is under way.
struct Found {
  StepId first{};
  Level level = kLevelCount;
  BufferId buffer = kNoBuffer;
  std::uint64_t begin_byte = 0, end_byte = 0;
};

class Finder {
 public:
  Finder(const Program& program, bool strict)
      : program_(program),
        work_(program),
        strict_(strict),
        order_(program),
        clocks_{order_.make_clocks(), order_.make_clocks(), order_.make_clocks()},
        history_(program, AccessHistory::Reads::kLastOfStream, work_),
        recorded_(program.events().size(), false),
        last_work_(order_.lane_count()) {
    first_access_.push_back(0);
    for (const Step& step : program.steps()) {
      first_access_.push_back(first_access_.back() + step.accesses.size());
    }
    changes_.resize(first_access_.back(), false);
  }

  Result<std::vector<SyncReport>> run() {
    add_to_clocks(order_.entry());
    for (std::uint32_t i = 0; i < program_.steps().size(); ++i) {
      add(StepId{i});
      if (work_.exhausted()) return work_.refusal("reports");
    }
    add_to_clocks(order_.exit());
    find_unjoined();
    return std::move(reports_);
  }

 private:
  void add_to_clocks(StepId step);
  void add(StepId step);
  void check_record(StepId step);
  void add_access(StepId step, std::size_t number);
  bool overlaps_a_write(StepId step, const Access& access);
  void find_races(StepId step);
  Found find_race(StepId first, StepId second);
  std::optional<Found> find_entry_race(StepId step) const;
  bool changes(StepId step, std::size_t access) const {
    return changes_[first_access_[index_of(step)] + access];
  }
  void report_races(StepId step, Level level);
  void find_unjoined();
  void report(ReportKind kind, StepId second, const Found& race);

  const Program& program_;
  CompareWork work_;
  bool strict_;
  UserOrder order_;
  std::array<Clocks, kLevelCount> clocks_;
  AccessHistory history_;
  std::vector<bool> recorded_;                    // by event
  std::vector<std::optional<StepId>> last_work_;  // by lane; records are none, waits are
  std::vector<std::size_t> first_access_;         // by step, in changes_
  std::vector<bool> changes_;                     // the access writes what had a value before
  std::vector<StepId> earlier_;                   // that conflict with the step under way
  std::vector<Found> races_;                      // of the step under way
  std::vector<SyncReport> reports_;
};

void Finder::add_to_clocks(StepId step) {
  const std::span<const StepId> after = order_.next(step);
  std::vector<StepId> fresh;
  for (Clocks& clocks : clocks_) {
    fresh.clear();
    std::copy_if(after.begin(), after.end(), std::back_inserter(fresh),
                 [&](StepId on) { return !clocks.known_to(order_.lane(step), on); });
    clocks.add(step, fresh);
  }
}

void Finder::add(StepId step) {
  add_to_clocks(step);
  check_record(step);
  earlier_.clear();
  const std::size_t count = program_.step(step).accesses.size();
  for (std::size_t i = 0; i < count; ++i) add_access(step, i);
  if (count == 0) return;
  std::sort(earlier_.begin(), earlier_.end());
  earlier_.erase(std::unique(earlier_.begin(), earlier_.end()), earlier_.end());
  find_races(step);
  for (const Level level : {kMutation, kFlow, kUndecided}) report_races(step, level);
}

void Finder::check_record(StepId id) {
  const Step& step = program_.step(id);
  if (step.kind == StepKind::kRecordEvent) {
    recorded_[index_of(step.event)] = true;
  } else if (step.kind == StepKind::kWaitEvent && !recorded_[index_of(step.event)]) {
    report(ReportKind::kUnrecorded, id, {.first = kNoStep});
  } else {
    last_work_[order_.lane(id)] = id;
  }
}

void Finder::add_access(StepId step, std::size_t number) {
  const Access& access = program_.step(step).accesses[number];
  const auto begin = static_cast<std::ptrdiff_t>(earlier_.size());
  history_.add(step, access, earlier_);
  if (!writes(access)) return;
  changes_[first_access_[index_of(step)] + number] =
      access.mode == AccessMode::kReadWrite ||
      program_.buffer(access.view.buffer).role == Role::kInput ||
      std::any_of(earlier_.begin() + begin, earlier_.end(),
                  [&](StepId other) { return other != step && overlaps_a_write(other, access); });
}

bool Finder::overlaps_a_write(StepId step, const Access& access) {
  const Bytes bytes = make_bytes(access.view);
  const std::vector<Access>& accesses = program_.step(step).accesses;
  return std::any_of(accesses.begin(), accesses.end(), [&](const Access& other) {
    return writes(other) && other.view.buffer == access.view.buffer &&
           find_overlap(make_bytes(other.view), bytes, work_) != Overlap::kDisjoint;
  });
}

// What the syncs leave open, whether reported or not.
void Finder::find_races(StepId step) {
  races_.clear();
  for (const StepId first : earlier_) {
    if (first == step || clocks_[kMutation].before(first, step)) continue;
    races_.push_back(find_race(first, step));
  }
  if (const std::optional<Found> race = find_entry_race(step)) races_.push_back(*race);
}

// The gravest that the two steps have; they conflict.
Found Finder::find_race(StepId first, StepId second) {
  Found found{.first = first};
  const std::vector<Access>& earlier = program_.step(first).accesses;
  for (std::size_t i = 0; i < earlier.size(); ++i) {
    for (const Access& later : program_.step(second).accesses) {
      if (earlier[i].view.buffer != later.view.buffer) continue;
      if (!writes(earlier[i]) && !writes(later)) continue;
      const Bytes a = make_bytes(earlier[i].view);
      const Bytes b = make_bytes(later.view);
      const Overlap overlap = find_overlap(a, b, work_);
      if (work_.exhausted()) return found;
      if (overlap == Overlap::kDisjoint) continue;
      const bool fresh = !writes(later) && !changes(first, i);
      const Level level = overlap == Overlap::kUnknown ? kUndecided : fresh ? kFlow : kMutation;
      if (level >= found.level) continue;
      found = {first, level, later.view.buffer,
               static_cast<std::uint64_t>(std::max(a.begin, b.begin)),
               static_cast<std::uint64_t>(std::min(a.end, b.end))};
    }
  }
  return found;
}

// The caller wrote the inputs on the ambient stream. What a step of the caller's own thread uses is
// memory of the host, which the caller wrote in the order of that thread.
std::optional<Found> Finder::find_entry_race(StepId step) const {
  if (is_callers(program_, program_.step(step)) || clocks_[kFlow].before(order_.entry(), step)) {
    return std::nullopt;
  }
  for (const Access& access : program_.step(step).accesses) {
    const Bytes bytes = make_bytes(access.view);
    const bool is_input = program_.buffer(access.view.buffer).role == Role::kInput;
    if (!is_input || bytes.begin == bytes.end) continue;
    return Found{order_.entry(), kFlow, access.view.buffer, static_cast<std::uint64_t>(bytes.begin),
                 static_cast<std::uint64_t>(bytes.end)};
  }
  return std::nullopt;
}

// Of each lane the last, and none that another implies.
void Finder::report_races(StepId step, Level level) {
  const Clocks& clocks = clocks_[level];
  std::map<std::uint32_t, Found> latest;  // by lane
  for (const Found& race : races_) {
    if (race.level != level || clocks.before(race.first, step)) continue;
    Found& kept = latest.emplace(order_.lane(race.first), race).first->second;
    if (clocks.before(kept.first, race.first)) kept = race;
  }
  std::vector<StepId> added;
  for (const auto& kept : latest) {
    const StepId first = kept.second.first;
    const bool implied = std::any_of(latest.begin(), latest.end(), [&](const auto& other) {
      return other.first != kept.first && clocks.before(first, other.second.first);
    });
    if (implied) continue;
    report(kKinds[level], step, kept.second);
    added.push_back(first);
  }
  if (added.empty()) return;
  for (std::size_t i = level; i < kLevelCount; ++i) clocks_[i].add_waits(step, added);
}

// The ends of streams that neither the caller nor another such end comes after, as the program has
// them.
void Finder::find_unjoined() {
  const Clocks& clocks = clocks_.back();
  std::vector<StepId> ends;
  for (const std::optional<StepId>& last : last_work_) {
    if (last && !clocks.before(*last, order_.exit())) ends.push_back(*last);
  }
  std::sort(ends.begin(), ends.end());
  for (const StepId end : ends) {
    const auto comes_after = [&](StepId other) { return clocks.before(end, other); };
    if (std::any_of(ends.begin(), ends.end(), comes_after)) continue;
    report(ReportKind::kUnjoined, kNoStep, {.first = end});
  }
}

void Finder::report(ReportKind kind, StepId second, const Found& race) {
  const StepId first = race.first == order_.entry() ? kNoStep : race.first;
  SyncReport made{.kind = kind,
                  .severity = severity_of(kind, strict_),
                  .first = first,
                  .second = second,
                  .buffer = race.buffer,
                  .begin_byte = race.begin_byte,
                  .end_byte = race.end_byte,
                  .exact = kind != ReportKind::kInexact,
                  .missing = {second, first}};
  made.message = describe_report(program_, made);
  reports_.push_back(std::move(made));
}

}  // namespace

Result<std::vector<SyncReport>> find_reports(const Program& program, const PlanOptions& options) {
  if (!has_user_streams(program.origins())) return std::vector<SyncReport>();
  return Finder(program, options.strict).run();
}

Status check_reports(const Program& program, const PlanOptions& options) {
  constexpr std::size_t kShown = 4;
  std::size_t count = 0;
  std::string text;
  const Result<std::vector<SyncReport>> reports = find_reports(program, options);
  if (!reports) return reports.error();
  for (const SyncReport& report : *reports) {
    if (report.severity != Severity::kError || ++count > kShown) continue;
    text += (text.empty() ? "plan: " : "\nplan: ") + report.message;
  }
  if (count == 0) return {};
  if (count > kShown) text += "\nplan: more follow these.";
  return Status(StatusCode::kUnsynchronised, std::move(text));
}

}  // namespace anabranch
