// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/memory_window.h"

#include <algorithm>

namespace anabranch::cuda {

MemoryWindow::MemoryWindow(const StepGraph& step, std::span<const std::uint64_t> unit_bytes,
                           std::uint64_t bytes)
    : is_first_(step.facts.size()), bytes_(bytes) {
  if (bytes == kNoBound) return;
  std::vector<Use> by_unit(unit_bytes.size());
  for (const Site& site : step.sites) {
    Use& use = by_unit[site.unit];
    use.bytes = unit_bytes[site.unit];
    if (use.nodes.empty() || use.nodes.back() != site.node) use.nodes.push_back(site.node);
  }
  for (Use& use : by_unit) {
    if (use.bytes == 0) continue;
    is_first_[use.nodes.front()] = true;
    uses_.push_back(std::move(use));
  }
  std::stable_sort(uses_.begin(), uses_.end(),
                   [](const Use& a, const Use& b) { return a.nodes.back() < b.nodes.back(); });
}

std::span<const std::uint32_t> MemoryWindow::waits_of(std::uint32_t node,
                                                      const Reachability& before) {
  if (!is_first_[node]) return {};
  for (; dead_ < uses_.size() && uses_[dead_].nodes.back() < node; ++dead_) {
    held_ += uses_[dead_].bytes;
  }
  for (; held_ > bytes_; ++awaited_) {
    held_ -= uses_[awaited_].bytes;
    for (const std::uint32_t user : uses_[awaited_].nodes) add(user, before);
  }
  return last_;
}

void MemoryWindow::add(std::uint32_t node, const Reachability& before) {
  const auto is_behind = [&](std::uint32_t other) {
    return other == node || before.contains(other, node);
  };
  if (std::any_of(last_.begin(), last_.end(), is_behind)) return;
  std::erase_if(last_, [&](std::uint32_t other) { return before.contains(node, other); });
  last_.push_back(node);
}

}  // namespace anabranch::cuda
