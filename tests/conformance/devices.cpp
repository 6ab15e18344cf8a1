// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include "device/host/team_testing.h"

namespace anabranch::testing {
namespace {

HostOptions host_options(std::uint32_t lanes, std::uint64_t spin_ns) {
  HostOptions options;
  options.max_lanes = lanes;
  options.spin_ns = spin_ns;
  return options;
}

HostOptions host_with_delays(std::uint64_t seed) {
  HostOptions options = host_options(4, 50'000);
  options.delays_seed = seed;
  return options;
}

HostOptions host_with_team(std::uint32_t lanes, unsigned members) {
  HostOptions options = host_options(lanes, 50'000);
  options.threads = ThreadTeam::control(1, members);
  return options;
}

}  // namespace

std::vector<DeviceCase> device_cases() {
  return {
      {"HostOfOneLane", host_options(1, 50'000)},
      {"HostOfTwoLanes", host_options(2, 50'000)},
      {"HostOfFourLanesThatSleepAtOnce", host_options(4, 0)},
      {"HostWithATeam", host_with_team(4, 64)},
      {"HostWithDelays", host_with_delays(7)},
  };
}

}  // namespace anabranch::testing
