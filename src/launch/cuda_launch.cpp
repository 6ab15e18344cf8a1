// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda_launch.h"

#include <fmt/format.h>

#include <algorithm>
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

Status check_addresses(const CudaRecording& recording, const CudaBindings& bindings) {
  const auto slots = recording.slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if ((bindings.slots[i] & (slots[i].alignment - 1)) != 0) {
      return bad(
          fmt::format("slot {} is at {:#x} and was captured aligned to {}. Kernels may rely "
                      "on it: copy the tensor to fresh memory",
                      i, bindings.slots[i], slots[i].alignment));
    }
  }
  if (recording.arena().size_bytes != 0 &&
      (bindings.arena == 0 || bindings.arena % kArenaAlignment != 0)) {
    return bad(fmt::format("the arena is at {:#x}; it must be aligned to {}", bindings.arena,
                           kArenaAlignment));
  }
  return {};
}

// Slots that share bytes would be written in an order that the capture has not seen. `order` is
// mostly right from the launch before: tensors that are allocated in turn keep their order.
Status check_overlap(const CudaRecording& recording, const CudaBindings& bindings,
                     std::span<std::uint32_t> order) {
  const auto slots = recording.slots();
  const auto at = [&](std::uint32_t slot) { return bindings.slots[slot]; };
  const auto by_address = [&](std::uint32_t a, std::uint32_t b) { return at(a) < at(b); };
  if (!std::is_sorted(order.begin(), order.end(), by_address)) {
    std::sort(order.begin(), order.end(), by_address);
  }
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::uint32_t low = order[i - 1], high = order[i];
    if (at(low) + slots[low].bytes > at(high)) {
      return bad(
          fmt::format("slots {} and {} share bytes ({} at {:#x}, {} at {:#x}). Copy one of "
                      "the two tensors",
                      low, high, slots[low].bytes, at(low), slots[high].bytes, at(high)));
    }
  }
  // Now that no two overlap, only the last slot that begins before the arena's end can reach it.
  const std::uint64_t end = bindings.arena + recording.arena().size_bytes;
  const auto behind = std::partition_point(order.begin(), order.end(),
                                           [&](std::uint32_t slot) { return at(slot) < end; });
  if (behind == order.begin() || end == bindings.arena) return {};
  const std::uint32_t last = *std::prev(behind);
  if (at(last) + slots[last].bytes <= bindings.arena) return {};
  return bad(fmt::format("slot {} at {:#x} lies in the arena", last, at(last)));
}

bool is_same(const LaunchMemory& memory, const CudaBindings& bindings) {
  return memory.arena == bindings.arena &&
         std::equal(bindings.slots.begin(), bindings.slots.end(), memory.slots.begin());
}

// Remembers what this launch is given, once it is known to be right.
void remember(const CudaRecording& recording, const CudaBindings& bindings, LaunchMemory& memory) {
  const auto& offsets = recording.arena().offsets;
  for (std::size_t unit = 0; unit < offsets.size(); ++unit) {
    if (offsets[unit] != kNotInArena) memory.addresses[unit] = bindings.arena + offsets[unit];
  }
  for (std::size_t i = 0; i < bindings.slots.size(); ++i) {
    memory.addresses[recording.slots()[i].unit] = bindings.slots[i];
  }
  std::copy(bindings.slots.begin(), bindings.slots.end(), memory.slots.begin());
  memory.arena = bindings.arena;
}

Result<Repoint> launch_from_host(CudaRecording& recording, CudaExec& exec, CuStream stream) {
  const auto set = exec.set_addresses(exec.memory().addresses);
  if (!set.ok()) return set.error();
  if (Status queued = exec.launch(stream); !queued.ok()) return queued;
  auto& counts = recording.counts();
  (*set == 0 ? counts.unchanged : counts.from_host).fetch_add(1, std::memory_order_relaxed);
  return *set == 0 ? Repoint::kNothing : Repoint::kFromHost;
}

Result<Repoint> launch_from_device(CudaRecording& recording, std::span<const std::uint64_t> wanted,
                                   CuStream stream) {
  const ExecLease exec(recording.updating());
  // What the updater cannot set: copies, fills, functions that the driver refuses.
  if (const auto set = exec->set_addresses(wanted); !set.ok()) return set.error();
  if (Status queued = exec->launch(stream); !queued.ok()) return queued;
  recording.counts().from_device.fetch_add(1, std::memory_order_relaxed);
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
  if (is_same(memory, bindings)) {
    ++memory.repeats;
  } else {
    memory.repeats = 0;
    if (Status fits = check_addresses(recording, bindings); !fits.ok()) return fits;
    if (Status apart = check_overlap(recording, bindings, memory.order); !apart.ok()) return apart;
    remember(recording, bindings, memory);
  }
  const CudaRecordOptions& options = recording.options();
  if (recording.updating().empty() || memory.repeats >= options.settle_after ||
      exec->count_moved(memory.addresses, options.few_nodes) <= options.few_nodes) {
    return launch_from_host(recording, *exec, stream);
  }
  return launch_from_device(recording, memory.addresses, stream);
}

}  // namespace anabranch::cuda
