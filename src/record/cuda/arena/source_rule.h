// SPDX-License-Identifier: Apache-2.0
// What a launch may give a source: memory of so many bytes, at an address without certain bits.
// Ownership: a value.
// Threads:   values.
// Failure:   none.
// Edges:     one word, since a launch whose addresses all moved reads the rules of all its sources.
#pragma once

#include <cassert>
#include <cstdint>

namespace anabranch::cuda {

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

}  // namespace anabranch::cuda
