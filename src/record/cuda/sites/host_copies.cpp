// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/host_copies.h"

#include <algorithm>

#include "record/cuda/image/copy_box.h"

namespace anabranch::cuda {
namespace {

// Copies of the runtime say what they copy between, or that addresses do.
Result<bool> is_on_host(const Driver& driver, CuMemoryType said, std::uint64_t address) {
  if (said == CuMemoryType::kUnified) return is_pinned(driver, address);
  return said == CuMemoryType::kHost;
}

// Its one site is where the device's side lies.
void tell(const CuMemcpy3D& copy, NodeFacts& facts, Site& site, bool to_device) {
  const std::uint64_t bytes = bytes_in_one_piece(copy);
  if (bytes == 0 || site.operand != (to_device ? Operand::kDestination : Operand::kSource)) return;
  // A site says where its operand begins, and so where its bytes do only if these are the same.
  if ((to_device ? destination_shift(copy) : source_shift(copy)) != 0) return;
  site.writes = to_device;
  site.bytes = bytes;
  const std::uint64_t begin = to_device ? source_of(copy) + source_shift(copy)
                                        : destination_of(copy) + destination_shift(copy);
  facts.host_bytes = {begin, begin + bytes, !to_device};
  facts.is_known = true;
}

Status look_at(const Driver& driver, const CuMemcpy3D& copy, NodeFacts& facts, Site& site) {
  const auto from_host = is_on_host(driver, copy.src_memory_type, source_of(copy));
  if (!from_host.ok()) return from_host.error();
  const auto to_host = is_on_host(driver, copy.dst_memory_type, destination_of(copy));
  if (!to_host.ok()) return to_host.error();
  if (*from_host != *to_host) tell(copy, facts, site, *from_host);
  return {};
}

}  // namespace

Status find_host_copies(const Driver& driver, std::span<const std::uint32_t> tables,
                        StepGraph& step) {
  auto& sites = step.sites;
  for (auto first = sites.begin(); first != sites.end();) {
    const auto last = std::find_if(first, sites.end(),
                                   [&](const Site& site) { return site.node != first->node; });
    const std::uint32_t number = first->node;
    const NodeImage& node = step.image.nodes[number];
    const bool is_table = std::binary_search(tables.begin(), tables.end(), number);
    if (node.type == CuNodeType::kMemcpy && last - first == 1 && !is_table) {
      Status told = look_at(driver, node.copy, step.facts[number], *first);
      if (!told.ok()) return told;
    }
    first = last;
  }
  return {};
}

}  // namespace anabranch::cuda
