// SPDX-License-Identifier: Apache-2.0
#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SimFaults : public SimTest {};

TEST_F(SimFaults, TheNthCallFailsAndHasNoEffect) {
  sim->fail_call(2, CuResult::kOutOfMemory);
  CuDevicePtr a = 0;
  EXPECT_CU(d->cuMemAlloc(&a, 16));
  EXPECT_EQ(d->cuMemAlloc(&a, 16), CuResult::kOutOfMemory);
  EXPECT_EQ(sim->failed_call(), "cuMemAlloc");
  EXPECT_EQ(sim->live_objects(), 1u);
  EXPECT_CU(d->cuMemAlloc(&a, 16));
}

TEST_F(SimFaults, OnlyCallsOfTheNameCount) {
  sim->fail_call(1, CuResult::kUnknown, "cuStreamSynchronize");
  const CuDevicePtr a = allocate(16);
  put(a, 1);
  EXPECT_EQ(d->cuStreamSynchronize(nullptr), CuResult::kUnknown);
}

TEST_F(SimFaults, WhatFreesDoesSoEvenWhenItAnswersAnError) {
  const CuDevicePtr a = allocate(16);
  sim->fail_call(1, CuResult::kUnknown);
  EXPECT_EQ(d->cuMemFree(a), CuResult::kUnknown);
  EXPECT_EQ(sim->live_objects(), 0u);
}

TEST_F(SimFaults, ACaptureWhoseEndFailsLeavesNoGraph) {
  const CuStream on = stream();
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kRelaxed));
  sim->fail_call(1, CuResult::kUnknown);
  CuGraph graph = nullptr;
  EXPECT_EQ(d->cuStreamEndCapture(on, &graph), CuResult::kUnknown);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(sim->live_objects(), 1u);
}

TEST_F(SimFaults, ALostContextStaysLostButCanBeTakenDown) {
  const CuDevicePtr a = allocate(16);
  const CuStream on = stream();
  sim->fail_call(1, CuResult::kLaunchFailed, "cuStreamSynchronize");
  EXPECT_EQ(d->cuStreamSynchronize(on), CuResult::kLaunchFailed);
  CuDevicePtr b = 0;
  EXPECT_EQ(d->cuMemAlloc(&b, 16), CuResult::kLaunchFailed);
  int count = 0;
  EXPECT_CU(d->cuDeviceGetCount(&count));
  EXPECT_EQ(d->cuStreamDestroy(on), CuResult::kLaunchFailed);
  EXPECT_EQ(d->cuMemFree(a), CuResult::kLaunchFailed);
  EXPECT_EQ(sim->live_objects(), 0u);
}

TEST_F(SimFaults, WorkBehindAnIllegalAccessDoesNotRun) {
  const CuStream on = stream();
  ASSERT_CU(add_one(on, 4096, allocate(4)));
  ASSERT_CU(launch(noting("never"), on));
  EXPECT_EQ(d->cuStreamSynchronize(on), CuResult::kIllegalAddress);
  EXPECT_THAT(order, ElementsAre());
  EXPECT_THAT(sim->violations(), ElementsAre(HasSubstr("0x1000")));
}

TEST_F(SimFaults, CallsAreLoggedInTheirOrder) {
  const std::size_t before = sim->calls().size();
  CuEvent made = event();
  EXPECT_CU(d->cuEventRecord(made, nullptr));
  const std::vector<std::string_view> calls = sim->calls();
  EXPECT_THAT(std::vector(calls.begin() + static_cast<std::ptrdiff_t>(before), calls.end()),
              ElementsAre("cuEventCreate", "cuEventRecord"));
}

TEST(SimDriver, NeedsToBeInitializedAndToHaveAContext) {
  const SimDriver sim;
  const Driver& d = sim.table();
  int count = 0;
  EXPECT_EQ(d.cuDeviceGetCount(&count), CuResult::kNotInitialized);
  ASSERT_CU(d.cuInit(0));
  ASSERT_CU(d.cuDeviceGetCount(&count));
  EXPECT_EQ(count, 1);
  CuDevicePtr address = 0;
  EXPECT_EQ(d.cuMemAlloc(&address, 4), CuResult::kInvalidContext);
}

TEST(SimDriver, LacksWhatAnOlderDriverLacks) {
  const SimDriver sim({.driver_version = 12020});
  EXPECT_EQ(sim.table().cuGraphGetEdges, nullptr);
  EXPECT_FALSE(sim.table().has(Feature::kParamInfo));
  EXPECT_TRUE(sim.table().has(Feature::kGenericNodeParams));
}

TEST(SimDriver, FillsEveryEntryOfTheTable) {
  const SimDriver sim;
#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) \
  EXPECT_NE(sim.table().name, nullptr) << #name;
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION
}

}  // namespace
}  // namespace anabranch::sim
