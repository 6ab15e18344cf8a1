// SPDX-License-Identifier: Apache-2.0
// What makes an executable an updating one. The order matters: nodes become updatable before the
// graph is instantiated, and the executable is uploaded before its first launch, which would
// otherwise upload it itself and undo what its updater wrote. Every executable is uploaded before
// the host sets a node: one whose nodes were set first stays a fifth slower for good (seen on an
// H200, driver 580.159.04).
#include <algorithm>

#include "record/cuda_recording.h"

namespace anabranch::cuda {
namespace {

// Some functions cannot be updated from the device; the host sets those.
bool is_refused(CuResult result) {
  return result == CuResult::kNotSupported || result == CuResult::kInvalidValue;
}

}  // namespace

Status CudaExec::prepare_updates(CuFunction updater) {
  std::vector<SiteUpdate> updates;
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].type != CuNodeType::kKernel ||
        repointing_.first_site[node] == repointing_.first_site[node + 1]) {
      continue;
    }
    if (Status made = make_updatable(node, updates); !made.ok()) return made;
  }
  if (updates.empty()) return {};
  if (Status allocated = allocate_tables(updates); !allocated.ok()) return allocated;
  return add_updater(updater, static_cast<std::uint32_t>(updates.size()));
}

Status CudaExec::make_updatable(std::uint32_t node, std::vector<SiteUpdate>& updates) {
  CuLaunchAttributeValue value{};
  value.device_updatable_kernel_node.device_updatable = 1;
  const CuResult set = driver_.cuGraphKernelNodeSetAttribute(
      nodes_[node].handle, CuLaunchAttributeId::kDeviceUpdatableKernelNode, &value);
  if (is_refused(set)) return {};
  if (Status done = recorded("cuGraphKernelNodeSetAttribute", set); !done.ok()) return done;
  if (Status got = recorded(
          "cuGraphKernelNodeGetAttribute",
          driver_.cuGraphKernelNodeGetAttribute(
              nodes_[node].handle, CuLaunchAttributeId::kDeviceUpdatableKernelNode, &value));
      !got.ok()) {
    return got;
  }
  by_device_[node] = true;
  const auto handle = reinterpret_cast<std::uint64_t>(value.device_updatable_kernel_node.dev_node);
  for (std::uint32_t i = repointing_.first_site[node]; i < repointing_.first_site[node + 1]; ++i) {
    const Site& site = repointing_.sites[i];
    updates.push_back({handle, site.shift, site.offset, site.unit});
  }
  return {};
}

Status CudaExec::allocate_tables(const std::vector<SiteUpdate>& updates) {
  const std::size_t table_bytes = addresses_.size() * sizeof(std::uint64_t);
  const std::size_t updates_bytes = updates.size() * sizeof(SiteUpdate);
  if (Status made = recorded("cuMemAlloc", driver_.cuMemAlloc(&updates_, updates_bytes));
      !made.ok()) {
    return made;
  }
  if (addresses_.size() > repointing_.direct_addresses) {
    if (Status made = recorded("cuMemAlloc", driver_.cuMemAlloc(&table_, table_bytes));
        !made.ok()) {
      return made;
    }
  }
  void* staged = nullptr;
  if (Status made = recorded("cuMemHostAlloc", driver_.cuMemHostAlloc(&staged, table_bytes, 0));
      !made.ok()) {
    return made;
  }
  staged_ = static_cast<std::uint64_t*>(staged);
  if (Status made =
          recorded("cuEventCreate", driver_.cuEventCreate(&launched_, kEventDisableTiming));
      !made.ok()) {
    return made;
  }
  return recorded("cuMemcpyHtoD", driver_.cuMemcpyHtoD(updates_, updates.data(), updates_bytes));
}

Status CudaExec::add_copy(CuGraphNode* sent) {
  CuMemcpy3D copy{};
  copy.src_memory_type = CuMemoryType::kHost;
  copy.src_host = staged_;
  copy.dst_memory_type = CuMemoryType::kDevice;
  copy.dst_device = table_;
  copy.width_bytes = addresses_.size() * sizeof(std::uint64_t);
  copy.height = copy.depth = 1;
  return recorded("cuGraphAddMemcpyNode", driver_.cuGraphAddMemcpyNode(sent, graph_, nullptr, 0,
                                                                       &copy, repointing_.context));
}

// The table's copy, if there is one, and the updater come before every node that nothing came
// before.
Status CudaExec::add_updater(CuFunction updater, std::uint32_t updates) {
  CuGraphNode sent = nullptr, updated = nullptr;
  CuDevicePtr table = table_;
  const Status ready = table_ ? add_copy(&sent)
                              : recorded("cuMemHostGetDevicePointer",
                                         driver_.cuMemHostGetDevicePointer(&table, staged_, 0));
  if (!ready.ok()) return ready;
  void* params[] = {&updates_, &table, &updates};
  CuKernelNodeParams kernel{};
  kernel.func = updater;
  kernel.grid_x = (updates + kUpdaterBlock - 1) / kUpdaterBlock;
  kernel.block_x = kUpdaterBlock;
  kernel.grid_y = kernel.grid_z = kernel.block_y = kernel.block_z = 1;
  kernel.kernel_params = params;
  if (Status added =
          recorded("cuGraphAddKernelNode",
                   driver_.cuGraphAddKernelNode(&updated, graph_, &sent, sent ? 1 : 0, &kernel));
      !added.ok()) {
    return added;
  }
  std::vector<bool> has_earlier(nodes_.size());
  for (const EdgeImage& edge : repointing_.image.edges) has_earlier[edge.to] = true;
  std::vector<CuGraphNode> roots;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!has_earlier[i]) roots.push_back(nodes_[i].handle);
  }
  const std::vector<CuGraphNode> from(roots.size(), updated);
  return recorded(
      "cuGraphAddDependencies",
      driver_.cuGraphAddDependencies(graph_, from.data(), roots.data(), nullptr, roots.size()));
}

Status CudaExec::upload() {
  CuStream stream = nullptr;
  if (Status made = recorded("cuStreamCreateWithPriority",
                             driver_.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, 0));
      !made.ok()) {
    return made;
  }
  Status done = recorded("cuGraphUpload", driver_.cuGraphUpload(exec_, stream));
  if (done.ok()) {
    done = recorded("cuStreamSynchronize", driver_.cuStreamSynchronize(stream));
  }
  const Status destroyed = recorded("cuStreamDestroy", driver_.cuStreamDestroy(stream));
  return done.ok() ? destroyed : done;
}

}  // namespace anabranch::cuda
