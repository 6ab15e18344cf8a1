// SPDX-License-Identifier: Apache-2.0
#include "record/host_copies.h"

#include <algorithm>

#include "record/copy_box.h"

namespace anabranch::cuda {
namespace {

// Its one site is where the device's side lies.
void tell(NodeImage& node, Site& site) {
  const CuMemcpy3D& copy = node.copy;
  const bool to_device =
      copy.src_memory_type == CuMemoryType::kHost && copy.dst_memory_type == CuMemoryType::kDevice;
  const bool from_device =
      copy.src_memory_type == CuMemoryType::kDevice && copy.dst_memory_type == CuMemoryType::kHost;
  const std::uint64_t bytes = bytes_in_one_piece(copy);
  if (to_device == from_device || bytes == 0) return;
  if (site.operand != (to_device ? Operand::kDestination : Operand::kSource)) return;
  // A site says where its operand begins, and so where its bytes do only if these are the same.
  if ((to_device ? destination_shift(copy) : source_shift(copy)) != 0) return;
  site.writes = to_device;
  site.bytes = bytes;
  const std::uint64_t begin = to_device ? source_of(copy) + source_shift(copy)
                                        : destination_of(copy) + destination_shift(copy);
  node.host_bytes = {begin, begin + bytes, from_device};
  node.is_known = true;
}

}  // namespace

void find_host_copies(GraphImage& image, std::span<const std::uint32_t> tables,
                      std::span<Site> sites) {
  for (auto first = sites.begin(); first != sites.end();) {
    const auto last = std::find_if(first, sites.end(),
                                   [&](const Site& site) { return site.node != first->node; });
    NodeImage& node = image.nodes[first->node];
    const bool is_table = std::binary_search(tables.begin(), tables.end(), first->node);
    if (node.type == CuNodeType::kMemcpy && last - first == 1 && !is_table) tell(node, *first);
    first = last;
  }
}

}  // namespace anabranch::cuda
