// SPDX-License-Identifier: Apache-2.0
#include "offload/lives.h"

#include <algorithm>

namespace anabranch::offload {

std::vector<Stay> find_stays(const Problem& problem, std::span<const Choice> choices) {
  const std::vector<Tensor>& tensors = problem.tensors;
  std::vector<Stay> stays;
  stays.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    stays.push_back({tensor.first_backward_use, tensor.last_backward_use});
  }
  // Needs stand before those that need them, so that a chain is followed from its end.
  for (std::size_t i = tensors.size(); i-- > 0;) {
    if (choices[i] != Choice::kRecompute) continue;
    for (const std::uint32_t need : tensors[i].needs) {
      stays[need].first = std::min(stays[need].first, stays[i].first);
      stays[need].last = std::max(stays[need].last, stays[i].first);
    }
  }
  return stays;
}

std::vector<std::int64_t> find_floor(const Problem& problem, std::span<const Choice> choices,
                                     std::span<const Stay> stays) {
  const std::size_t steps = problem.step_ns.size();
  std::vector<std::int64_t> changes(steps + 1, 0);
  for (std::size_t i = 0; i < stays.size(); ++i) {
    const Tensor& tensor = problem.tensors[i];
    changes[tensor.made_after] += bytes_of(tensor);
    changes[stays[i].last + 1] -= bytes_of(tensor);
    if (choices[i] == Choice::kKeep) continue;
    changes[tensor.last_forward_use + 1] -= bytes_of(tensor);
    changes[stays[i].first] += bytes_of(tensor);
  }
  std::vector<std::int64_t> floor(steps, 0);
  std::int64_t saved = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    saved += changes[step];
    const std::uint64_t base = problem.base_bytes.empty() ? 0 : problem.base_bytes[step];
    floor[step] = saved + static_cast<std::int64_t>(base);
  }
  return floor;
}

void add_bytes(std::vector<std::int64_t>& by_step, std::uint32_t begin, std::uint32_t end,
               std::int64_t bytes) {
  for (std::uint32_t step = begin; step < end; ++step) by_step[step] += bytes;
}

std::int64_t find_peak(std::span<const std::int64_t> by_step) {
  return by_step.empty() ? 0 : *std::max_element(by_step.begin(), by_step.end());
}

}  // namespace anabranch::offload
