// SPDX-License-Identifier: Apache-2.0
// The devices that the conformance suite runs on. A new device is one more entry in devices.cpp.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "anabranch/device.h"

namespace anabranch::testing {

struct DeviceCase {
  std::string name;
  HostOptions options;
  Device make() const { return Device::host(options); }
};

std::vector<DeviceCase> device_cases();

class Conformance : public ::testing::TestWithParam<DeviceCase> {};

}  // namespace anabranch::testing
