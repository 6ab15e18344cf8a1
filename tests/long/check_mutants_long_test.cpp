// SPDX-License-Identifier: Apache-2.0
// The promise "a plan without a needed wait never runs", on 10,000 random programs.
#include <gtest/gtest.h>

#include <iostream>

#include "plan/check_mutants.h"

namespace anabranch::check {
namespace {

TEST(PlanCheckMutantsLong, TenThousandProgramsAndNoRaceIsMissed) {
  const Tallies tallies = run_mutants(1'000'000, 10'000);
  std::uint64_t missed = 0;
  std::uint64_t false_alarms = 0;
  for (const Tally* tally :
       {&tallies.complete, &tallies.dropped_waits, &tallies.redirected_waits,
        &tallies.swapped_steps, &tallies.moved_buffers, &tallies.shrunk_accesses}) {
    missed += tally->missed;
    false_alarms += tally->false_alarms;
  }
  std::cout << tallies << "missed " << missed << "\n";
  EXPECT_EQ(tallies.programs, 10'000u);
  EXPECT_EQ(tallies.complete.racy, 0u);
  EXPECT_EQ(tallies.dropped_waits.racy, tallies.dropped_waits.mutants);
  EXPECT_EQ(missed, 0u);
  EXPECT_EQ(false_alarms, 0u);
}

}  // namespace
}  // namespace anabranch::check
