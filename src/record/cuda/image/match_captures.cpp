// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/match_captures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

namespace anabranch::cuda {
namespace {

Status differs(const std::string& what, const std::string& how) {
  return Status(
      StatusCode::kCapturesDiffer,
      fmt::format("record: {} differs between two captures: {}. The step does not repeat, "
                  "so it runs unrecorded; strict=True raises.",
                  what, how));
}

std::string triple(unsigned x, unsigned y, unsigned z) { return fmt::format("{}x{}x{}", x, y, z); }

class Matcher {
 public:
  Matcher(const GraphImage& first, const GraphImage& second) : first_(first), second_(second) {}

  Status run() const {
    if (first_.nodes.size() != second_.nodes.size()) {
      return differs("the graph",
                     fmt::format("{} nodes and {}", first_.nodes.size(), second_.nodes.size()));
    }
    for (std::uint32_t i = 0; i < first_.nodes.size(); ++i) {
      if (Status same = match_node(i); !same.ok()) return same;
    }
    return match_edges();
  }

 private:
  Status match_node(std::uint32_t i) const {
    const NodeImage &a = first_.nodes[i], &b = second_.nodes[i];
    if (a.type != b.type) {
      return differs(describe_node(first_, i),
                     fmt::format("it is {} there", describe_node(second_, i)));
    }
    switch (a.type) {
      case CuNodeType::kKernel:
        return match_kernel(i, a.kernel, b.kernel);
      case CuNodeType::kMemcpy:
        return match_copy(i, a.copy, b.copy);
      case CuNodeType::kMemset:
        return match_fill(i, a.fill, b.fill);
      case CuNodeType::kHost:
        return expect(i, "function", a.host.fn == b.host.fn);
      case CuNodeType::kGraph:
        return Matcher(*a.child, *b.child).run();
      default:
        return {};
    }
  }

  Status expect(std::uint32_t i, const char* part, bool same) const {
    return same ? Status() : differs(describe_node(first_, i), fmt::format("its {}", part));
  }

  Status match_kernel(std::uint32_t i, const KernelImage& a, const KernelImage& b) const {
    const CuKernelNodeParams &p = a.launch, &q = b.launch;
    if (p.func != q.func) {
      return differs(describe_node(first_, i), fmt::format("'{}' there", b.name));
    }
    const std::string grid = triple(p.grid_x, p.grid_y, p.grid_z);
    const std::string other_grid = triple(q.grid_x, q.grid_y, q.grid_z);
    if (grid != other_grid) {
      return differs(describe_node(first_, i), fmt::format("grid {} and {}", grid, other_grid));
    }
    const std::string block = triple(p.block_x, p.block_y, p.block_z);
    const std::string other_block = triple(q.block_x, q.block_y, q.block_z);
    if (block != other_block) {
      return differs(describe_node(first_, i), fmt::format("block {} and {}", block, other_block));
    }
    if (p.shared_bytes != q.shared_bytes) {
      return differs(describe_node(first_, i), fmt::format("{} and {} bytes of shared memory",
                                                           p.shared_bytes, q.shared_bytes));
    }
    if (Status same = expect(
            i, "layout of parameters",
            a.packed == b.packed && a.fields == b.fields && a.params.size() == b.params.size());
        !same.ok()) {
      return same;
    }
    return expect(i, "launch attributes", same_attributes(a.attributes, b.attributes));
  }

  static bool same_attributes(const std::vector<CuLaunchAttribute>& a,
                              const std::vector<CuLaunchAttribute>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const CuLaunchAttribute& x, const CuLaunchAttribute& y) {
                        return x.id == y.id && std::memcmp(&x.value, &y.value, sizeof x.value) == 0;
                      });
  }

  // Everything but the operands' addresses.
  Status match_copy(std::uint32_t i, CuMemcpy3D a, CuMemcpy3D b) const {
    for (CuMemcpy3D* copy : {&a, &b}) {
      copy->src_host = copy->dst_host = nullptr;
      copy->src_device = copy->dst_device = 0;
      copy->reserved0 = copy->reserved1 = nullptr;
    }
    return expect(i, "shape or kind of memory", are_same(a, b));
  }

  Status match_fill(std::uint32_t i, CuMemsetNodeParams a, CuMemsetNodeParams b) const {
    a.dst = b.dst = 0;
    return expect(i, "value or shape", std::memcmp(&a, &b, sizeof a) == 0);
  }

  Status match_edges() const {
    const bool same = std::equal(first_.edges.begin(), first_.edges.end(), second_.edges.begin(),
                                 second_.edges.end(), [](const EdgeImage& a, const EdgeImage& b) {
                                   return a.from == b.from && a.to == b.to &&
                                          a.data.from_port == b.data.from_port &&
                                          a.data.to_port == b.data.to_port &&
                                          a.data.type == b.data.type;
                                 });
    return same ? Status() : differs("the graph", "its edges");
  }

  const GraphImage& first_;
  const GraphImage& second_;
};

}  // namespace

Status match_captures(const GraphImage& first, const GraphImage& second) {
  return Matcher(first, second).run();
}

bool are_same(const CuMemcpy3D& a, const CuMemcpy3D& b) {
  const auto members = [](const CuMemcpy3D& of) {
    return std::tie(of.src_x_bytes, of.src_y, of.src_z, of.src_lod, of.src_memory_type, of.src_host,
                    of.src_device, of.src_array, of.reserved0, of.src_pitch, of.src_height,
                    of.dst_x_bytes, of.dst_y, of.dst_z, of.dst_lod, of.dst_memory_type, of.dst_host,
                    of.dst_device, of.dst_array, of.reserved1, of.dst_pitch, of.dst_height,
                    of.width_bytes, of.height, of.depth);
  };
  return members(a) == members(b);
}

}  // namespace anabranch::cuda
