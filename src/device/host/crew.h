// SPDX-License-Identifier: Apache-2.0
// A crew: worker threads that one launch leases, uses and gives back.
// Ownership: a Crew owns its threads and joins them; what a Job points to belongs to the launch.
// Threads:   grow() under the device's mutex; try_lease() from anywhere; the rest by the lessee.
// Failure:   grow() is a Status; everything after it cannot fail.
// Edges:     a forked child has none of the threads: its crews are never leased and never joined.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "anabranch/experimental/thread_control.h"
#include "anabranch/status.h"
#include "device/host/futex.h"

namespace anabranch::host {

// Different in a forked child from what it was in its parent; never 0.
std::uint32_t process_generation() noexcept;

struct Job {
  void (*run)(void* context, std::uint32_t worker) noexcept = nullptr;
  void* context = nullptr;
  int threads_each = 0;  // what libraries inside regions may use on each worker; 0: as it was
};

class Crew {
 public:
  Crew(std::uint32_t max_workers, const DeviceOptions& options);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Starts threads until there are `workers` of them.
  Status grow(std::uint32_t workers);

  std::uint32_t size() const noexcept { return size_.load(std::memory_order_acquire); }
  bool try_lease() noexcept {
    return !leased_.load(std::memory_order_relaxed) &&
           !leased_.exchange(true, std::memory_order_acquire);
  }
  void release() noexcept { leased_.store(false, std::memory_order_release); }

  // Workers [0, workers) each call job.run once.
  void start(const Job& job, std::uint32_t workers) noexcept;
  // Returns when the workers of the last start() have.
  void wait() noexcept;

 private:
  struct Worker {
    Gate started;  // number of the latest job to run
    Gate ended;    // number of the latest job that has run
    Crew* crew = nullptr;
    std::uint32_t index = 0;
    std::uint32_t jobs = 0;  // the lessee's count
    pthread_t thread{};
  };
  static void* run_thread(void* worker);
  int start_thread(Worker& worker);
  void work(Worker& worker);
  void set_threads(int threads, int& current) const noexcept;

  const DeviceOptions options_;
  const std::uint32_t generation_ = process_generation();
  const std::unique_ptr<Worker[]> workers_;
  std::atomic<std::uint32_t> size_{0};
  Job job_;
  std::uint32_t job_workers_ = 0;
  alignas(kLinePair) std::atomic<bool> leased_{false};
};

}  // namespace anabranch::host
