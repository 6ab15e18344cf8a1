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
  if (bindings.slots.size() != slots.size()) {
    return bad(fmt::format("{} addresses for {} slots", bindings.slots.size(), slots.size()));
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (bindings.slots[i] % slots[i].alignment != 0) {
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

// Two slots that share bytes would be written in an order that the capture has not seen.
Status check_overlap(const CudaRecording& recording, const CudaBindings& bindings, CudaExec& exec) {
  const auto slots = recording.slots();
  const auto order = exec.slot_order();  // nearly sorted from the last time
  for (std::size_t i = 1; i < order.size(); ++i) {
    for (std::size_t k = i; k > 0 && bindings.slots[order[k]] < bindings.slots[order[k - 1]]; --k) {
      std::swap(order[k], order[k - 1]);
    }
  }
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::uint32_t low = order[i - 1], high = order[i];
    if (bindings.slots[low] + slots[low].bytes > bindings.slots[high]) {
      return bad(
          fmt::format("slots {} and {} share bytes ({} at {:#x}, {} at {:#x}). Copy one of "
                      "the two tensors",
                      low, high, slots[low].bytes, bindings.slots[low], slots[high].bytes,
                      bindings.slots[high]));
    }
  }
  for (const std::uint32_t slot : order) {
    const std::uint64_t end = bindings.arena + recording.arena().size_bytes;
    if (bindings.slots[slot] < end && bindings.arena < bindings.slots[slot] + slots[slot].bytes) {
      return bad(fmt::format("slot {} at {:#x} lies in the arena", slot, bindings.slots[slot]));
    }
  }
  return {};
}

// Whether anything is elsewhere than at the last launch of this executable.
bool write_wanted(const CudaRecording& recording, const CudaBindings& bindings,
                  std::span<std::uint64_t> wanted) {
  bool moved = false;
  const auto& offsets = recording.arena().offsets;
  for (std::size_t unit = 0; unit < offsets.size(); ++unit) {
    if (offsets[unit] == kNotInArena) continue;
    const std::uint64_t address = bindings.arena + offsets[unit];
    moved = moved || wanted[unit] != address;
    wanted[unit] = address;
  }
  for (std::size_t i = 0; i < bindings.slots.size(); ++i) {
    std::uint64_t& address = wanted[recording.slots()[i].unit];
    moved = moved || address != bindings.slots[i];
    address = bindings.slots[i];
  }
  return moved;
}

Result<Repoint> launch_from_host(CudaRecording& recording, CudaExec& exec, CuStream stream) {
  const auto set = exec.set_addresses(exec.wanted());
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
  if (Status fits = check_addresses(recording, bindings); !fits.ok()) return fits;
  const ExecLease exec(recording.executables());
  const bool moved = write_wanted(recording, bindings, exec->wanted());
  if (moved) {
    if (Status apart = check_overlap(recording, bindings, *exec); !apart.ok()) {
      exec->forget_wanted();  // so that the same addresses are looked at again
      return apart;
    }
  }
  const CudaRecordOptions& options = recording.options();
  const bool settled = exec->count_repeats(moved) >= options.settle_after;
  if (recording.updating().empty() || settled ||
      exec->count_moved(exec->wanted(), options.few_nodes) <= options.few_nodes) {
    return launch_from_host(recording, *exec, stream);
  }
  return launch_from_device(recording, exec->wanted(), stream);
}

}  // namespace anabranch::cuda
