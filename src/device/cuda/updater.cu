// SPDX-License-Identifier: Apache-2.0
// The kernels at the root of a re-pointed graph: one fetches the addresses of the launch, one
// writes them into the parameters of the nodes that run after it, one thread a site; in small
// graphs one does both. Of the host's memory each word is read once: a read takes a microsecond and
// more, and only some hundred are under way at a time. Built where nvcc is; see device_code.h.
#include <cstdint>

#include "device/cuda/device_code.h"

using anabranch::cuda::FetchParams;
using anabranch::cuda::kHostTables;
using anabranch::cuda::kMostRepointed;
using anabranch::cuda::RepointParams;
using anabranch::cuda::SiteUpdate;
using anabranch::cuda::UpdateParams;

namespace {

template <typename Word>
__device__ void set_word(const SiteUpdate& update, Word word) {
  cudaGraphKernelNodeSetParam(reinterpret_cast<cudaGraphDeviceNode_t>(update.node), update.offset,
                              word);
}

__device__ void set_site(const SiteUpdate& update, std::uint64_t word) {
  switch (update.bytes) {
    case sizeof(std::uint16_t):
      return set_word(update, static_cast<std::uint16_t>(word));
    case sizeof(std::uint32_t):
      return set_word(update, static_cast<std::uint32_t>(word));
    default:
      return set_word(update, word);
  }
}

// All threads of the one block. Copies the launch's table and counts the launch.
__device__ void fetch_table(std::uint64_t host_tables, std::uint64_t* launches, std::uint64_t count,
                            std::uint64_t* to) {
  const std::uint64_t launch = *launches;
  const auto* const from =
      reinterpret_cast<const std::uint64_t*>(host_tables) + launch % kHostTables * count;
  for (std::uint64_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
  __syncthreads();  // all have read the count
  if (threadIdx.x == 0) *launches = launch + 1;
}

}  // namespace

extern "C" __global__ void anabranch_fetch(FetchParams params) {
  fetch_table(params.host_tables, reinterpret_cast<std::uint64_t*>(params.launches), params.count,
              reinterpret_cast<std::uint64_t*>(params.table));
}

extern "C" __global__ void anabranch_update(UpdateParams params) {
  const std::uint64_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= params.count) return;
  const SiteUpdate update = reinterpret_cast<const SiteUpdate*>(params.updates)[i];
  const auto* const table = reinterpret_cast<const std::uint64_t*>(params.table);
  set_site(update, table[update.unit] + update.shift);
}

extern "C" __global__ void anabranch_repoint(RepointParams params) {
  __shared__ std::uint64_t table[kMostRepointed];
  const bool has_update = threadIdx.x < params.count;
  SiteUpdate update;
  if (has_update) update = reinterpret_cast<const SiteUpdate*>(params.updates)[threadIdx.x];
  fetch_table(params.host_tables, reinterpret_cast<std::uint64_t*>(params.launches),
              params.addresses, table);
  if (has_update) set_site(update, table[update.unit] + update.shift);
}
