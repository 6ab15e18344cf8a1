// SPDX-License-Identifier: Apache-2.0
// Which of a launch's addresses have moved, as far as one has to know them.
// Ownership: values; a SinceLaunch names the memory of an executable and does not own it.
// Threads:   values.
// Failure:   none.
// Edges:     more than a few are "many", and are not named.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

namespace anabranch::cuda {

// Places in a list of addresses: up to kMost by name, and beyond that only that there are more.
class MovedPlaces {
 public:
  static constexpr std::uint32_t kMost = 8;
  void add(std::size_t place) {
    if (count_ < kMost) places_[count_] = static_cast<std::uint32_t>(place);
    if (count_ <= kMost) ++count_;
  }
  std::uint32_t count() const { return count_; }  // kMost + 1: more than that
  bool are_many() const { return count_ > kMost; }
  std::span<const std::uint32_t> list() const {  // unless they are many
    assert(!are_many());
    return {places_.data(), count_};
  }

 private:
  std::array<std::uint32_t, kMost> places_{};
  std::uint32_t count_ = 0;
};

// Incremental launch state: the slots changed since the caller's last launch, and a token
// (executable, launch number) that tells whether that launch was the last one there.
struct SinceLaunch {
  MovedPlaces moved;
  const void* memory = nullptr;
  std::uint64_t number = 0;
};
}  // namespace anabranch::cuda
