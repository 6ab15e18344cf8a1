// SPDX-License-Identifier: Apache-2.0
// For tests: images of captured graphs, made by hand.
#pragma once

#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "record/cuda/image/graph_image.h"

namespace anabranch::cuda::testing {

// A kernel whose parameters are these words.
inline NodeImage kernel(const std::string& name, std::initializer_list<std::uint64_t> words) {
  NodeImage node;
  node.type = CuNodeType::kKernel;
  node.kernel.name = name;
  node.kernel.launch.grid_x = node.kernel.launch.block_x = 1;
  for (const std::uint64_t word : words) {
    const auto offset = static_cast<std::uint32_t>(node.kernel.params.size());
    node.kernel.fields.push_back({offset, sizeof word});
    node.kernel.params.resize(offset + sizeof word);
    std::memcpy(node.kernel.params.data() + offset, &word, sizeof word);
  }
  return node;
}

inline NodeImage fill(std::uint64_t address) {
  NodeImage node;
  node.type = CuNodeType::kMemset;
  node.fill = {address, 0, 0, 4, 16, 1};
  return node;
}

inline NodeImage copy(std::uint64_t to, std::uint64_t from) {
  NodeImage node;
  node.type = CuNodeType::kMemcpy;
  node.copy.src_memory_type = node.copy.dst_memory_type = CuMemoryType::kDevice;
  node.copy.src_device = from;
  node.copy.dst_device = to;
  node.copy.width_bytes = 16;
  node.copy.height = node.copy.depth = 1;
  return node;
}

inline NodeImage from_host(std::uint64_t to, std::uint64_t host, std::uint64_t bytes = 16) {
  NodeImage node = copy(to, 0);
  node.copy.src_memory_type = CuMemoryType::kHost;
  node.copy.src_host = reinterpret_cast<const void*>(host);
  node.copy.width_bytes = bytes;
  return node;
}

inline NodeImage to_host(std::uint64_t host, std::uint64_t from, std::uint64_t bytes = 16) {
  NodeImage node = copy(0, from);
  node.copy.dst_memory_type = CuMemoryType::kHost;
  node.copy.dst_host = reinterpret_cast<void*>(host);
  node.copy.width_bytes = bytes;
  return node;
}

struct Arrow {
  std::uint32_t from, to;
  bool programmatic = false;
};

inline GraphImage image_of(std::vector<NodeImage> nodes, std::initializer_list<Arrow> arrows = {}) {
  GraphImage image{std::move(nodes), {}};
  for (const Arrow& arrow : arrows) {
    CuEdgeData data{};
    data.type = arrow.programmatic ? kEdgeProgrammatic : kEdgeDefault;
    image.edges.push_back({arrow.from, arrow.to, data});
  }
  return image;
}

}  // namespace anabranch::cuda::testing
