// SPDX-License-Identifier: Apache-2.0
// When tensors must be on the device under given choices, and the least memory that takes.
// Ownership: values.
// Threads:   pure.
// Failure:   none; the problem passed check_problem.
// Edges:     a tensor whose uses leave no step between forward and backward frees nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/experimental/offload.h"

namespace anabranch::offload {

// In the backward: from the first step that needs it to the last.
struct Stay {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};

// By tensor. What is computed again needs others from where it is needed itself.
std::vector<Stay> find_stays(const Problem& problem, std::span<const Choice> choices);

// By step: base, and saved tensors of which those that do not stay are there only where they must.
std::vector<std::int64_t> find_floor(const Problem& problem, std::span<const Choice> choices,
                                     std::span<const Stay> stays);

// Adds `bytes` to the steps from `begin` to before `end`.
void add_bytes(std::vector<std::int64_t>& by_step, std::uint32_t begin, std::uint32_t end,
               std::int64_t bytes);

std::int64_t find_peak(std::span<const std::int64_t> by_step);

inline std::int64_t bytes_of(const Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.size_bytes);
}
// What it takes of pinned memory.
inline std::uint64_t pinned_bytes_of(const Tensor& tensor) {
  return (tensor.size_bytes + kPinnedAlignment - 1) / kPinnedAlignment * kPinnedAlignment;
}
// How long a copy takes while the other queue is idle.
inline double out_ns(const Problem& problem, const Tensor& tensor) {
  return static_cast<double>(problem.link.latency_ns) +
         static_cast<double>(tensor.size_bytes) * 1e9 / problem.link.out_bytes_per_s;
}
inline double in_ns(const Problem& problem, const Tensor& tensor) {
  return static_cast<double>(problem.link.latency_ns) +
         static_cast<double>(tensor.size_bytes) * 1e9 / problem.link.in_bytes_per_s;
}

}  // namespace anabranch::offload
