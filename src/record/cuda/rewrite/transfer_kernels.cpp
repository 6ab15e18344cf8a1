// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/rewrite/transfer_kernels.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "record/cuda/image/copy_box.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint64_t kWidestWord = 16;
// Eight blocks for each multiprocessor of an H200. A larger box goes round in them.
constexpr std::uint64_t kMostBlocks = std::uint64_t{8} * 132;

// Rows that join are one row, and single rows in layers are rows.
void simplify(CopyParams& box) {
  for (int i = 0; i < 2; ++i) {
    const bool joins = box.from_pitch == box.width_bytes && box.to_pitch == box.width_bytes;
    if (box.height != 1 && !joins) return;
    box.width_bytes *= box.height;
    box.height = box.depth;
    box.from_pitch = box.from_slice;
    box.to_pitch = box.to_slice;
    box.depth = 1;
  }
}

std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

// A thread a word, as long as there are blocks. `places` has the low bits of all rows' addresses.
void set_grid(CuKernelNodeParams& launch, std::uint64_t places, std::uint64_t width_bytes,
              std::uint64_t height, std::uint64_t depth) {
  const std::uint64_t word = std::uint64_t{1} << std::countr_zero(places | kWidestWord);
  const std::uint64_t words = std::max<std::uint64_t>(divide_up(width_bytes, word), 1);
  const auto at_most = [](std::uint64_t wanted, std::uint64_t most) {
    return static_cast<unsigned>(
        std::clamp<std::uint64_t>(wanted, 1, std::max<std::uint64_t>(most, 1)));
  };
  launch.block_x =
      at_most(std::bit_ceil(std::min<std::uint64_t>(words, kTransferBlock)), kTransferBlock);
  launch.block_y = at_most(std::bit_ceil(std::min<std::uint64_t>(height, kTransferBlock)),
                           kTransferBlock / launch.block_x);
  launch.block_z = 1;
  launch.grid_x = at_most(divide_up(words, launch.block_x), kMostBlocks);
  launch.grid_y = at_most(divide_up(height, launch.block_y), kMostBlocks / launch.grid_x);
  launch.grid_z = at_most(depth, kMostBlocks / launch.grid_x / launch.grid_y);
}

template <typename Params>
KernelImage make_kernel(const char* name, CuFunction function, const Params& params) {
  KernelImage kernel;
  kernel.name = name;
  kernel.launch.func = function;
  kernel.params.resize(sizeof params);
  std::memcpy(kernel.params.data(), &params, sizeof params);
  kernel.fields = {{0, sizeof params}};
  return kernel;
}

class TransferReplacer {
 public:
  TransferReplacer(const Driver& driver, const DeviceCode& code) : driver_(driver), code_(code) {}

  Status find_device() { return recorded("cuCtxGetDevice", driver_.cuCtxGetDevice(&device_)); }

  // `sites` are those of the node.
  Status replace(NodeImage& node, NodeFacts& facts, std::span<Site> sites) const {
    const bool is_copy = node.type == CuNodeType::kMemcpy;
    const auto here = is_copy ? is_here(node.copy) : is_here(CuMemoryType::kDevice, node.fill.dst);
    if (!here.ok()) return here.error();
    if (!*here) return {};
    facts.is_known = false;  // it writes memory that never moves, unless
    for (Site& site : sites) {
      site.writes = site.operand == Operand::kDestination;
      facts.is_known |= site.writes;
      site = is_copy ? site_of(site, node.copy) : site_of(site, node.fill);
    }
    node.kernel = is_copy ? copy_kernel(code_, node.copy) : fill_kernel(code_, node.fill);
    node.type = CuNodeType::kKernel;
    node.is_ours = true;
    return {};
  }

 private:
  static Site site_of(Site site, const CuMemsetNodeParams& fill) {
    site.operand = Operand::kParam;
    site.offset = offsetof(FillParams, to);
    if (fill.height != 0) site.bytes = extent_of(fill);
    return site;
  }
  static Site site_of(Site site, const CuMemcpy3D& copy) {
    const bool is_source = site.operand == Operand::kSource;
    site.operand = Operand::kParam;
    site.offset = is_source ? offsetof(CopyParams, from) : offsetof(CopyParams, to);
    site.shift += is_source ? source_shift(copy) : destination_shift(copy);
    site.bytes = is_source ? source_extent(copy) : destination_extent(copy);
    return site;
  }

