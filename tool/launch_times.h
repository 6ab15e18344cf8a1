// SPDX-License-Identifier: Apache-2.0
// The times of any number of launches in a fixed amount of memory: all of them up to a number, and
// beyond it every second, fourth, eighth and so on, evenly over the run.
// Ownership: a value.
// Threads:   one thread.
// Failure:   none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace anabranch::tool {

class LaunchTimes {
 public:
  // `most` is even and not 0.
  explicit LaunchTimes(std::size_t most = std::size_t{1} << 20) : most_(most) {}

  void add(std::uint64_t time_ns) {
    least_ns_ = count_ == 0 ? time_ns : std::min(least_ns_, time_ns);
    if (count_++ % every_ != 0) return;
    kept_ns_.push_back(time_ns);
    if (kept_ns_.size() == most_) halve();
  }
  std::uint64_t count() const { return count_; }
  std::uint64_t least_ns() const { return least_ns_; }  // of all
  // Of those that are kept, not one unless there was a launch.
  std::vector<std::uint64_t> sorted_ns() const {
    std::vector<std::uint64_t> sorted = kept_ns_;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

 private:
  void halve() {
    for (std::size_t i = 0; i < most_ / 2; ++i) kept_ns_[i] = kept_ns_[2 * i];
    kept_ns_.resize(most_ / 2);
    every_ *= 2;
  }

  std::size_t most_;
  std::uint64_t count_ = 0;
  std::uint64_t every_ = 1;
  std::uint64_t least_ns_ = 0;
  std::vector<std::uint64_t> kept_ns_;
};

}  // namespace anabranch::tool
