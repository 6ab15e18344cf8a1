// SPDX-License-Identifier: Apache-2.0
#include "device/host/host_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

namespace anabranch::host {
namespace {

DeviceOptions with_lanes(std::uint32_t lanes) {
  DeviceOptions options;
  options.max_lanes = lanes;
  return options;
}

TEST(HostDevice, HasAsManyLanesAsAskedForOrAsTheMachineHasCores) {
  EXPECT_EQ(HostDevice(with_lanes(3)).max_lanes(), 3u);
  EXPECT_EQ(HostDevice({}).max_lanes(), std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_EQ(Device::host(with_lanes(1)).name(), "host, 1 lane");
  EXPECT_EQ(Device::host(with_lanes(4)).name(), "host, 4 lanes");
}

TEST(HostDevice, LeasesNothingBeforeWorkersArePrepared) {
  HostDevice device(with_lanes(3));
  EXPECT_FALSE(device.lease(1));
}

TEST(HostDevice, LeasesOneCrewAtATimeUntilOneWasMissed) {
  HostDevice device(with_lanes(3));
  ASSERT_TRUE(device.prepare_workers(2).ok());
  {
    const CrewLease first = device.lease(2);
    EXPECT_TRUE(first);
    EXPECT_FALSE(device.lease(2));
    // The launch that found no crew is why the next recording brings one.
    ASSERT_TRUE(device.prepare_workers(1).ok());
    const CrewLease second = device.lease(2);
    EXPECT_TRUE(second);
    EXPECT_NE(&*first, &*second);
  }
  EXPECT_TRUE(device.lease(2));
}

TEST(HostDevice, StopsMakingCrewsAtItsLimit) {
  HostDevice device(with_lanes(2));
  for (std::uint32_t i = 0; i < 2 * kMaxCrews; ++i) {
    ASSERT_TRUE(device.prepare_workers(1).ok());
    std::vector<std::unique_ptr<CrewLease>> leases;
    do {
      leases.push_back(std::unique_ptr<CrewLease>(new CrewLease(device.lease(1))));
    } while (*leases.back());
    EXPECT_EQ(leases.size() - 1, std::min(i + 1, kMaxCrews));
  }
}

TEST(HostDevice, LeasesNoCrewSmallerThanAskedFor) {
  HostDevice device(with_lanes(4));
  ASSERT_TRUE(device.prepare_workers(1).ok());
  EXPECT_FALSE(device.lease(2));
  ASSERT_TRUE(device.prepare_workers(3).ok());
  EXPECT_TRUE(device.lease(3));
}

}  // namespace
}  // namespace anabranch::host
