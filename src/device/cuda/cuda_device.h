// SPDX-License-Identifier: Apache-2.0
// One CUDA device as recordings need it: the driver, the device's primary context (the one that
// torch and the CUDA runtime use), and our own device code in it.
// Ownership: shared; recordings keep theirs alive. Holds the primary context until it goes.
// Threads:   any; immutable once made. Whoever calls the driver holds a ContextScope; making one
//            and its end leave the calling thread its context.
// Failure:   no driver, no such device, no memory for a context: a Status. No device code is no
//            failure but a reason, see why_no_device_code().
// Edges:     after fork() a child must make its own; CUDA cannot be used in it.
#pragma once

#include <memory>
#include <string>

#include "anabranch/status.h"
#include "device/cuda/device_code.h"
#include "device/cuda/driver.h"

namespace anabranch::cuda {

class CudaDevice {
 public:
  // The device with this number of the system's driver.
  static Result<std::shared_ptr<CudaDevice>> open(int ordinal);
  // Of this driver, which must outlive it; `image` takes the place of the library's device code.
  static Result<std::shared_ptr<CudaDevice>> make(const Driver& driver, int ordinal,
                                                  const void* image = nullptr);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  CuContext context() const { return context_; }

  // Null where addresses can only be set from the host.
  const DeviceCode* device_code() const { return device_code_.get(); }
  const std::string& why_no_device_code() const { return why_no_device_code_; }
  // See tensor_maps.h.
  const std::string& why_tensor_maps_are_opaque() const { return why_tensor_maps_are_opaque_; }

 private:
  CudaDevice(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status retain();

  const Driver& driver_;
  const int ordinal_;
  CuDevice device_ = 0;
  CuContext context_ = nullptr;
  std::unique_ptr<DeviceCode> device_code_;
  std::string why_no_device_code_, why_tensor_maps_are_opaque_;
};

}  // namespace anabranch::cuda
