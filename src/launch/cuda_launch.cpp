// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda_launch.h"

#include <thread>
#include <utility>

namespace anabranch::cuda {
namespace {

// An executable of the recording, for the time of one launch.
class ExecLease {
 public:
  // One launch of an executable runs at a time, so each stream keeps to one, which also has most of
  // its addresses right. Leases are short: while all are taken, the thread offers its core.
  ExecLease(std::span<const std::unique_ptr<CudaExec>> from, CuStream stream) noexcept
      : exec_(take(from, stream)) {}
  ~ExecLease() { exec_.release(); }
  ExecLease(const ExecLease&) = delete;
  ExecLease& operator=(const ExecLease&) = delete;

  CudaExec* operator->() const noexcept { return &exec_; }
  CudaExec& operator*() const noexcept { return exec_; }

 private:
  static CudaExec& take(std::span<const std::unique_ptr<CudaExec>> from, CuStream stream) noexcept {
    for (;; std::this_thread::yield()) {
      for (const CuStream used_by : {stream, CuStream{nullptr}}) {
        if (CudaExec* const exec = take_used_by(from, used_by)) return *exec;
      }
      for (const auto& exec : from) {
        if (exec->try_lease()) return *exec;
      }
    }
  }
  static CudaExec* take_used_by(std::span<const std::unique_ptr<CudaExec>> from,
                                CuStream stream) noexcept {
    for (const auto& exec : from) {
      if (!exec->try_lease()) continue;
      if (exec->last_stream() == stream) return exec.get();
      exec->release();
    }
    return nullptr;
  }
  CudaExec& exec_;
};

void count_launch(CudaLaunchCounts& counts, Repoint how) {
  auto& count = how == Repoint::kNothing    ? counts.unchanged
                : how == Repoint::kFromHost ? counts.from_host
                                            : counts.from_device;
  count.fetch_add(1, std::memory_order_relaxed);
}

// `moved`: since this executable's nodes were last set, or everything for all that is known.
Result<Repoint> launch_from_host(CudaExec& exec, const Moved& moved, CuStream stream) {
  LaunchMemory& memory = exec.memory();
  const bool only_few = std::exchange(memory.is_set, false) && !moved.sources.are_many();
  const auto set = only_few ? exec.set_addresses(memory.addresses, moved.sources.list())
                            : exec.set_addresses(memory.addresses);
  if (!set.ok()) return set.error();
  memory.is_set = true;
  if (Status queued = exec.launch(stream); !queued.ok()) return queued;
  return *set == 0 ? Repoint::kNothing : Repoint::kFromHost;
}

Result<Repoint> launch_from_device(CudaRecording& recording, LaunchMemory& memory,
                                   CuStream stream) {
  memory.is_set = false;  // in the executable whose memory this is
  const ExecLease exec(recording.updating(), stream);
  // What the updater cannot set: copies of the host's memory, functions that the driver refuses.
  if (const auto set = exec->set_addresses(memory.addresses); !set.ok()) return set.error();
  if (Status queued = exec->launch(stream); !queued.ok()) return queued;
  memory.next_table = exec->next_table();
  return Repoint::kFromDevice;
}

}  // namespace

Result<Repoint> launch(CudaRecording& recording, std::span<const std::uint64_t> addresses,
                       CuStream stream, SinceLaunch* since) {
  const ExecLease exec(recording.executables(), stream);
  LaunchMemory& memory = exec->memory();
  const auto moved = take_bindings(recording, addresses, memory, since);
  if (!moved.ok()) return moved.error();
  const CudaRecordOptions& options = recording.options();
  const bool from_host =
      recording.updating().empty() || memory.repeats >= options.settle_after ||
      (memory.is_set && moved->nodes <= options.few_nodes && !moved->sources.are_many()) ||
      exec->count_moved(memory.addresses, options.few_nodes) <= options.few_nodes;
  const auto how = from_host ? launch_from_host(*exec, *moved, stream)
                             : launch_from_device(recording, memory, stream);
  if (how.ok()) count_launch(recording.counts(), *how);
  return how;
}

Status launch_timed(CudaRecording& recording, TimedExec& timed,
                    std::span<const std::uint64_t> addresses, CuStream stream) {
  CudaExec& exec = timed.exec();
  const TryLease lease(exec);
  if (!lease || !timed.is_over()) {
    return Status(StatusCode::kBusy,
                  "launch: the last timed launch has not ended, and the next would take its times. "
                  "Wait for its stream, or launch the recording itself.");
  }
  const auto moved = take_bindings(recording, addresses, exec.memory());
  if (!moved.ok()) return moved.error();
  if (Status marked = timed.mark_begin(stream); !marked.ok()) return marked;
  const auto how = launch_from_host(exec, *moved, stream);
  if (!how.ok()) return how.error();
  count_launch(recording.counts(), *how);
  return timed.mark_end(stream);
}

Status mark_end(LaunchMark& mark, CuStream stream, const Driver& driver) {
  const Status placed = mark.place(stream);
  if (!placed.ok()) driver.cuStreamSynchronize(stream);
  return placed;
}

}  // namespace anabranch::cuda
