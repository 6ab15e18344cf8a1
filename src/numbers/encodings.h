// SPDX-License-Identifier: Apache-2.0
// How kernels are given a number: in which bits, and changed how by torch's own C++.
// Ownership: values.
// Threads:   pure.
// Failure:   nothing, where a number has no inverse.
// Edges:     what is too large for a float is infinite. Halves come by way of a float, rounded to
// the
//            nearest, of two such to the even one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace anabranch::numbers {

enum class Encoding : std::uint8_t { kDouble, kFloat, kBFloat16, kHalf };

// kInverse as a kernel that multiplies in place of dividing is given it, kComplement (taken from 1)
// as dropout is; the last two of what has been rounded to a float before.
enum class Change : std::uint8_t {
  kNone,
  kNegative,
  kInverse,
  kComplement,
  kInverseOfFloat,
  kComplementOfFloat
};

struct Way {
  Change change = Change::kNone;
  Encoding encoding = Encoding::kDouble;
};

constexpr std::uint32_t bytes_of(Encoding encoding) {
  return encoding == Encoding::kDouble ? 8 : encoding == Encoding::kFloat ? 4 : 2;
}

// All there are, by bytes.
std::span<const Way> all_ways();

std::uint64_t encoded(double value, Encoding encoding);
std::optional<std::uint64_t> encoded(double value, Way way);

// What so many bytes may mean as a number, 8, 4 or 2; the second is of 2 bytes alone.
std::array<double, 2> decoded(std::uint64_t word, std::uint32_t bytes);

}  // namespace anabranch::numbers
