// SPDX-License-Identifier: Apache-2.0
// Kernels of our own, embedded in the library: what device code does for recordings.
// Ownership: a DeviceCode owns its module; unload it before its context goes.
// Threads:   values; load() for the current context.
// Failure:   load() is a Status: where the library was built without nvcc, or the driver is older
//            than 12.4, there is none, and addresses are set from the host.
// Edges:     also included by the device code itself, so nothing here but plain types for nvcc.
#pragma once

#include <cstdint>

#ifndef __CUDACC__
#include <memory>

#include "anabranch/status.h"
#include "device/cuda/driver.h"
#endif

namespace anabranch::cuda {

// Writes addresses[unit] + shift at `offset` of the parameters of `node`; `unit` numbers the table
// that a launch sends along.
struct SiteUpdate {
  std::uint64_t node = 0;  // a CuDeviceNode
  std::uint64_t shift = 0;
  std::uint32_t offset = 0;
  std::uint32_t unit = 0;
};
static_assert(sizeof(SiteUpdate) == 24);

inline constexpr std::uint32_t kUpdaterBlock = 128;  // threads

#ifndef __CUDACC__
class DeviceCode {
 public:
  // The module embedded in the library, or `image` in its place.
  static Result<std::unique_ptr<DeviceCode>> load(const Driver& driver,
                                                  const void* image = nullptr);
  ~DeviceCode();
  DeviceCode(const DeviceCode&) = delete;
  DeviceCode& operator=(const DeviceCode&) = delete;

  // anabranch_update(const SiteUpdate* updates, const uint64_t* addresses, uint32_t count)
  CuFunction update() const { return update_; }

 private:
  explicit DeviceCode(const Driver& driver) : driver_(driver) {}
  const Driver& driver_;
  CuModule module_ = nullptr;
  CuFunction update_ = nullptr;
};
#endif

}  // namespace anabranch::cuda
