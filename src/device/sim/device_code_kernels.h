// SPDX-License-Identifier: Apache-2.0
// The updater of device/cuda/updater.cu as a kernel of the simulated driver.
#pragma once

#include "device/cuda/device_code.h"
#include "device/sim/sim_driver.h"

namespace anabranch::sim {

inline Kernel updater_kernel() {
  return {.name = "anabranch_update",
          .params = layout_of({8, 8, 4}),
          .run = [](const KernelCall& call) {
            const auto count = call.param<std::uint32_t>(16);
            const auto* updates =
                call.memory<cuda::SiteUpdate>(call.param<cuda::CuDevicePtr>(0), count);
            for (std::uint32_t i = 0; updates && i < count; ++i) {
              const cuda::SiteUpdate& site = updates[i];
              const auto* address = call.memory<std::uint64_t>(
                  call.param<cuda::CuDevicePtr>(8) + cuda::CuDevicePtr{8} * site.unit, 1);
              if (!address) return;
              const std::uint64_t value = *address + site.shift;
              // A refused update leaves the old address, and shows as a wrong result.
              SimDriver::update_param(reinterpret_cast<cuda::CuDeviceNode>(site.node), site.offset,
                                      &value, sizeof value);
            }
          }};
}

}  // namespace anabranch::sim