  // A box that does not fit its pitch stays with the driver.
  Result<bool> is_here(const CuMemcpy3D& copy) const {
    if (!is_understood(copy)) return false;
    const auto source = is_here(copy.src_memory_type, copy.src_device);
    if (!source.ok() || !*source) return source;
    return is_here(copy.dst_memory_type, copy.dst_device);
  }
  Result<bool> is_here(CuMemoryType said, CuDevicePtr address) const {
    return cuda::is_here(driver_, device_, said, address);
  }

  const Driver& driver_;
  const DeviceCode& code_;
  CuDevice device_ = 0;
};

}  // namespace

KernelImage copy_kernel(const DeviceCode& code, const CuMemcpy3D& copy) {
  CopyParams box;
  box.from = copy.src_device + source_shift(copy);
  box.to = copy.dst_device + destination_shift(copy);
  box.width_bytes = copy.width_bytes;
  box.height = copy.height;
  box.depth = copy.depth;
  box.from_pitch = copy.src_pitch;
  box.to_pitch = copy.dst_pitch;
  box.from_slice = copy.src_pitch * copy.src_height;
  box.to_slice = copy.dst_pitch * copy.dst_height;
  simplify(box);
  KernelImage kernel = make_kernel("anabranch_copy", code.copy(), box);
  std::uint64_t places = box.from | box.to;
  if (box.height > 1) places |= box.from_pitch | box.to_pitch;
  if (box.depth > 1) places |= box.from_slice | box.to_slice;
  set_grid(kernel.launch, places, box.width_bytes, box.height, box.depth);
  return kernel;
}

KernelImage fill_kernel(const DeviceCode& code, const CuMemsetNodeParams& fill) {
  FillParams rows;
  rows.to = fill.dst;
  rows.width_bytes = fill.width * fill.element_bytes;
  rows.height = fill.height;
  rows.pitch = fill.height > 1 ? fill.pitch : 0;
  rows.word = fill.element_bytes == 1   ? (fill.value & 0xff) * 0x01010101u
              : fill.element_bytes == 2 ? (fill.value & 0xffff) * 0x00010001u
                                        : fill.value;
  if (rows.pitch == rows.width_bytes) {
    rows.width_bytes *= rows.height;
    rows.height = 1;
  }
  KernelImage kernel = make_kernel("anabranch_fill", code.fill(), rows);
  set_grid(kernel.launch, rows.to | rows.pitch, rows.width_bytes, rows.height, 1);
  return kernel;
}

KernelImage table_kernel(const DeviceCode& code, const TableParams& table) {
  KernelImage kernel = make_kernel("anabranch_table", code.table(), table);
  CuKernelNodeParams& launch = kernel.launch;
  launch.block_x = kTransferBlock;
  launch.grid_x = static_cast<unsigned>(
      std::clamp<std::uint64_t>(divide_up(table.bytes, kTableRange), 1, kMostBlocks));
  launch.block_y = launch.block_z = launch.grid_y = launch.grid_z = 1;
  return kernel;
}

Status replace_transfers(const Driver& driver, const DeviceCode& code, StepGraph& step) {
  auto& sites = step.sites;
  TransferReplacer replacer(driver, code);
  if (Status found = replacer.find_device(); !found.ok()) return found;
  for (auto first = sites.begin(); first != sites.end();) {
    const auto last = std::find_if(first, sites.end(),
                                   [&](const Site& site) { return site.node != first->node; });
    NodeImage& node = step.image.nodes[first->node];
    if (node.type == CuNodeType::kMemcpy || node.type == CuNodeType::kMemset) {
      Status done = replacer.replace(node, step.facts[first->node], {first, last});
      if (!done.ok()) return done;
    }
    first = last;
  }
  return {};
}

}  // namespace anabranch::cuda
