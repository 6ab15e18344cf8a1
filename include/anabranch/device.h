// SPDX-License-Identifier: Apache-2.0
// Devices: where a plan is made real.
// Ownership: a Device is a shared handle; recordings keep theirs alive.
// Threads:   all functions may be called from any thread.
// Failure:   a device that cannot be had is a Status with its reason, a normal state.
// Edges:     after fork() the host device of the child runs launches on the calling thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "anabranch/export.h"
#include "anabranch/status.h"

namespace anabranch {

// What a region is given: the address of the buffer of each of its accesses, in the order in which
// the step declares them (the start of the buffer, not of the view).
struct RegionCall {
  void* const* buffers = nullptr;
  std::uint32_t buffer_count = 0;
  char* error = nullptr;  // where a failing region may write a text, NUL-terminated
  std::uint32_t error_bytes = 0;
};

// Answers 0, or any other number as failure. It may throw; that is a failure too.
using RegionFunction = std::int32_t (*)(void* context, const RegionCall* call);

struct Region {
  RegionFunction function = nullptr;
  void* context = nullptr;
};

// Threads that the process keeps anyway for the libraries inside regions: an OpenMP runtime's
// GOMP_parallel, omp_get_thread_num and omp_get_num_threads, or functions that behave as they do.
struct Team {
  // Calls body(data) once on each thread of a team, the caller's among them as number 0, and
  // returns when all have. The team may be smaller than asked for. `flags` is 0.
  void (*run)(void (*body)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*index)() = nullptr;  // of the calling thread in its team
  int (*size)() = nullptr;   // of that team
};

// How the libraries that run inside regions are told how many threads they may use on the calling
// thread. Where each lane of a launch has several, workers of the device run the lanes, and the
// launch shares the caller's number out and restores it afterwards. Where each has one, the team
// runs them, if there is one: two sets of threads on the same cores would take turns. Steps beside
// which no other can run are then outside the team, and all threads are theirs.
struct ThreadControl {
  std::int32_t (*prepare)(std::uint32_t* threads) = nullptr;  // once on each new worker
  int (*get_openmp)() = nullptr;
  void (*set_openmp)(int) = nullptr;
  int (*set_mkl_local)(int) = nullptr;  // answers the number before; 0 is "as the process"
  Team team;
};

struct HostOptions {
  // Threads a launch may use, the caller's included. 0: as many as the machine has cores.
  std::uint32_t max_lanes = 0;
  // How long a waiting thread spins before it sleeps.
  std::uint64_t spin_ns = 50'000;
  // Sleeps a random time below 200 us before every step, the same for the same seed: no result
  // may depend on it. A tool for finding races, not for speed.
  std::optional<std::uint64_t> delays_seed;
  ThreadControl threads;
};

namespace host {
class HostDevice;  // src/device/host/host_device.h
}

class Device {
 public:
  ANABRANCH_API static Device host(HostOptions options = {});
  ANABRANCH_API std::string name() const;
  const std::shared_ptr<host::HostDevice>& host_device() const { return host_; }

 private:
  explicit Device(std::shared_ptr<host::HostDevice> host) : host_(std::move(host)) {}
  std::shared_ptr<host::HostDevice> host_;
};

}  // namespace anabranch
