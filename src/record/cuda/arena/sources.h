// SPDX-License-Identifier: Apache-2.0
// Sources: what a launch gives a word each. The slots come first, then the parts of the arena; both
// are given addresses. Then come the numbers.
// Ownership: values.
// Threads:   values.
// Failure:   none.
// Edges:     a source without bytes may have any address; a number is one, whose word is any.
#pragma once

#include <cassert>
#include <cstdint>

#include "record/cuda/sites/sites.h"

namespace anabranch::cuda {

// Memory of the caller that a launch is given: any address with this alignment. Given memory that
// no node names is no slot.
struct CudaSlot {
  std::uint32_t unit = 0;
  std::uint32_t allocation = 0;  // the last of those that are the unit
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 0;  // what both captures had, 512 at most
};

// A word that a launch gives: `bytes` of a kernel's parameters, the lowest of the word. What it was
// in the first capture, and in the one with other numbers.
struct CudaNumber {
  std::uint32_t bytes = 0;
  std::uint64_t first = 0, other = 0;
  bool operator==(const CudaNumber&) const = default;
};

// What a launch may give a source: memory of so many bytes, at an address without certain bits. One
// word, since a launch whose addresses all moved reads the rules of all its sources.
class SourceRule {
 public:
  static constexpr int kMaskBits = 16;
  static constexpr std::uint64_t kMask = (std::uint64_t{1} << kMaskBits) - 1;

  // `mask`: the alignment less one; none where there are no bytes, and the address may be any.
  SourceRule(std::uint64_t bytes, std::uint64_t mask) : word_(bytes << kMaskBits | mask) {
    assert(mask <= kMask && this->bytes() == bytes);
  }
  std::uint64_t bytes() const { return word_ >> kMaskBits; }
  std::uint64_t mask() const { return word_ & kMask; }

 private:
  std::uint64_t word_;
};
static_assert(sizeof(SourceRule) == sizeof(std::uint64_t));

// Where a node holds an address that a launch gives: that of a source, and so many bytes more. They
// contain where a temporary lies in its part of the arena, or in the slot that lends it bytes. Or
// the lowest bytes of a number.
struct PlacedSite {
  std::uint32_t node = 0;
  Operand operand = Operand::kParam;
  std::uint32_t offset = 0;
  std::uint32_t source = 0;
  std::uint64_t shift = 0;
  std::uint32_t bytes = kAddressBytes;  // that it has
  static constexpr std::uint32_t kAddressBytes = sizeof(std::uint64_t);
  bool operator==(const PlacedSite&) const = default;
};

}  // namespace anabranch::cuda
