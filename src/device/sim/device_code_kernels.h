// SPDX-License-Identifier: Apache-2.0
// The kernels of device/cuda/*.cu as kernels of the simulated driver.
// Ownership: a SimDriver owns what is added to it.
// Threads:   kernels run under the simulator's lock.
// Failure:   an access to memory that is not live loses the context, as on a device.
// Edges:     grids and blocks are not looked at: one call does the whole work.
#pragma once

#include <string>

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

inline Kernel copy_kernel() {
  return {.name = "anabranch_copy",
          .params = {{0, sizeof(cuda::CopyParams)}},
          .run = [](const KernelCall& call) {
            const auto box = call.param<cuda::CopyParams>(0);
            for (std::uint64_t z = 0; z < box.depth; ++z) {
              for (std::uint64_t y = 0; y < box.height; ++y) {
                const auto* from = call.memory<std::byte>(
                    box.from + z * box.from_slice + y * box.from_pitch, box.width_bytes);
                auto* to = call.memory<std::byte>(box.to + z * box.to_slice + y * box.to_pitch,
                                                  box.width_bytes);
                if (!from || !to) return;
                std::memcpy(to, from, box.width_bytes);
              }
            }
          }};
}

inline Kernel fill_kernel() {
  return {.name = "anabranch_fill",
          .params = {{0, sizeof(cuda::FillParams)}},
          .run = [](const KernelCall& call) {
            const auto rows = call.param<cuda::FillParams>(0);
            for (std::uint64_t y = 0; y < rows.height; ++y) {
              auto* to = call.memory<std::uint8_t>(rows.to + y * rows.pitch, rows.width_bytes);
              for (std::uint64_t x = 0; to && x < rows.width_bytes; ++x) {
                to[x] = static_cast<std::uint8_t>(rows.word >> (x % sizeof rows.word * 8));
              }
            }
          }};
}

inline Kernel table_kernel() {
  return {.name = "anabranch_table",
          .params = {{0, sizeof(cuda::TableParams)}},
          .run = [](const KernelCall& call) {
            const auto table = call.param<cuda::TableParams>(0);
            const auto* from = call.memory<std::byte>(table.from, table.bytes);
            auto* to = call.memory<std::byte>(table.to, table.bytes);
            if (!from || !to) return;
            std::memcpy(to, from, table.bytes);
            for (std::uint32_t i = 0; i < table.count; ++i) {
              std::memcpy(to + table.places[i], &table.words[i], sizeof table.words[i]);
            }
          }};
}

// Adds them all, and answers an image that names them, for DeviceCode::load().
inline std::string add_device_code(SimDriver& sim) {
  for (const auto make : {updater_kernel, copy_kernel, fill_kernel, table_kernel}) {
    sim.add_kernel(make());
  }
  return SimDriver::make_image(
      {"anabranch_update", "anabranch_copy", "anabranch_fill", "anabranch_table"});
}

}  // namespace anabranch::sim
