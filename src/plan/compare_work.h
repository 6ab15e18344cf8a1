// SPDX-License-Identifier: Apache-2.0
// How much comparing of views one pass over a program may be. Counted and not timed, so that the
// same program is taken or refused on every machine. The limit is in plan.h.
// Ownership: borrows the program.
// Threads:   one thread.
// Failure:   kTooManyComparisons, once a pass has spent more than there is. Until then what it
//            found is exact; from then on it may answer anything at once, and the caller asks
//            refusal().
// Edges:     the unlimited one never ends.
#pragma once

#include <cstdint>
#include <string_view>

#include "anabranch/plan.h"
#include "anabranch/program.h"
#include "anabranch/status.h"

namespace anabranch {

class CompareWork {
 public:
  // A comparison by bounds is 1. These take longer, or memory.
  static constexpr std::uint64_t kSearch = 16;  // a place visited in the search for a shared byte
  static constexpr std::uint64_t kKept = 16;    // a pair that is remembered

  explicit CompareWork(const Program& program);
  static CompareWork unlimited() { return {}; }

  // Answers whether there was as much.
  bool spend(std::uint64_t amount) {
    if (amount > left_) return !(exhausted_ = true);
    left_ -= amount;
    return true;
  }
  bool exhausted() const { return exhausted_; }
  // For the message: whose views are compared now.
  void enter(BufferId buffer) {
    if (!exhausted_) buffer_ = buffer;
  }
  // `act` begins the message: "check".
  Status refusal(std::string_view act) const;

 private:
  CompareWork() = default;

  const Program* program_ = nullptr;
  std::uint64_t limit_ = ~std::uint64_t{0};
  std::uint64_t left_ = ~std::uint64_t{0};
  bool exhausted_ = false;
  BufferId buffer_ = kNoBuffer;
};

}  // namespace anabranch
