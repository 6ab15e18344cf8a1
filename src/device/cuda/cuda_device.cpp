// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_device.h"

#include "device/cuda/context_scope.h"
#include "device/cuda/tensor_maps.h"

namespace anabranch::cuda {

Result<std::shared_ptr<CudaDevice>> CudaDevice::open(int ordinal) {
  const auto driver = load_driver();
  if (!driver.ok()) return driver.error();
  return make(**driver, ordinal);
}

Result<std::shared_ptr<CudaDevice>> CudaDevice::make(const Driver& driver, int ordinal,
                                                     const void* image) {
  std::shared_ptr<CudaDevice> made(new CudaDevice(driver, ordinal));
  if (Status retained = made->retain(); !retained.ok()) return retained;
  const ContextScope current(*made);
  if (!current.status().ok()) return current.status();
  auto code = DeviceCode::load(driver, image);
  if (code.ok()) {
    made->device_code_ = *std::move(code);
  } else {
    made->why_no_device_code_ = code.error().message();
  }
  made->why_tensor_maps_are_opaque_ = cuda::why_tensor_maps_are_opaque(driver, made->device_);
  return made;
}

Status CudaDevice::retain() {
  if (Status begun = recorded("cuInit", driver_.cuInit(0)); !begun.ok()) return begun;
  if (Status got = recorded("cuDeviceGet", driver_.cuDeviceGet(&device_, ordinal_)); !got.ok()) {
    return got;
  }
  return recorded("cuDevicePrimaryCtxRetain", driver_.cuDevicePrimaryCtxRetain(&context_, device_));
}

CudaDevice::~CudaDevice() {
  if (!context_) return;
  if (device_code_) {
    const ContextScope current(*this);
    if (current.status().ok()) device_code_.reset();
  }
  driver_.cuDevicePrimaryCtxRelease(device_);
}

}  // namespace anabranch::cuda
