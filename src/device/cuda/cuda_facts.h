// SPDX-License-Identifier: Apache-2.0
// What a driver and its GPUs are, for people to read: the parts of describe_cuda() in device.h.
#pragma once

#include "anabranch/device.h"
#include "device/cuda/driver.h"

namespace anabranch::cuda {

// Initialises the driver. A driver without a GPU is no failure but a reason.
CudaFacts facts_of(const Driver& driver);

}  // namespace anabranch::cuda
