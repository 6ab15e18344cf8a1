// SPDX-License-Identifier: Apache-2.0
// Units: what moves as one when a recording is launched at new addresses.
// Ownership: values.
// Threads:   pure.
// Failure:   kCapturesDiffer where the two captures did not allocate alike.
// Edges:     no allocations, no units.
//
// The capture's allocator may give one address to several tensors, one after the other. All of them
// are one unit, as large as the largest, since a kernel's word says the address and not the tenant:
// smaller units would overflow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "record/cuda/image/capture_memory.h"

namespace anabranch::cuda {

// Of all places that units get: what the capture's allocator gave.
inline constexpr std::uint64_t kUnitAlignment = 512;

struct Unit {
  std::uint64_t first_address = 0;   // in the first capture
  std::uint64_t second_address = 0;  // in the second
  std::uint64_t bytes = 0;
};

// Sorted by address in either capture, to find the unit of a word.
class UnitTable {
 public:
  // Units are numbered by the time of their first allocation. None touches another in one of the
  // captures at least; in the other one they may, as the memory does that a step is given.
  static Result<UnitTable> make(std::span<const CaptureAllocation> first,
                                std::span<const CaptureAllocation> second);

  std::span<const Unit> units() const { return units_; }

  struct Hit {
    std::uint32_t unit = 0;
    std::uint64_t offset = 0;  // up to and including the unit's size: an end pointer
  };
  static constexpr std::uint32_t kNone = ~0u;
  // `unit` is kNone where the address lies in none. Where units touch, an end pointer of one is
  // taken for an address of the next.
  Hit find_in_first(std::uint64_t address) const;
  Hit find_in_second(std::uint64_t address) const;
  // The place that an address of the first and one of the second mean; kNone where they mean two.
  Hit find(std::uint64_t first, std::uint64_t second) const;

 private:
  Status sort();
  bool are_apart_in_first_ = true;
  std::vector<Unit> units_;
  std::vector<std::uint32_t> by_first_;
  std::vector<std::uint32_t> by_second_;
};

}  // namespace anabranch::cuda
