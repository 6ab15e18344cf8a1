// SPDX-License-Identifier: Apache-2.0
// Random programs: what runs equals the program's steps one after another, byte for byte.
#include "devices.h"
#include "oracle.h"
#include "plan/random_program.h"

namespace anabranch::testing {
namespace {

constexpr std::uint64_t kPrograms = 25;

Program program_of(std::uint64_t seed, StepKind host_steps) {
  RandomProgramOptions options;
  options.steps = 60;
  options.streams = 5;
  options.syncs = 10;
  options.max_bytes = 512;
  return with_region_names(random_program(seed, options), host_steps);
}

struct Expected {
  Expected(const Plan& plan, std::uint64_t seed) : memory(plan) {
    fill_slots(plan, memory, seed);
    run_serially(plan, memory);
  }
  SlotMemory memory;
};

void expect_equal(const Plan& plan, SlotMemory& seen, SlotMemory& expected) {
  for (std::size_t slot = 0; slot < plan.slots().size(); ++slot) {
    EXPECT_EQ(seen.copy(slot), expected.copy(slot))
        << "buffer " << plan.program().buffer(plan.slots()[slot].buffer).name;
  }
  EXPECT_TRUE(seen.fences_stand());
}

TEST_P(Conformance, RandomProgramsGiveWhatTheirStepsGiveOneAfterAnother) {
  const Device device = make_device();
  for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed);
    const Plan plan = must(make_plan(program_of(seed, host_steps())));
    const HashingRegions regions(plan.program());
    const Recording recording = must(record(plan, device, regions.table()));
    SlotMemory memory(plan, source());
    fill_slots(plan, memory, seed);
    launch_and_wait(recording, memory);
    Expected expected(plan, seed);
    expect_equal(plan, memory, expected.memory);
  }
}

TEST_P(Conformance, RandomProgramsLaunchedAtNewAddressesTouchNothingElse) {
  const Device device = make_device();
  for (std::uint64_t seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed);
    const Plan plan = must(make_plan(program_of(seed, host_steps())));
    const HashingRegions regions(plan.program());
    const Recording recording = must(record(plan, device, regions.table()));
    SlotMemory first(plan, source()), second(plan, source());
    fill_slots(plan, first, 1);
    launch_and_wait(recording, first);
    for (std::size_t slot = 0; slot < plan.slots().size(); ++slot) {
      std::memset(first.bytes(slot).data(), SlotMemory::kPoison, first.bytes(slot).size());
    }
    fill_slots(plan, second, 2);
    launch_and_wait(recording, second);
    Expected expected(plan, 2);
    expect_equal(plan, second, expected.memory);
    EXPECT_TRUE(first.all_poison());
  }
}

}  // namespace
}  // namespace anabranch::testing
