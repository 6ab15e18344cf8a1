// SPDX-License-Identifier: Apache-2.0
// The kernels of device/cuda/*.cu as kernels of the simulated driver.
// Ownership: a SimDriver owns what is added to it.
// Threads:   kernels run under the simulator's lock.
// Failure:   an access to memory that is not live loses the context, as on a device.
// Edges:     grids and blocks are not looked at: one call does the whole work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "device/cuda/device_code.h"
#include "device/sim/sim_driver.h"

namespace anabranch::sim {

// The launch's table, counted; null where an access failed.
inline const std::uint64_t* fetch_table(const KernelCall& call, cuda::CuDevicePtr host_tables,
                                        cuda::CuDevicePtr launches, std::uint64_t count) {
  auto* launch = call.memory<std::uint64_t>(launches, 1);
  if (!launch) return nullptr;
  const std::size_t bytes = count * sizeof(std::uint64_t);
  const auto* from =
      call.memory<std::uint64_t>(host_tables + *launch % cuda::kHostTables * bytes, count);
  if (from) ++*launch;
  return from;
}

// A refused update leaves the old address, and shows as a wrong result.
template <typename AddressOf>
void set_sites(const KernelCall& call, cuda::CuDevicePtr updates, std::uint64_t count,
               AddressOf address_of) {
  const auto* sites = call.memory<cuda::SiteUpdate>(updates, count);
  for (std::uint64_t i = 0; sites && i < count; ++i) {
    const cuda::SiteUpdate& site = sites[i];
    const std::uint64_t* address = address_of(site.unit);
    if (!address) return;
    const std::uint64_t value = *address + site.shift;
    // As updater.cu does it: of any other width, more than there is.
    const bool is_narrow =
        site.bytes == sizeof(std::uint16_t) || site.bytes == sizeof(std::uint32_t);
    SimDriver::update_param(reinterpret_cast<cuda::CuDeviceNode>(site.node), site.offset, &value,
                            is_narrow ? site.bytes : sizeof value);
  }
}

inline Kernel fetch_kernel() {
  return {.name = "anabranch_fetch",
          .params = {{0, sizeof(cuda::FetchParams)}},
          .run = [](const KernelCall& call) {
            const auto params = call.param<cuda::FetchParams>(0);
            const auto* from = fetch_table(call, params.host_tables, params.launches, params.count);
            auto* to = call.memory<std::uint64_t>(params.table, params.count);
            if (from && to) std::copy_n(from, params.count, to);
          }};
}

inline Kernel update_kernel() {
  return {.name = "anabranch_update",
          .params = {{0, sizeof(cuda::UpdateParams)}},
          .run = [](const KernelCall& call) {
            const auto params = call.param<cuda::UpdateParams>(0);
            set_sites(call, params.updates, params.count, [&](std::uint32_t unit) {
              return call.memory<std::uint64_t>(params.table + cuda::CuDevicePtr{8} * unit, 1);
            });
          }};
}

inline Kernel repoint_kernel() {
  return {.name = "anabranch_repoint",
          .params = {{0, sizeof(cuda::RepointParams)}},
          .run = [](const KernelCall& call) {
            const auto params = call.param<cuda::RepointParams>(0);
            const auto* table =
                fetch_table(call, params.host_tables, params.launches, params.addresses);
            if (!table) return;
            set_sites(call, params.updates, params.count,
                      [&](std::uint32_t unit) { return table + unit; });
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

// The definition of device/cuda/checksums.h, word by word.
inline std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

inline cuda::Checksum checksum_of(std::span<const std::uint8_t> bytes) {
  constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15, kWords = cuda::kChecksumPiece / 8;
  cuda::Checksum sums;
  for (std::uint64_t i = 0; i * 8 < bytes.size(); ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * 8, std::min<std::size_t>(8, bytes.size() - i * 8));
    const std::uint64_t place = mix(kGolden * (i % kWords + 1)) + kGolden * (i / kWords);
    const std::uint64_t once = mix(word + place);
    sums.first += once;
    sums.second += mix(once);
  }
  return sums;
}

inline Kernel checksum_kernel() {
  return {.name = "anabranch_checksum",
          .params = {{0, sizeof(cuda::ChecksumParams)}},
          .run = [](const KernelCall& call) {
            const auto params = call.param<cuda::ChecksumParams>(0);
            const auto* ranges = call.memory<cuda::ChecksumRange>(params.ranges, params.count);
            auto* sums = call.memory<cuda::Checksum>(params.sums, params.count);
            for (std::uint64_t i = 0; ranges && sums && i < params.count; ++i) {
              if (ranges[i].bytes == 0) continue;
              const auto* bytes = call.memory<std::uint8_t>(ranges[i].begin, ranges[i].bytes);
              if (!bytes) return;
              const cuda::Checksum found = checksum_of({bytes, ranges[i].bytes});
              sums[i].first += found.first;
              sums[i].second += found.second;
            }
          }};
}

// Adds them all, and answers an image that names them, for DeviceCode::load().
inline std::string add_device_code(SimDriver& sim) {
  for (const auto make : {fetch_kernel, update_kernel, repoint_kernel, copy_kernel, fill_kernel,
                          table_kernel, checksum_kernel}) {
    sim.add_kernel(make());
  }
  return SimDriver::make_image({"anabranch_fetch", "anabranch_update", "anabranch_repoint",
                                "anabranch_copy", "anabranch_fill", "anabranch_table",
                                "anabranch_checksum"});
}

}  // namespace anabranch::sim
