// SPDX-License-Identifier: Apache-2.0
// The host device: the options of its launches and the crews of threads they lease.
// Ownership: recordings share it; the last one joins its threads.
// Threads:   all functions from any thread. Leasing takes no lock.
// Failure:   prepare_workers() is a Status. No free crew is no failure: the lease is empty and the
//            launch runs on its caller's thread.
// Edges:     a region may launch other recordings; they lease other crews or none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "anabranch/device.h"
#include "anabranch/experimental/thread_control.h"
#include "anabranch/program.h"
#include "anabranch/status.h"
#include "device/host/crew.h"

namespace anabranch::host {

// As many launches may run on several lanes at once; further ones run on one.
inline constexpr std::uint32_t kMaxCrews = 8;

// One launch's hold on a crew, or on none.
class CrewLease {
 public:
  explicit CrewLease(Crew* crew) noexcept : crew_(crew) {}
  ~CrewLease() {
    if (crew_) crew_->release();
  }
  CrewLease(const CrewLease&) = delete;
  CrewLease& operator=(const CrewLease&) = delete;

  explicit operator bool() const noexcept { return crew_ != nullptr; }
  Crew& operator*() const noexcept { return *crew_; }

 private:
  Crew* crew_;
};

class HostDevice {
 public:
  explicit HostDevice(const DeviceOptions& options);

  const DeviceOptions& options() const noexcept { return options_; }
  std::uint32_t max_lanes() const noexcept { return max_lanes_; }

  // Sees to it that there are crews, of `workers` threads at least; one more crew than before if a
  // launch has found all of them taken.
  Status prepare_workers(std::uint32_t workers);

  // Whether this process is a forked child, which has none of its parent's threads.
  bool is_forked() const noexcept { return generation_ != process_generation(); }

  CrewLease lease(std::uint32_t workers) noexcept;

 private:
  Crew* find_free_crew(std::uint32_t workers) noexcept;

  const DeviceOptions options_;
  const std::uint32_t max_lanes_;
  const std::uint32_t generation_ = process_generation();
  std::mutex growing_;
  std::uint32_t crew_size_ = 0;  // the most workers asked for; every crew serves every recording
  std::array<std::unique_ptr<Crew>, kMaxCrews> crews_;
  std::atomic<std::uint32_t> crew_count_{0};
  std::atomic<bool> crew_missed_{false};
};

}  // namespace anabranch::host
