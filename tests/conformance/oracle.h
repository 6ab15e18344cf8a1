// SPDX-License-Identifier: Apache-2.0
// What a program means: its steps one after another, each buffer in memory of its own.
//
// A step's region hashes all bytes it reads and writes bytes drawn from that hash, so a byte that
// is wrong anywhere changes everything after it.
#pragma once

#include <deque>
#include <vector>

#include "anabranch/launch.h"
#include "anabranch/record.h"
#include "launch/launch_testing.h"

namespace anabranch::testing {

// The same program with a region of its own for each compute and host step. Host steps become steps
// of the kind `host_steps`, for devices that have none.
Program with_region_names(const Program& program, StepKind host_steps = StepKind::kHost);

// Regions for all steps of such a program. Must outlive what is recorded with its table.
class HashingRegions {
 public:
  explicit HashingRegions(const Program& program);
  const RegionTable& table() const { return table_; }

 private:
  struct Context {
    Step step;
    std::uint64_t seed = 0;
  };
  static std::int32_t run(void* context, const RegionCall* call);
  std::deque<Context> contexts_;
  RegionTable table_;
};

// Bytes for the slots that are read: the same for the same seed.
void fill_slots(const Plan& plan, SlotMemory& memory, std::uint64_t seed);

// Runs the program of the plan on `memory`, step by step in program order.
void run_serially(const Plan& plan, SlotMemory& memory);

}  // namespace anabranch::testing
