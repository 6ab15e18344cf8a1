// SPDX-License-Identifier: Apache-2.0
// For tests: a team of threads that behaves as an OpenMP runtime's.
#pragma once

#include <algorithm>
#include <thread>
#include <vector>

#include "anabranch/experimental/thread_control.h"

namespace anabranch::testing {

class ThreadTeam {
 public:
  // The team, for callers that may use `threads` threads; teams get `most` members at most.
  static host::ThreadControl control(int threads, unsigned most = 64) {
    allowed_ = threads;
    most_ = most;
    host::ThreadControl control;
    control.get_openmp = [] { return allowed_; };
    control.team = {run, [] { return index_; }, [] { return size_; }};
    return control;
  }
  static int index() { return index_; }
  static int size() { return size_; }

 private:
  static void run(void (*body)(void*), void* data, unsigned threads, unsigned) {
    const bool nested = size_ != 1;
    const int size = nested ? 1 : static_cast<int>(std::min(threads, most_));
    std::vector<std::thread> members;
    for (int i = 1; i < size; ++i) members.emplace_back(join, i, size, body, data);
    const int before_index = index_, before_size = size_;
    join(0, size, body, data);
    index_ = before_index;
    size_ = before_size;
    for (std::thread& member : members) member.join();
  }
  static void join(int index, int size, void (*body)(void*), void* data) {
    index_ = index;
    size_ = size;
    body(data);
  }

  static inline int allowed_ = 1;
  static inline unsigned most_ = 64;
  static inline thread_local int index_ = 0;
  static inline thread_local int size_ = 1;
};

}  // namespace anabranch::testing
