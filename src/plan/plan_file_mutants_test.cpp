// SPDX-License-Identifier: Apache-2.0
// Is every plan that is read from a broken file, under a right checksum, one that keeps its
// promises?
#include "plan/plan_file_mutants.h"

#include <gtest/gtest.h>

#include <memory>

namespace anabranch {
namespace {

TEST(PlanFileMutants, WhatIsTakenHasNoFault) {
  const FileTally tally = run_file_mutants(1, 500, 100);
  EXPECT_EQ(tally.wrong, 0u) << tally;
  EXPECT_EQ(tally.mutants, 50'000u);
  EXPECT_GT(tally.judged, 5'000u) << tally;  // or the mutants would show nothing
  EXPECT_GT(tally.races, 200u) << tally;
  EXPECT_GT(10 * tally.judged, 9 * tally.taken) << tally;
}

// up -> t -> (side) down, with an event and a synchronize around.
struct Judged {
  Judged() {
    ProgramBuilder builder;
    const StreamId side = builder.add_stream("side");
    const EventId event = builder.add_event("e");
    const BufferId t = builder.add_buffer({"t", Role::kTemporary, 64});
    const BufferId y = builder.add_buffer({"y", Role::kOutput, 64});
    builder.compute(kAmbient, "up", {builder.write(t)});
    builder.record_event(kAmbient, event);
    builder.wait_event(side, event);
    builder.compute(side, "down", {builder.read(t), builder.write(y)});
    builder.synchronize(side);
    builder.compute(kAmbient, "late", {});
    program = std::make_unique<Program>(*builder.build());
    const Plan plan = *make_plan(*program);
    parts = {{plan.order().begin(), plan.order().end()},
             {plan.waits().begin(), plan.waits().end()},
             plan.arena()};
  }
  std::string fault() const { return PlanJudge(*program, parts).find_fault(); }

  std::unique_ptr<Program> program;
  PlanParts parts;
};

TEST(PlanJudge, SeesEachFault) {
  EXPECT_EQ(Judged().fault(), "");
  ASSERT_EQ(Judged().parts.waits.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {  // the event's wait, and the synchronize's
    Judged judged;
    judged.parts.waits.erase(judged.parts.waits.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(judged.fault(), "a race");
  }
  Judged judged;
  judged.parts.arena.size_bytes = 63;
  EXPECT_EQ(judged.fault(), "a temporary leaves the arena");
  judged.parts.order[0] = judged.parts.order[1];
  EXPECT_EQ(judged.fault(), "the order is not complete");
}

}  // namespace
}  // namespace anabranch
