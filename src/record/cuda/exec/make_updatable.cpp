// SPDX-License-Identifier: Apache-2.0
// How executables are instantiated, and what makes one an updating one. The order matters: nodes
// become updatable before the graph is instantiated, and the executable is uploaded before its
// first launch, which would otherwise upload it itself and undo what its updater wrote. Every
// executable is uploaded before the host sets a node: one whose nodes were set first stays a fifth
// slower for good (seen on an H200, driver 580.159.04).
#include <algorithm>
#include <optional>

#include "record/cuda/exec/cuda_exec.h"

namespace anabranch::cuda {
namespace {

// Whether kernels were captured on streams of several priorities. They keep these then; otherwise
// all run with that of the stream on which a launch is queued.
bool have_own_priorities(std::span<const NodeImage> nodes) {
  std::optional<int> first;
  for (const NodeImage& node : nodes) {
    for (const CuLaunchAttribute& attribute : node.kernel.attributes) {
      if (attribute.id != CuLaunchAttributeId::kPriority) continue;
      if (first && *first != attribute.value.priority) return true;
      first = attribute.value.priority;
    }
  }
  return false;
}

// Whether it is better not launchable. Copies with the host's memory would run as kernels there,
// which takes longer, and cooperative kernels are not allowed while several processes share the
// device (MPS).
bool stays_plain(const NodeImage& node) {
  return node.type == CuNodeType::kMemcpy ||
         std::ranges::any_of(node.kernel.attributes, [](const CuLaunchAttribute& attribute) {
           return attribute.id == CuLaunchAttributeId::kCooperative &&
                  attribute.value.cooperative != 0;
         });
}

CuKernelNodeParams kernel_of(CuFunction function, unsigned blocks, unsigned threads) {
  CuKernelNodeParams kernel{};
  kernel.func = function;
  kernel.grid_x = blocks;
  kernel.block_x = threads;
  kernel.grid_y = kernel.grid_z = kernel.block_y = kernel.block_z = 1;
  return kernel;
}

}  // namespace

Status CudaExec::prepare_updates(const DeviceCode::Updater& updater, bool in_two,
                                 CuGraphNode* updated) {
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
  CuDevicePtr host_tables = 0;
  if (Status found = recorded("cuMemHostGetDevicePointer",
                              driver_.cuMemHostGetDevicePointer(&host_tables, tables_, 0));
      !found.ok()) {
    return found;
  }
  const bool is_small = std::max(addresses_.size(), updates.size()) <= kMostRepointed;
  return is_small && !in_two ? add_repoint(updater, host_tables, updates.size(), updated)
                             : add_fetch_and_update(updater, host_tables, updates.size(), updated);
}

// What is left of a parameter behind its last word of eight bytes may have any width. The updater
// writes parameters alone.
bool CudaExec::has_odd_site(std::uint32_t node) const {
  const auto sites = std::span(repointing_.sites)
                         .subspan(repointing_.first_site[node],
                                  repointing_.first_site[node + 1] - repointing_.first_site[node]);
  return std::ranges::any_of(sites, [](const PlacedSite& site) {
    return site.operand == Operand::kGrid ||
           (site.bytes != sizeof(std::uint64_t) && site.bytes != sizeof(std::uint32_t) &&
            site.bytes != sizeof(std::uint16_t));
  });
}

Status CudaExec::make_updatable(std::uint32_t node, std::vector<SiteUpdate>& updates) {
  if (has_odd_site(node)) return {};  // it is left to the host
  CuLaunchAttributeValue value{};
  value.device_updatable_kernel_node.device_updatable = 1;
  const CuResult set = driver_.cuGraphKernelNodeSetAttribute(
      nodes_[node].handle, CuLaunchAttributeId::kDeviceUpdatableKernelNode, &value);
  if (is_refused(set)) return {};  // it is left to the host
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
    const PlacedSite& site = repointing_.sites[i];
    updates.push_back({handle, site.shift, static_cast<std::uint16_t>(site.offset),
                       static_cast<std::uint16_t>(site.bytes), site.source});
  }
  return {};
}

