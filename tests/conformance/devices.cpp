// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include "device/host/team_testing.h"

namespace anabranch::testing {
namespace {

host::DeviceOptions host_options(std::uint32_t lanes, std::uint64_t spin_ns) {
  host::DeviceOptions options;
  options.max_lanes = lanes;
  options.spin_ns = spin_ns;
  return options;
}

host::DeviceOptions host_with_delays(std::uint64_t seed) {
  host::DeviceOptions options = host_options(4, 50'000);
  options.delays_seed = seed;
  return options;
}

host::DeviceOptions host_with_team(std::uint32_t lanes, unsigned members) {
  host::DeviceOptions options = host_options(lanes, 50'000);
  options.threads = ThreadTeam::control(1, members);
  return options;
}

const char* const kRunsAtRecord =
    "regions run while a plan is recorded; what they queue cannot answer anything";

DeviceCase cuda_on_sim(std::string name, sim::SimOptions options, bool with_device_code) {
  DeviceCase device{.name = std::move(name), .sim = options, .with_device_code = with_device_code};
  for (const char* test :
       {"AStepThatFailsAnywhereIsNamedAndTheRecordingRunsAgain",
        "AStepThatThrowsFailsWithTheExceptionsText", "OfSeveralFailuresTheFirstInThePlanIsReported",
        "StepsAfterAFailedOneInThePlanOfTheSameStreamDoNotRun",
        "AFailureWithoutTextDoesNotBorrowThatOfAnEarlierStep",
        "ALaunchFromWithinARegionOfAnotherRecordingRuns"}) {
    device.excluded[test] = kRunsAtRecord;
  }
  device.excluded["ABusyRecordingAnswersBusyAndLeavesTheRunningLaunchAlone"] =
      "launches queue, so none finds another running";
  return device;
}

}  // namespace

std::vector<DeviceCase> device_cases() {
  return {
      {"HostOfOneLane", host_options(1, 50'000)},
      {"HostOfTwoLanes", host_options(2, 50'000)},
      {"HostOfFourLanesThatSleepAtOnce", host_options(4, 0)},
      {"HostWithATeam", host_with_team(4, 64)},
      {"HostWithDelays", host_with_delays(7)},
      cuda_on_sim("CudaOnSim", {.seed = 1}, false),
      cuda_on_sim("CudaOnSimWithDeviceCode", {.seed = 2}, true),
      cuda_on_sim("CudaOnSimWithJitter", {.seed = 3, .jitter_ns = 5000}, true),
  };
}

void Conformance::SetUp() {
  const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const auto excluded = GetParam().excluded.find(test.substr(0, test.find('/')));
  if (excluded != GetParam().excluded.end()) GTEST_SKIP() << excluded->second;
  if (!GetParam().sim) return;
  sim_ = std::make_unique<SimBench>(*GetParam().sim, GetParam().with_device_code);
  sim_memory_ = std::make_unique<SimMemory>(*sim_);
}

Device Conformance::make_device() const {
  return sim_ ? sim_->make_device() : host::make_device(GetParam().host);
}

Result<Recording> Conformance::record(const Plan& plan, const Device& device,
                                      const RegionTable& regions) {
  return anabranch::record(plan, device, sim_ ? sim_->kernels_of(plan, regions) : regions);
}

void Conformance::launch_and_wait(const Recording& recording, const SlotMemory& memory) {
  const Status ended = must(launch(recording, memory.bindings())).wait();
  EXPECT_TRUE(ended.ok()) << ended.message();
}

void Conformance::put_word(SlotMemory& memory, std::size_t slot, std::uint64_t word) {
  std::memcpy(memory.bytes(slot).data(), &word, sizeof word);
}

std::uint64_t Conformance::get_word(SlotMemory& memory, std::size_t slot) {
  std::uint64_t word = 0;
  std::memcpy(&word, memory.bytes(slot).data(), sizeof word);
  return word;
}

std::uint64_t Conformance::run(const Recording& recording, std::uint64_t x) {
  SlotMemory memory(recording.plan(), source());
  put_word(memory, 0, x);
  launch_and_wait(recording, memory);
  return get_word(memory, 1);
}

Status Conformance::fail(const Recording& recording) {
  SlotMemory memory(recording.plan(), source());
  put_word(memory, 0, 1);
  const Result<Ticket> result = launch(recording, memory.bindings());
  return result.ok() ? Status() : result.error();
}

}  // namespace anabranch::testing
