// SPDX-License-Identifier: Apache-2.0
// The kernel at the root of a re-pointed graph: writes addresses into the parameters of the nodes
// that run after it. One thread a site. Built where nvcc is; see device_code.h.
#include <cstdint>

#include "device/cuda/device_code.h"

extern "C" __global__ void anabranch_update(const anabranch::cuda::SiteUpdate* updates,
                                            const std::uint64_t* addresses, std::uint32_t count) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const anabranch::cuda::SiteUpdate update = updates[i];
  const std::uint64_t address = addresses[update.unit] + update.shift;
  cudaGraphKernelNodeSetParam(reinterpret_cast<cudaGraphDeviceNode_t>(update.node), update.offset,
                              &address, sizeof address);
}