Status CudaExec::allocate_tables(const std::vector<SiteUpdate>& updates) {
  constexpr std::uint64_t kNoLaunches = 0;
  const std::size_t updates_bytes = updates.size() * sizeof(SiteUpdate);
  const std::size_t table_bytes = addresses_.size() * sizeof(std::uint64_t);
  if (Status made = recorded(
          "cuMemAlloc",
          driver_.cuMemAlloc(&launches_done_, sizeof kNoLaunches + updates_bytes + table_bytes));
      !made.ok()) {
    return made;
  }
  updates_ = launches_done_ + sizeof kNoLaunches;
  table_ = updates_ + updates_bytes;
  void* tables = nullptr;
  if (Status made =
          recorded("cuMemHostAlloc", driver_.cuMemHostAlloc(&tables, kHostTables * table_bytes, 0));
      !made.ok()) {
    return made;
  }
  tables_ = static_cast<std::uint64_t*>(tables);
  held_ = {sizeof kNoLaunches + updates_bytes + table_bytes, kHostTables * table_bytes};
  for (CuEvent& read : half_read_) {
    if (Status made = recorded("cuEventCreate", driver_.cuEventCreate(&read, kEventDisableTiming));
        !made.ok()) {
      return made;
    }
  }
  if (Status written = recorded(
          "cuMemcpyHtoD", driver_.cuMemcpyHtoD(launches_done_, &kNoLaunches, sizeof kNoLaunches));
      !written.ok()) {
    return written;
  }
  return recorded("cuMemcpyHtoD", driver_.cuMemcpyHtoD(updates_, updates.data(), updates_bytes));
}

Status CudaExec::add_repoint(const DeviceCode::Updater& updater, CuDevicePtr host_tables,
                             std::uint64_t updates, CuGraphNode* updated) {
  RepointParams repoint{host_tables, launches_done_, addresses_.size(), updates_, updates};
  return add_kernel(kernel_of(updater.repoint, 1, kMostRepointed), &repoint, nullptr, updated);
}

Status CudaExec::add_fetch_and_update(const DeviceCode::Updater& updater, CuDevicePtr host_tables,
                                      std::uint64_t updates, CuGraphNode* updated) {
  FetchParams fetch{host_tables, table_, launches_done_, addresses_.size()};
  CuGraphNode fetched = nullptr;
  if (Status added =
          add_kernel(kernel_of(updater.fetch, 1, kFetchBlock), &fetch, nullptr, &fetched);
      !added.ok()) {
    return added;
  }
  UpdateParams update{updates_, table_, updates};
  const auto blocks = static_cast<unsigned>((updates + kUpdaterBlock - 1) / kUpdaterBlock);
  return add_kernel(kernel_of(updater.update, blocks, kUpdaterBlock), &update, fetched, updated);
}

Status CudaExec::add_kernel(CuKernelNodeParams kernel, void* params, CuGraphNode before,
                            CuGraphNode* made) {
  kernel.kernel_params = &params;
  return recorded("cuGraphAddKernelNode",
                  driver_.cuGraphAddKernelNode(made, graph_, &before, before ? 1 : 0, &kernel));
}

// Before every node that nothing came before.
Status CudaExec::put_before_roots(CuGraphNode updated) {
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

// What device code may launch holds no calls of the host and no events, and whatever else a driver
// may refuse in it.
Status CudaExec::instantiate(bool is_launchable) {
  CuInstantiateParams params{};
  if (have_own_priorities(nodes_)) params.flags |= kInstantiateUseNodePriority;
  if (is_launchable && std::ranges::none_of(nodes_, stays_plain)) {
    CuInstantiateParams launchable = params;
    launchable.flags |= kInstantiateDeviceLaunch;
    const CuResult made = driver_.cuGraphInstantiateWithParams(&exec_, graph_, &launchable);
    if (!is_refused(made)) return recorded("cuGraphInstantiateWithParams", made);
  }
  return recorded("cuGraphInstantiateWithParams",
                  driver_.cuGraphInstantiateWithParams(&exec_, graph_, &params));
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
