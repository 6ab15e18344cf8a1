// SPDX-License-Identifier: Apache-2.0
// Rates that copy engines reached between pinned memory and one GPU, as others have published them.
// A machine's own are to be measured: rates differ between boards of one kind. No source has the
// latency of one copy, so it is 0.
#include "anabranch/experimental/offload.h"

namespace anabranch::offload {
namespace {

constexpr NamedLink kLinks[] = {
    // A100: 24.8 in, about 25 out; both ways at once 24 out and 11 in, so 0.7 of both.
    // https://forums.developer.nvidia.com/t/352186 and NVIDIA/nvbandwidth issues 11 and 53.
    {"pcie4-x16", {.out_bytes_per_s = 25e9, .in_bytes_per_s = 24.8e9, .both_ways = 0.7}},
    // In: H200, 2 GiB in 38.9 ms (bench/results/gpu_copies.json). Out: H100, 52.8 (nvbandwidth
    // issue
    // 24). Both ways: no source; as on PCIe 4.
    {"pcie5-x16", {.out_bytes_per_s = 52.8e9, .in_bytes_per_s = 55.1e9, .both_ways = 0.7}},
    // One GH200: 342 in, 295 out (vllm-project/vllm pull request 6496); both ways at once half of
    // it
    // (nvbandwidth issue 41). Nodes of four reach 411 to 421 in, and 170 out (NVIDIA/Megatron-LM
    // issue 6491).
    {"nvlink-c2c-gh200", {.out_bytes_per_s = 295e9, .in_bytes_per_s = 342e9, .both_ways = 0.5}},
    // A GB300, which has the same link: 211 in, 193 out (NVIDIA/Megatron-LM issue 6491), of nominal
    // 225, since two GPUs share the 900 GB/s of their CPU. Both ways: no source; as on GH200.
    {"nvlink-c2c-gb200", {.out_bytes_per_s = 193e9, .in_bytes_per_s = 211e9, .both_ways = 0.5}},
};

}  // namespace

std::span<const NamedLink> known_links() { return kLinks; }

}  // namespace anabranch::offload
