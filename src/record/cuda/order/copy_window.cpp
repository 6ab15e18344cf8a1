// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/copy_window.h"

#include <algorithm>
#include <cstddef>

namespace anabranch::cuda {
namespace {

struct Copy {
  std::uint32_t node = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> readers;  // nodes that use its unit, until copies fill it again
};

// Of those that are read, in the order of the capture.
std::vector<Copy> copies_with_readers(const StepGraph& step, std::size_t units) {
  std::vector<Copy> copies;
  std::vector<std::vector<std::size_t>> filling(units);  // the latest copies to each unit
  for (const Site& site : step.sites) {
    std::vector<std::size_t>& there = filling[site.unit];
    const HostBytes& host = step.facts[site.node].host_bytes;
    if (!host.empty() && !host.is_written) {
      if (!there.empty() && !copies[there.back()].readers.empty()) there.clear();
      there.push_back(copies.size());
      copies.push_back({site.node, site.bytes, {}});
      continue;
    }
    for (const std::size_t copy : there) copies[copy].readers.push_back(site.node);
  }
  std::erase_if(copies, [](const Copy& copy) { return copy.readers.empty(); });
  return copies;
}

// Copies by when the capture has read what they brought for the last time.
std::vector<const Copy*> by_last_reader(std::span<const Copy> copies) {
  std::vector<const Copy*> sorted;
  for (const Copy& copy : copies) sorted.push_back(&copy);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Copy* a, const Copy* b) {
    return a->readers.back() < b->readers.back();
  });
  return sorted;
}

std::uint64_t largest_of(std::span<const Copy* const> copies, const Copy& next) {
  std::uint64_t bytes = next.bytes;
  for (const Copy* copy : copies) bytes = std::max(bytes, copy->bytes);
  return bytes;
}

}  // namespace

std::vector<EdgeImage> find_window_edges(const StepGraph& step, std::size_t units,
                                         std::uint64_t ahead_bytes) {
  const std::vector<Copy> copies = copies_with_readers(step, units);
  const std::vector<const Copy*> read = by_last_reader(copies);
  auto first = read.begin(), last = read.begin();  // read, and perhaps there still
  std::uint64_t bytes = 0;                         // of these
  std::vector<EdgeImage> edges;
  for (const Copy& copy : copies) {
    // A node behind the copy before is behind all that that copy has waited for.
    if (first != read.begin()) edges.push_back({(&copy - 1)->node, copy.node, {}});
    for (; last != read.end() && (*last)->readers.back() < copy.node; ++last) {
      bytes += (*last)->bytes;
    }
    const auto is_above = [&](std::uint64_t bound) {
      const std::uint64_t all = bytes + copy.bytes;
      return all > bound && all > kLeastCopiesInWindow * largest_of({first, last}, copy);
    };
    const bool is_too_much = is_above(ahead_bytes);
    for (; first != last && is_too_much && is_above(ahead_bytes / 2); ++first) {
      bytes -= (*first)->bytes;
      for (const std::uint32_t reader : (*first)->readers) {
        edges.push_back({reader, copy.node, {}});
      }
    }
  }
  return edges;
}

}  // namespace anabranch::cuda
