// SPDX-License-Identifier: Apache-2.0
// Is the race checker right about 500 correct plans and about everything that can break in them?
#include "plan/check_mutants.h"

#include <gtest/gtest.h>

namespace anabranch::check {
namespace {

const Tallies& mutants() {
  static const Tallies tallies = run_mutants(1, 500);
  return tallies;
}

TEST(PlanCheckMutants, EveryCompletePlanIsAccepted) {
  EXPECT_EQ(mutants().complete.mutants, 500u);
  EXPECT_EQ(mutants().complete.racy, 0u) << mutants();
  EXPECT_EQ(mutants().complete.false_alarms, 0u) << mutants();
}

// Derived waits are a transitive reduction: without any one of them some conflict is not ordered.
TEST(PlanCheckMutants, EveryDroppedWaitIsReported) {
  const Tally& tally = mutants().dropped_waits;
  EXPECT_GT(tally.mutants, 1000u);
  EXPECT_EQ(tally.racy, tally.mutants) << mutants();
  EXPECT_EQ(tally.missed, 0u) << mutants();
}

void expect_exact(const Tally& tally) {
  EXPECT_GT(tally.racy, 100u) << mutants();
  EXPECT_GT(tally.mutants, tally.racy) << mutants();
  EXPECT_EQ(tally.missed, 0u) << mutants();
  EXPECT_EQ(tally.false_alarms, 0u) << mutants();
}

TEST(PlanCheckMutants, EveryWaitForAnEarlierStepIsReported) {
  const Tally& tally = mutants().redirected_waits;
  EXPECT_GT(tally.mutants, 1000u);
  EXPECT_EQ(tally.racy, tally.mutants) << mutants();
  EXPECT_EQ(tally.missed, 0u) << mutants();
}

TEST(PlanCheckMutants, SwappedStepsAreReportedIfTheyConflict) {
  expect_exact(mutants().swapped_steps);
}

TEST(PlanCheckMutants, ATemporaryMovedOntoALiveOneIsReported) {
  expect_exact(mutants().moved_buffers);
}

TEST(PlanCheckMutants, APlanMadeForFewerBytesIsReported) {
  expect_exact(mutants().shrunk_accesses);
}

}  // namespace
}  // namespace anabranch::check
