// SPDX-License-Identifier: Apache-2.0
// A host device that shares the process's threads with the libraries inside regions, such as OpenMP
// and MKL.
// Ownership: functions belong to the caller and must outlive the device.
// Threads:   get, set and team functions are called on threads that launch, prepare on new workers.
// Failure:   none; what is null is not used.
// Edges:     made for the Python package, and may change with any version.
#pragma once

#include <cstdint>

#include "anabranch/device.h"
#include "anabranch/export.h"

namespace anabranch::host {

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

struct DeviceOptions : HostOptions {
  ThreadControl threads;
};

// As Device::host(), whose options have no control over threads.
ANABRANCH_API Device make_device(const DeviceOptions& options);

}  // namespace anabranch::host
