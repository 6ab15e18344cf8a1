// SPDX-License-Identifier: Apache-2.0
// Devices and contexts: one primary context a device.
#include <algorithm>
#include <cstdio>

#include "device/sim/machine.h"

namespace anabranch::sim {
namespace {

// A device like those that the design was measured on.
int attribute_of(CuDeviceAttribute attribute) {
  switch (attribute) {
    case CuDeviceAttribute::kMaxThreadsPerBlock:
      return 1024;
    case CuDeviceAttribute::kMaxSharedMemoryPerBlock:
      return kPlainSharedBytes;
    case CuDeviceAttribute::kMaxSharedMemoryPerBlockOptin:
      return kMostSharedBytes;
    case CuDeviceAttribute::kWarpSize:
      return 32;
    case CuDeviceAttribute::kMultiprocessorCount:
      return 132;
    case CuDeviceAttribute::kComputeCapabilityMajor:
      return 9;
    case CuDeviceAttribute::kUnifiedAddressing:
    case CuDeviceAttribute::kCooperativeLaunch:
    case CuDeviceAttribute::kVirtualMemoryManagement:
    case CuDeviceAttribute::kTensorMapAccess:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

CuResult Machine::cuInit(unsigned flags) {
  if (flags != 0) return CuResult::kInvalidValue;
  initialized_ = true;
  return options_.device_count > 0 ? CuResult::kSuccess : CuResult::kNoDevice;
}

CuResult Machine::cuDriverGetVersion(int* version) {
  *version = options_.driver_version;
  return CuResult::kSuccess;
}

CuResult Machine::cuDeviceGetCount(int* count) {
  if (!initialized_) return CuResult::kNotInitialized;
  *count = options_.device_count;
  return CuResult::kSuccess;
}

CuResult Machine::cuDeviceGet(CuDevice* device, int ordinal) {
  if (!initialized_) return CuResult::kNotInitialized;
  if (ordinal < 0 || ordinal >= options_.device_count) return CuResult::kInvalidDevice;
  *device = ordinal;
  return CuResult::kSuccess;
}

CuResult Machine::cuDeviceGetName(char* name, int bytes, CuDevice device) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "simulated device %d", device);
  return CuResult::kSuccess;
}

CuResult Machine::cuDeviceGetAttribute(int* value, CuDeviceAttribute attribute, CuDevice device) {
  if (device < 0 || device >= options_.device_count) return CuResult::kInvalidDevice;
  *value = attribute_of(attribute);
  return CuResult::kSuccess;
}

CuResult Machine::cuDeviceTotalMem(std::size_t* bytes, CuDevice device) {
  if (device < 0 || device >= options_.device_count) return CuResult::kInvalidDevice;
  *bytes = options_.device_bytes;
  return CuResult::kSuccess;
}

CuResult Machine::cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  if (device < 0 || device >= options_.device_count) return CuResult::kInvalidDevice;
  Device& of = devices_[static_cast<std::size_t>(device)];
  ++of.retained;
  *context = of.handle;
  return CuResult::kSuccess;
}

CuResult Machine::cuDevicePrimaryCtxRelease(CuDevice device) {
  if (device < 0 || device >= options_.device_count) return CuResult::kInvalidDevice;
  Device& of = devices_[static_cast<std::size_t>(device)];
  if (of.retained == 0) return CuResult::kInvalidContext;
  --of.retained;
  return CuResult::kSuccess;
}

CuResult Machine::cuDevicePrimaryCtxGetState(CuDevice device, unsigned* flags, int* is_active) {
  if (device < 0 || device >= options_.device_count) return CuResult::kInvalidDevice;
  *flags = 0;
  *is_active = devices_[static_cast<std::size_t>(device)].retained > 0 ? 1 : 0;
  return CuResult::kSuccess;
}

Device* Machine::current_device() {
  const auto it = current_.find(std::this_thread::get_id());
  return it == current_.end() ? nullptr : it->second;
}

CuResult Machine::cuCtxGetCurrent(CuContext* context) {
  const Device* const device = current_device();
  *context = device ? device->handle : nullptr;
  return initialized_ ? CuResult::kSuccess : CuResult::kNotInitialized;
}

CuResult Machine::cuCtxSetCurrent(CuContext context) {
  const auto device = std::find_if(devices_.begin(), devices_.end(),
                                   [&](const Device& d) { return d.handle == context; });
  if (context && (device == devices_.end() || device->retained == 0)) {
    return CuResult::kInvalidContext;
  }
  current_[std::this_thread::get_id()] = context ? &*device : nullptr;
  return CuResult::kSuccess;
}

CuResult Machine::cuCtxGetDevice(CuDevice* device) {
  const Device* const current = current_device();
  if (!current) return CuResult::kInvalidContext;
  *device = current->ordinal;
  return CuResult::kSuccess;
}

CuResult Machine::cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CuResult::kSuccess;
}

// A capture in the context would see nothing of it, whatever its mode.
CuResult Machine::cuCtxSynchronize() {
  if (!current_device()) return CuResult::kInvalidContext;
  for (const auto& capture : captures_) {
    if (capture->origin->device != current_device()) continue;
    invalidate(*capture);
    return CuResult::kStreamCaptureUnsupported;
  }
  engine_.run_all();
  check_damage();
  return sticky_;
}

}  // namespace anabranch::sim
