// SPDX-License-Identifier: Apache-2.0
// Units: what moves as one when a recording is launched at new addresses.
// Ownership: values.
// Threads:   pure.
// Failure:   kCapturesDiffer where the two captures did not allocate alike.
// Edges:     no allocations, no units.
//
// The capture's allocator may give one address to several tensors, one after the other. All of them
// are one unit, as large as the largest, since a kernel's word says the address and not the tenant:
// smaller units would overflow. The two captures may use memory again in different ways. The one in
// which units have gaps between them says what is one unit; in the other its tenants lie anywhere.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "record/cuda/image/capture_memory.h"

namespace anabranch::cuda {

// Of all places that units get: what the capture's allocator gave.
inline constexpr std::uint64_t kUnitAlignment = 512;

struct Unit {
  std::uint64_t address = 0;    // in the capture that tells units apart
  std::uint64_t alignment = 1;  // that all its addresses have, in both
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
  std::span<const std::uint32_t> unit_of() const { return unit_of_; }  // by allocation

  struct Hit {
    std::uint32_t unit = 0;
    std::uint64_t offset = 0;  // up to and including the unit's size: an end pointer
  };
  static constexpr std::uint32_t kNone = ~0u;
  // `unit` is kNone where the address lies in none. Where units touch, an end pointer of one is
  // taken for an address of the next. In a capture that tells units by address alone.
  Hit find_in_first(std::uint64_t address) const { return find_in(0, address); }
  Hit find_in_second(std::uint64_t address) const { return find_in(1, address); }
  // The place that an address of the first and one of the second mean; kNone where they mean two.
  Hit find(std::uint64_t first, std::uint64_t second) const;
  // Whether each unit has one address there, and shares no byte with another.
  bool tells_by_address(bool in_second) const { return tells_[in_second]; }

 private:
  struct Place {
    std::uint64_t address = 0;
    std::uint32_t unit = 0;
    auto operator<=>(const Place&) const = default;
  };
  UnitTable() = default;
  Hit find_in(int capture, std::uint64_t address) const;
  bool are_apart(int capture, std::uint64_t gap) const;

  std::vector<Unit> units_;
  std::vector<std::uint32_t> unit_of_;
  std::array<std::vector<Place>, 2> places_;  // by capture, sorted, each once
  std::array<bool, 2> tells_{};
  int telling_ = 0;  // the capture whose addresses say what is one unit
};

}  // namespace anabranch::cuda
