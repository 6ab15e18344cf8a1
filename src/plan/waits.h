// SPDX-License-Identifier: Apache-2.0
// Which step must wait for which: all that correctness and the user's syncs need, and no more.
// Ownership: values.
// Threads:   pure.
// Failure:   kTooManyComparisons.
// Edges:     one stream never waits.
//
// A step must come after
//   * each earlier step that it conflicts with: one of them writes, and their bytes overlap, or it
//     is not decidable that they do not;
//   * for wait_event, the latest earlier record of its event, hence all before that on its stream;
//     if there is none, nothing;
//   * the latest earlier synchronize of any stream.
// Kept are the edges between streams of the transitive reduction of these and stream order: the
// smallest set that implies them all. Cost: near linear in accesses, times streams where a step
// waits.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "plan/waits_history.h"

namespace anabranch {

// The steps that each step must come after, as it stands in `order`.
class Dependencies {
 public:
  Dependencies(const Program& program, AccessHistory::Reads reads, CompareWork& work)
      : program_(program), history_(program, reads, work), records_(program.events().size()) {}

  // To be called for the steps in order. Steps of the same stream are named only for conflicts.
  // Valid until the next call.
  std::span<const StepId> next(StepId step);

 private:
  const Program& program_;
  AccessHistory history_;
  std::vector<std::optional<StepId>> records_;  // the latest, by event
  std::optional<StepId> synchronize_;           // comes after every earlier one
  std::vector<StepId> found_;
};

// `order` names every step once and keeps in program order what depends on each other, and syncs.
// Sorted by the place of the step in `order`, then by the stream of what it waits for.
Result<std::vector<Wait>> derive_waits(const Program& program, std::span<const StepId> order);

// The wait_event steps that do not wait in `waits`: their event's record was ordered already, or
// there is none.
std::vector<StepId> find_redundant_waits(const Program& program, std::span<const Wait> waits);

// The last steps of side streams that no other stream waits for.
std::vector<StepId> find_exits(const Program& program, std::span<const StepId> order,
                               std::span<const Wait> waits);

}  // namespace anabranch
