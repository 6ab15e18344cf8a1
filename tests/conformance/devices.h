// SPDX-License-Identifier: Apache-2.0
// The devices that the conformance suite runs on, and what its tests need of each. A new device is
// one more entry in devices.cpp.
#pragma once

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "anabranch/device.h"
#include "anabranch/experimental/thread_control.h"
#include "launch/sim_memory_testing.h"

namespace anabranch::testing {

struct DeviceCase {
  std::string name;
  host::DeviceOptions host{};
  std::optional<sim::SimOptions> sim{};  // the CUDA device of a simulated driver instead
  bool with_device_code = false;
  std::map<std::string, std::string> excluded{};  // names of tests, and why
};

inline void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.name; }

std::vector<DeviceCase> device_cases();

class Conformance : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override;

  Device make_device() const;
  Result<Recording> record(const Plan& plan, const Device& device, const RegionTable& regions);
  MemorySource& source() { return sim_memory_ ? *sim_memory_ : HostMemory::get(); }
  // What host steps of a program become.
  StepKind host_steps() const { return sim_ ? StepKind::kCompute : StepKind::kHost; }

  void launch_and_wait(const Recording& recording, const SlotMemory& memory);
  static void put_word(SlotMemory& memory, std::size_t slot, std::uint64_t word);
  static std::uint64_t get_word(SlotMemory& memory, std::size_t slot);
  // One launch of a recording with a word as input and a word as output.
  std::uint64_t run(const Recording& recording, std::uint64_t x);
  Status fail(const Recording& recording);

 private:
  std::unique_ptr<SimBench> sim_;
  std::unique_ptr<MemorySource> sim_memory_;
};

}  // namespace anabranch::testing
