// SPDX-License-Identifier: Apache-2.0
// Sleeping on a 32-bit word, and a growing number that threads wait for.
// Ownership: a Gate is a plain member; who waits for it must not outlive it.
// Threads:   a Gate has one publisher at a time and any number of waiters.
// Failure:   none; a sleeper that wakes for no reason looks again.
// Edges:     numbers have 31 bits and wrap: at most 2^30 may lie between the oldest awaited number
//            and the newest published one.
#pragma once

#include <atomic>
#include <cstdint>

namespace anabranch::host {

// Two lines: neighbouring lines travel together on most machines.
inline constexpr std::size_t kLinePair = 128;

// Sleeps while `word` holds `seen`.
void futex_sleep(const std::atomic<std::uint32_t>& word, std::uint32_t seen) noexcept;
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

class alignas(kLinePair) Gate {
 public:
  // Everything done before is seen by whoever finds `number` reached. No system call unless
  // somebody sleeps.
  void publish(std::uint32_t number) noexcept {
    // One exchange both publishes and learns of sleepers, so no wake-up is lost between the two.
    const std::uint32_t before = word_.exchange(number << 1, std::memory_order_acq_rel);
    if (before & kSleeper) [[unlikely]]
      futex_wake_all(word_);
  }

  bool reached(std::uint32_t number) const noexcept {
    return is_reached(word_.load(std::memory_order_acquire), number);
  }

  // Spins for about `spin_ns`, then sleeps.
  void wait(std::uint32_t number, std::uint64_t spin_ns) noexcept {
    if (!reached(number)) wait_slowly(number, spin_ns);
  }

 private:
  static constexpr std::uint32_t kSleeper = 1;
  static bool is_reached(std::uint32_t word, std::uint32_t number) noexcept {
    return static_cast<std::int32_t>((word & ~kSleeper) - (number << 1)) >= 0;
  }
  bool spin(std::uint32_t number, std::uint64_t spin_ns) const noexcept;
  void wait_slowly(std::uint32_t number, std::uint64_t spin_ns) noexcept;

  std::atomic<std::uint32_t> word_{0};  // number << 1 | kSleeper
};

}  // namespace anabranch::host
