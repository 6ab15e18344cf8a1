// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/exec/cuda_exec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include "record/cuda/exec/differences.h"
#include "record/cuda/exec/make_nodes.h"
#include "record/cuda/image/driver_graph.h"

namespace anabranch::cuda {
namespace {

void set_source(CuMemcpy3D& copy, std::uint64_t address) {
  if (copy.src_memory_type == CuMemoryType::kHost) {
    copy.src_host = reinterpret_cast<const void*>(address);
  } else {
    copy.src_device = address;
  }
}

constexpr std::uint32_t kHalfOfTables = kHostTables / 2;

void set_destination(CuMemcpy3D& copy, std::uint64_t address) {
  if (copy.dst_memory_type == CuMemoryType::kHost) {
    copy.dst_host = reinterpret_cast<void*>(address);
  } else {
    copy.dst_device = address;
  }
}

}  // namespace

CudaExec::CudaExec(const Driver& driver, const Repointing& repointing)
    : driver_(driver),
      repointing_(repointing),
      nodes_(repointing.image.nodes),
      addresses_(repointing.source_count(), kUnset),
      is_moved_(nodes_.size()),
      room_{std::vector<void*>(repointing.most_fields)},
      memory_{addresses_, repointing.with_bytes, repointing.with_bytes},
      by_device_(nodes_.size()) {
  memory_.is_in_turn = memory_.order.size() == addresses_.size();
  moved_.reserve(nodes_.size());
}

CudaExec::~CudaExec() {
  if (exec_) driver_.cuGraphExecDestroy(exec_);
  if (graph_) driver_.cuGraphDestroy(graph_);
  for (const CuEvent event : half_read_) {
    if (event) driver_.cuEventDestroy(event);
  }
  if (launches_done_) driver_.cuMemFree(launches_done_);  // waits for launches that read the tables
  if (tables_) driver_.cuMemFreeHost(tables_);
}

Result<std::unique_ptr<CudaExec>> CudaExec::make(const Driver& driver, CuGraph original,
                                                 const Repointing& repointing, const Kind& kind) {
  std::unique_ptr<CudaExec> made(new CudaExec(driver, repointing));
  if (Status cloned = made->clone_nodes(original); !cloned.ok()) return cloned;
  if (Status built = made->make_nodes(kind); !built.ok()) return built;
  if (made->tables_) made->watch_sources();
  made->list_residents();
  if (Status instantiated = made->instantiate(kind.is_launchable); !instantiated.ok()) {
    return instantiated;
  }
  if (Status uploaded = made->upload(); !uploaded.ok()) return uploaded;
  return made;
}

// Our own graph, since setters need the one an executable was made from; a clone keeps what an
// image does not hold (attributes of newer drivers).
Status CudaExec::clone_nodes(CuGraph original) {
  if (Status cloned = recorded("cuGraphClone", driver_.cuGraphClone(&graph_, original));
      !cloned.ok()) {
    return cloned;
  }
  std::set<CuGraphNode> opened;
  for (NodeImage& node : nodes_) {
    if (node.child_of) {
      opened.insert(node.child_of);
      continue;
    }
    const auto there = find_in_clone(node.handle);
    if (!there.ok()) return there.error();
    node.handle = *there;
  }
  for (const CuGraphNode child : opened) {
    const auto there = find_in_clone(child);
    if (!there.ok()) return there.error();
    if (Status gone = recorded("cuGraphDestroyNode", driver_.cuGraphDestroyNode(*there));
        !gone.ok()) {
      return gone;
    }
  }
  if (repointing_.is_stretch) {
    if (Status gone = drop_other_nodes(); !gone.ok()) return gone;
  }
  return repointing_.is_reordered ? drop_edges() : Status();
}

Status CudaExec::drop_other_nodes() {
  const auto nodes = list_nodes(driver_, graph_);
  if (!nodes.ok()) return nodes.error();
  std::set<CuGraphNode> ours;
  for (const NodeImage& node : nodes_) {
    if (!node.child_of) ours.insert(node.handle);
  }
  for (const CuGraphNode node : *nodes) {
    if (ours.contains(node)) continue;
    if (Status gone = recorded("cuGraphDestroyNode", driver_.cuGraphDestroyNode(node));
        !gone.ok()) {
      return gone;
    }
  }
  return {};
}

Result<CuGraphNode> CudaExec::find_in_clone(CuGraphNode node) const {
  CuGraphNode there = nullptr;
  Status found =
      recorded("cuGraphNodeFindInClone", driver_.cuGraphNodeFindInClone(&there, node, graph_));
  if (!found.ok()) return found;
  return there;
}

Status CudaExec::make_nodes(const Kind& kind) {
  move_transfers();
  NodeMaker maker(driver_, graph_, repointing_.context, nodes_, repointing_.making,
                  repointing_.is_reordered);
  if (Status made = maker.make_nodes(); !made.ok()) return made;
  CuGraphNode updated = nullptr;
  if (kind.updater) {
    Status prepared = prepare_updates(*kind.updater, kind.repoint_in_two, &updated);
    if (!prepared.ok()) return prepared;
  }
  if (Status made = maker.make_copies(); !made.ok()) return made;
  if (Status connected = maker.connect(repointing_.image.edges); !connected.ok()) return connected;
  return updated ? put_before_roots(updated) : Status();
}

// To where copy_room says; the first launch sets them.
void CudaExec::move_transfers() {
  for (const PlacedSite& site : repointing_.sites) {
    NodeImage& node = nodes_[site.node];
    if (!is_made_elsewhere(node, repointing_.making[site.node])) continue;
    if (node.type == CuNodeType::kMemset) {
      node.fill.dst = repointing_.copy_room;
    } else {
      const bool is_source = site.operand == Operand::kSource;
      (is_source ? set_source : set_destination)(node.copy, repointing_.copy_room);
    }
  }
}

Status CudaExec::drop_edges() {
  const auto edges = list_edges(driver_, graph_);
  if (!edges.ok()) return edges.error();
  // One call an edge: drivers give every edge of a call the data of the first.
  for (const GraphEdge& edge : *edges) {
    if (Status gone = recorded(
            "cuGraphRemoveDependencies",
            driver_.cuGraphRemoveDependencies(graph_, &edge.from, &edge.to, &edge.data, 1));
        !gone.ok()) {
      return gone;
    }
  }
  return {};
}

void LaunchMemory::forget() noexcept {
  std::fill(addresses.begin(), addresses.end(), CudaExec::kUnset);
  is_known = is_set = false;
  repeats = 0;
}

Result<std::uint32_t> CudaExec::set_addresses(std::span<const std::uint64_t> addresses) {
  assert(addresses.size() == addresses_.size());
  if (Status noted = note_reallocated(addresses); !noted.ok()) return noted;
  if (tables_) {
    note_moved(addresses, watched_);
    const auto set = set_moved();
    if (!set.ok()) return set;
    const Status written = write_table(addresses);
    return written.ok() ? set : Result<std::uint32_t>(written);
  }
  const auto note = [&](std::size_t source) {
    note_moved(static_cast<std::uint32_t>(source), addresses[source]);
    return true;
  };
  if (are_known_) {
    for_each_difference(addresses, addresses_, note);
  } else {
    for (std::size_t source = 0; source < addresses.size(); ++source) note(source);
  }
  return set_moved();
}

Result<std::uint32_t> CudaExec::set_addresses(std::span<const std::uint64_t> addresses,
                                              std::span<const std::uint32_t> sources) {
  assert(!tables_ && are_known_);
  if (Status noted = note_reallocated(addresses); !noted.ok()) return noted;
  note_moved(addresses, sources);
  return set_moved();
}

// For the next launch. The launch that begins a half waits for those that read it last.
Status CudaExec::write_table(std::span<const std::uint64_t> addresses) {
  const std::uint64_t table = launches_ % kHostTables;
  if (table % kHalfOfTables == 0 && launches_ >= kHostTables && !has_table_) {
    const CuEvent read = half_read_[table / kHalfOfTables];
    if (Status waited = launched("cuEventSynchronize", driver_.cuEventSynchronize(read));
        !waited.ok()) {
      return waited;
    }
  }
  std::copy(addresses.begin(), addresses.end(), tables_ + table * addresses.size());
  has_table_ = true;
  return {};
}

// Behind the last launch of a half, and so behind all before it.
Status CudaExec::mark_half(CuStream stream) {
  if (launches_ % kHalfOfTables != 0) return {};
  const CuEvent read = half_read_[(launches_ / kHalfOfTables + 1) % 2];
  const Status noted = launched("cuEventRecord", driver_.cuEventRecord(read, stream));
  if (!noted.ok()) driver_.cuStreamSynchronize(stream);  // else it is unknown when they are read
  return noted;
}

Result<std::uint32_t> CudaExec::set_moved() {
  Status failed;
  for (const std::uint32_t node : moved_) {
    is_moved_[node] = false;
    if (!failed.ok()) continue;
    write_sites(node);
    failed = set_node(node);
  }
  const auto count = static_cast<std::uint32_t>(moved_.size());
  moved_.clear();
  are_known_ = failed.ok();
  return failed.ok() ? count : Result<std::uint32_t>(failed);
}

std::span<const std::uint32_t> CudaExec::nodes_of(std::uint32_t source) const noexcept {
  const std::uint32_t begin = repointing_.first_node[source];
  return std::span(repointing_.nodes).subspan(begin, repointing_.first_node[source + 1] - begin);
}

void CudaExec::watch_sources() {
  for (std::uint32_t source = 0; source < addresses_.size(); ++source) {
    const auto is_hosts = [&](std::uint32_t node) { return !by_device_[node]; };
    if (std::ranges::any_of(nodes_of(source), is_hosts)) watched_.push_back(source);
  }
}

void CudaExec::list_residents() {
  for (const std::uint32_t source : repointing_.with_bytes) {
    Resident resident{source};
    for (const std::uint32_t node : nodes_of(source)) {
      if (nodes_[node].type != CuNodeType::kKernel) resident.nodes.push_back(node);
    }
    if (!resident.nodes.empty()) residents_.push_back(std::move(resident));
  }
}

Status CudaExec::note_reallocated(std::span<const std::uint64_t> addresses) {
  for (Resident& resident : residents_) {
    const auto may_be = may_be_reallocated(resident, addresses[resident.source]);
    if (!may_be.ok()) return may_be.error();
    if (*may_be) std::ranges::for_each(resident.nodes, [&](auto node) { mark_moved(node); });
  }
  return {};
}

// Mapped memory comes in pages that go one by one, and what the driver tells of the first says
// nothing of those behind it. Nor does it have to tell anything of memory of other kinds.
Result<bool> CudaExec::may_be_reallocated(Resident& resident, std::uint64_t address) {
  if (repointing_.mapped_memory) return true;
  unsigned long long allocation = 0;
  const CuResult asked =
      driver_.cuPointerGetAttribute(&allocation, CuPointerAttribute::kBufferId, address);
  if (is_refused(asked)) return true;
  if (Status told = launched("cuPointerGetAttribute", asked); !told.ok()) return told;
  return std::exchange(resident.allocation, allocation) != allocation;
}

void CudaExec::note_moved(std::span<const std::uint64_t> addresses,
                          std::span<const std::uint32_t> sources) {
  for (const std::uint32_t source : sources) {
    const bool moved = !are_known_ || addresses[source] != addresses_[source];
    if (moved) note_moved(source, addresses[source]);
  }
}

void CudaExec::note_moved(std::uint32_t source, std::uint64_t address) {
  addresses_[source] = address;
  for (const std::uint32_t node : nodes_of(source)) mark_moved(node);
}

void CudaExec::mark_moved(std::uint32_t node) {
  if (is_moved_[node] || by_device_[node]) return;
  is_moved_[node] = true;
  moved_.push_back(node);
}

std::uint32_t CudaExec::count_moved(std::span<const std::uint64_t> addresses,
                                    std::uint32_t limit) const noexcept {
  if (!are_known_) return static_cast<std::uint32_t>(repointing_.nodes.size());
  std::uint32_t moved = 0;
  for_each_difference(addresses, addresses_, [&](std::size_t source) {
    moved += repointing_.first_node[source + 1] - repointing_.first_node[source];
    return moved <= limit;
  });
  return moved;
}

void CudaExec::write_sites(std::uint32_t number) {
  NodeImage& node = nodes_[number];
  for (std::uint32_t i = repointing_.first_site[number]; i < repointing_.first_site[number + 1];
       ++i) {
    const PlacedSite& site = repointing_.sites[i];
    const std::uint64_t address = addresses_[site.source] + site.shift;
    if (site.operand == Operand::kParam) {
      std::memcpy(node.kernel.params.data() + site.offset, &address, site.bytes);
    } else if (site.operand == Operand::kGrid) {
      blocks_of(node.kernel.launch, site.offset) = static_cast<unsigned>(address);
    } else if (node.type == CuNodeType::kMemset) {
      node.fill.dst = address;
    } else if (site.operand == Operand::kSource) {
      set_source(node.copy, address);
    } else {
      set_destination(node.copy, address);
    }
  }
}

Status CudaExec::set_node(std::uint32_t number) {
  const NodeImage& node = nodes_[number];
  switch (node.type) {
    case CuNodeType::kKernel:
      return set_kernel(number);
    case CuNodeType::kMemcpy:
      return launched("cuGraphExecMemcpyNodeSetParams",
                      driver_.cuGraphExecMemcpyNodeSetParams(exec_, node.handle, &node.copy,
                                                             repointing_.context));
    default:
      return launched("cuGraphExecMemsetNodeSetParams",
                      driver_.cuGraphExecMemsetNodeSetParams(exec_, node.handle, &node.fill,
                                                             repointing_.context));
  }
}

Status CudaExec::set_kernel(std::uint32_t number) {
  NodeImage& node = nodes_[number];
  const CuKernelNodeParams launch = launch_of(node.kernel, room_);
  constexpr const char* kCall = "cuGraphExecKernelNodeSetParams";
  const auto set_params = [&] {
    return driver_.cuGraphExecKernelNodeSetParams(exec_, node.handle, &launch);
  };
  CuResult set = set_params();
  if (set == CuResult::kInvalidValue && allow_shared_memory(driver_, node.kernel)) {
    set = set_params();
  }
  if (set == CuResult::kSuccess) return {};
  return launched(fmt::format("{} for kernel {} '{}'", kCall, number, node.kernel.name), set);
}

Status CudaExec::launch(CuStream stream) {
  if (tables_ && !has_table_) {  // the same addresses once more
    const std::uint64_t last = (launches_ + kHostTables - 1) % kHostTables;
    Status written = write_table({tables_ + last * addresses_.size(), addresses_.size()});
    if (!written.ok()) return written;
  }
  Status queued = launched("cuGraphLaunch", driver_.cuGraphLaunch(exec_, stream));
  if (!queued.ok()) return queued;
  last_stream_ = stream;
  if (!tables_) return {};
  has_table_ = false;
  ++launches_;
  return mark_half(stream);
}

}  // namespace anabranch::cuda
