// SPDX-License-Identifier: Apache-2.0
#include "plan/waits.h"

#include <algorithm>

#include "plan/clocks.h"

namespace anabranch {
namespace {

// Leaves of the steps that one step must come after those that nothing else implies.
class Reducer {
 public:
  explicit Reducer(const Program& program)
      : program_(program), clocks_(program), latest_(program.streams().size()) {}

  // Sorted by stream; valid until the next call.
  std::span<const StepId> reduce(StepId step, std::span<const StepId> after) {
    keep_latest(program_.step(step).stream, after);
    const auto implied = [&](StepId on) {
      return std::any_of(kept_.begin(), kept_.end(),
                         [&](StepId other) { return other != on && clocks_.before(on, other); });
    };
    waits_.clear();
    std::copy_if(kept_.begin(), kept_.end(), std::back_inserter(waits_),
                 [&](StepId on) { return !implied(on); });
    std::sort(waits_.begin(), waits_.end(), [&](StepId a, StepId b) {
      return program_.step(a).stream < program_.step(b).stream;
    });
    clocks_.add(step, waits_);
    return waits_;
  }

 private:
  // Of each other stream the last one, unless its end is known already.
  void keep_latest(StreamId stream, std::span<const StepId> after) {
    kept_.clear();
    for (const StepId on : after) {
      if (clocks_.known_to(index_of(stream), on)) continue;
      std::optional<StepId>& latest = latest_[index_of(program_.step(on).stream)];
      if (!latest) kept_.push_back(on);
      if (!latest || clocks_.before(*latest, on)) latest = on;
    }
    for (StepId& on : kept_) {
      std::optional<StepId>& latest = latest_[index_of(program_.step(on).stream)];
      on = *latest;
      latest.reset();
    }
  }

  const Program& program_;
  Clocks clocks_;
  std::vector<std::optional<StepId>> latest_;  // by stream; empty between two calls
  std::vector<StepId> kept_;
  std::vector<StepId> waits_;
};

}  // namespace

std::span<const StepId> Dependencies::next(StepId id) {
  const Step& step = program_.step(id);
  found_.clear();
  if (synchronize_) found_.push_back(*synchronize_);
  switch (step.kind) {
    case StepKind::kRecordEvent:
      records_[index_of(step.event)] = id;
      break;
    case StepKind::kWaitEvent:
      if (const auto record = records_[index_of(step.event)]) found_.push_back(*record);
      break;
    case StepKind::kSynchronize:
      synchronize_ = id;
      break;
    default:
      for (const Access& access : step.accesses) history_.add(id, access, found_);
  }
  return found_;
}

Result<std::vector<Wait>> derive_waits(const Program& program, std::span<const StepId> order) {
  CompareWork work(program);
  Dependencies dependencies(program, AccessHistory::Reads::kLastOfStream, work);
  Reducer reducer(program);
  std::vector<Wait> waits;
  for (const StepId step : order) {
    for (const StepId on : reducer.reduce(step, dependencies.next(step))) {
      waits.push_back({step, on});
    }
    if (work.exhausted()) return work.refusal("plan");
  }
  return waits;
}

std::vector<StepId> find_redundant_waits(const Program& program, std::span<const Wait> waits) {
  std::vector<Wait> sorted(waits.begin(), waits.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::optional<StepId>> records(program.events().size());
  std::vector<StepId> redundant;
  for (std::uint32_t i = 0; i < program.steps().size(); ++i) {
    const Step& step = program.steps()[i];
    if (step.kind == StepKind::kRecordEvent) records[index_of(step.event)] = StepId{i};
    if (step.kind != StepKind::kWaitEvent) continue;
    const std::optional<StepId> record = records[index_of(step.event)];
    if (record && std::binary_search(sorted.begin(), sorted.end(), Wait{StepId{i}, *record})) {
      continue;
    }
    redundant.push_back(StepId{i});
  }
  return redundant;
}

std::vector<StepId> find_exits(const Program& program, std::span<const StepId> order,
                               std::span<const Wait> waits) {
  std::vector<std::optional<StepId>> last(program.streams().size());
  for (const StepId step : order) last[index_of(program.step(step).stream)] = step;
  last[index_of(kAmbient)].reset();
  for (const Wait& wait : waits) {
    std::optional<StepId>& end = last[index_of(program.step(wait.on).stream)];
    if (end == wait.on) end.reset();
  }
  std::vector<StepId> exits;
  for (const std::optional<StepId>& end : last) {
    if (end) exits.push_back(*end);
  }
  return exits;
}

}  // namespace anabranch
