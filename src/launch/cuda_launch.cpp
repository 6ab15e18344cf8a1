// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>

namespace anabranch::cuda {
namespace {

constexpr std::uint64_t kArenaAlignment = 512;

Status bad(const std::string& what) {
  return Status(Code::kBadBinding, fmt::format("launch: {}.", what));
}

// An executable of the recording, for the time of one launch.
class ExecLease {
 public:
  // The one used last has most of its addresses right. Leases are short: while all are taken, the
  // thread offers its core.
  explicit ExecLease(std::span<const std::unique_ptr<CudaExec>> from) noexcept
      : exec_(take(from)) {}
  ~ExecLease() { exec_.release(); }
  ExecLease(const ExecLease&) = delete;
  ExecLease& operator=(const ExecLease&) = delete;

  CudaExec* operator->() const noexcept { return &exec_; }
  CudaExec& operator*() const noexcept { return exec_; }

 private:
  static CudaExec& take(std::span<const std::unique_ptr<CudaExec>> from) noexcept {
    for (bool idle_only = true;; idle_only = false) {
      for (const auto& exec : from) {
        if (!exec->try_lease()) continue;
        if (!idle_only || exec->is_idle()) return *exec;
        exec->release();
      }
      if (!idle_only) std::this_thread::yield();
    }
  }
  CudaExec& exec_;
};

// What a launch is given, as one address a source.
class Given {
 public:
  Given(const CudaRecording& recording, const CudaBindings& bindings)
      : recording_(recording), bindings_(bindings) {}

  std::size_t size() const { return bindings_.slots.size() + 1; }
  std::size_t arena() const { return bindings_.slots.size(); }
  std::uint64_t at(std::size_t source) const {
    return source == arena() ? bindings_.arena : bindings_.slots[source];
  }
  std::uint64_t end(std::size_t source) const {
    return at(source) +
           (source == arena() ? recording_.arena().size_bytes : recording_.slots()[source].bytes);
  }
  std::string name(std::size_t source) const {
    return source == arena() ? "the arena" : fmt::format("slot {}", source);
  }

  Status check_place(std::size_t source) const;
  Status check_apart(std::size_t a, std::size_t b) const;
  Status check_all(std::span<std::uint32_t> order) const;

