// SPDX-License-Identifier: Apache-2.0
#include "device/host/futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>

namespace anabranch::host {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

// The part of a spin in which the processor is kept. Afterwards it is offered to others between
// two looks: on a crowded machine the awaited thread may need this very core.
constexpr std::uint64_t kKeepCoreNs = 1'000;
constexpr int kLooksPerClock = 32;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

long futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) noexcept {
  return syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

void futex_sleep(const std::atomic<std::uint32_t>& word, std::uint32_t seen) noexcept {
  futex(word, FUTEX_WAIT_PRIVATE, seen);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
  futex(word, FUTEX_WAKE_PRIVATE, INT_MAX);
}

bool Gate::spin(std::uint32_t number, std::uint64_t spin_ns) const noexcept {
  if (spin_ns == 0) return false;
  const std::uint64_t begin = now_ns();
  for (std::uint64_t spent = 0; spent < spin_ns; spent = now_ns() - begin) {
    if (spent > kKeepCoreNs) sched_yield();
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (reached(number)) return true;
      relax();
    }
  }
  return false;
}

void Gate::wait_slowly(std::uint32_t number, std::uint64_t spin_ns) noexcept {
  if (spin(number, spin_ns)) return;
  std::uint32_t word = word_.load(std::memory_order_acquire);
  while (!is_reached(word, number)) {
    if (!(word & kSleeper) &&
        !word_.compare_exchange_weak(word, word | kSleeper, std::memory_order_acquire)) {
      continue;
    }
    futex_sleep(word_, word | kSleeper);
    word = word_.load(std::memory_order_acquire);
  }
}

}  // namespace anabranch::host
