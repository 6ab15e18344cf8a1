// SPDX-License-Identifier: Apache-2.0
// The kernels at the root of a re-pointed graph: the first fetches the addresses of the launch, the
// second writes them into the parameters of the nodes that run after it, one thread a site. Of the
// host's memory each word is read once: a read takes a microsecond and more, and only some hundred
// are under way at a time. Built where nvcc is; see device_code.h.
#include <cstdint>

#include "device/cuda/device_code.h"

using anabranch::cuda::FetchParams;
using anabranch::cuda::kHostTables;
using anabranch::cuda::SiteUpdate;
using anabranch::cuda::UpdateParams;

extern "C" __global__ void anabranch_fetch(FetchParams params) {
  auto* const launches = reinterpret_cast<std::uint64_t*>(params.launches);
  const std::uint64_t launch = *launches;
  const auto* const from = reinterpret_cast<const std::uint64_t*>(params.host_tables) +
                           launch % kHostTables * params.count;
  auto* const to = reinterpret_cast<std::uint64_t*>(params.table);
  for (std::uint64_t i = threadIdx.x; i < params.count; i += blockDim.x) to[i] = from[i];
  __syncthreads();  // all have read it
  if (threadIdx.x == 0) *launches = launch + 1;
}

extern "C" __global__ void anabranch_update(UpdateParams params) {
  const std::uint64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= params.count) return;
  const SiteUpdate update = reinterpret_cast<const SiteUpdate*>(params.updates)[i];
  const std::uint64_t address =
      reinterpret_cast<const std::uint64_t*>(params.table)[update.unit] + update.shift;
  cudaGraphKernelNodeSetParam(reinterpret_cast<cudaGraphDeviceNode_t>(update.node), update.offset,
                              &address, sizeof address);
}