 private:
  std::uint64_t alignment(std::size_t source) const {
    return source == arena() ? kArenaAlignment : recording_.slots()[source].alignment;
  }
  const CudaRecording& recording_;
  const CudaBindings& bindings_;
};

Status Given::check_place(std::size_t source) const {
  const bool is_there = at(source) != 0 || end(source) == at(source);
  if (is_there && (at(source) & (alignment(source) - 1)) == 0) return {};
  return bad(
      fmt::format("{} is at {:#x} and must be aligned to {}, as it was captured. Kernels may "
                  "rely on it: copy the tensor to fresh memory",
                  name(source), at(source), alignment(source)));
}

// Memory that is shared would be written in an order that the capture has not seen.
Status Given::check_apart(std::size_t a, std::size_t b) const {
  if (at(a) >= end(b) || at(b) >= end(a)) return {};
  return bad(
      fmt::format("{} and {} share bytes ({:#x} to {:#x}, {:#x} to {:#x}). Copy one of the "
                  "two tensors",
                  name(a), name(b), at(a), end(a), at(b), end(b)));
}

// `order` is mostly right from an earlier launch: tensors that are allocated in turn keep theirs.
Status Given::check_all(std::span<std::uint32_t> order) const {
  for (std::size_t source = 0; source < size(); ++source) {
    if (Status placed = check_place(source); !placed.ok()) return placed;
  }
  const auto by_address = [&](std::uint32_t a, std::uint32_t b) { return at(a) < at(b); };
  if (!std::is_sorted(order.begin(), order.end(), by_address)) {
    std::sort(order.begin(), order.end(), by_address);
  }
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (end(order[i - 1]) <= at(order[i])) continue;
    if (Status apart = check_apart(order[i - 1], order[i]); !apart.ok()) return apart;
  }
  // Now that no two slots overlap, only the last that begins before the arena's end can reach it.
  const auto behind = std::partition_point(
      order.begin(), order.end(), [&](std::uint32_t slot) { return at(slot) < end(arena()); });
  return behind == order.begin() ? Status() : check_apart(*std::prev(behind), arena());
}

// What has moved since the launch before; counts no further than it needs to know.
struct Moved {
  static constexpr std::uint32_t kMost = 8;
  std::array<std::uint32_t, kMost> sources{};
  std::uint32_t count = 0;  // kMost + 1: more than that
  std::uint32_t nodes = 0;  // that name them
};

Moved find_moved(const CudaRecording& recording, const Given& given, const LaunchMemory& memory) {
  Moved moved;
  for (std::size_t source = 0; source < given.size(); ++source) {
    if (given.at(source) == memory.addresses[source]) continue;
    moved.nodes += recording.node_count(source);
    if (moved.count == Moved::kMost) {
      ++moved.count;
      break;
    }
    moved.sources[moved.count++] = static_cast<std::uint32_t>(source);
  }
  return moved;
}

Status check_moved(const Given& given, const Moved& moved, std::span<std::uint32_t> order) {
  if (moved.count > Moved::kMost) return given.check_all(order);
  for (std::uint32_t i = 0; i < moved.count; ++i) {
    if (Status placed = given.check_place(moved.sources[i]); !placed.ok()) return placed;
    for (std::size_t other = 0; other < given.size(); ++other) {
      if (other == moved.sources[i]) continue;
      if (Status apart = given.check_apart(moved.sources[i], other); !apart.ok()) return apart;
    }
  }
  return {};
}

// Takes over what this launch is given, if it is right.
Status take(const CudaRecording& recording, const CudaBindings& bindings, LaunchMemory& memory) {
  const Given given(recording, bindings);
  const Moved moved = find_moved(recording, given, memory);
  const bool few = moved.count <= Moved::kMost && moved.nodes <= recording.options().few_nodes;
  memory.repeats = few ? memory.repeats + 1 : 0;
  if (moved.count == 0) return {};
  if (Status fits = check_moved(given, moved, memory.order); !fits.ok()) return fits;
  std::copy(bindings.slots.begin(), bindings.slots.end(), memory.addresses.begin());
  memory.addresses.back() = bindings.arena;
  memory.is_set = false;
  return {};
}

void count_launch(CudaLaunchCounts& counts, Repoint how) {
  auto& count = how == Repoint::kNothing    ? counts.unchanged
                : how == Repoint::kFromHost ? counts.from_host
                                            : counts.from_device;
  count.fetch_add(1, std::memory_order_relaxed);
}

Result<Repoint> launch_from_host(CudaExec& exec, CuStream stream) {
  std::uint32_t set = 0;
  if (!exec.memory().is_set) {
    const auto done = exec.set_addresses(exec.memory().addresses);
    if (!done.ok()) return done.error();
    exec.memory().is_set = true;
    set = *done;
  }
  if (Status queued = exec.launch(stream); !queued.ok()) return queued;
  return set == 0 ? Repoint::kNothing : Repoint::kFromHost;
}

Result<Repoint> launch_from_device(CudaRecording& recording,
                                   std::span<const std::uint64_t> addresses, CuStream stream) {
  const ExecLease exec(recording.updating());
  // What the updater cannot set: copies, fills, functions that the driver refuses.
  if (const auto set = exec->set_addresses(addresses); !set.ok()) return set.error();
  if (Status queued = exec->launch(stream); !queued.ok()) return queued;
  return Repoint::kFromDevice;
}

}  // namespace

Result<Repoint> launch(CudaRecording& recording, const CudaBindings& bindings, CuStream stream) {
  if (bindings.slots.size() != recording.slots().size()) {
    return bad(
        fmt::format("{} addresses for {} slots", bindings.slots.size(), recording.slots().size()));
  }
  const ExecLease exec(recording.executables());
  LaunchMemory& memory = exec->memory();
  if (Status taken = take(recording, bindings, memory); !taken.ok()) return taken;
  const CudaRecordOptions& options = recording.options();
  const bool from_host =
      recording.updating().empty() || memory.is_set || memory.repeats >= options.settle_after ||
      exec->count_moved(memory.addresses, options.few_nodes) <= options.few_nodes;
  const auto how = from_host ? launch_from_host(*exec, stream)
                             : launch_from_device(recording, memory.addresses, stream);
  if (how.ok()) count_launch(recording.counts(), *how);
  return how;
}

}  // namespace anabranch::cuda
