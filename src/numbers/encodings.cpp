// SPDX-License-Identifier: Apache-2.0
#include "numbers/encodings.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace anabranch::numbers {
namespace {

// Where the exponent and the fraction of floats and halves lie.
constexpr std::uint32_t kFloatInfinity = 0x7F800000, kHalfBits = 10;
constexpr std::uint32_t kHalfInfinity = 0x7C00, kHalfNan = 0x7E00, kBFloatNan = 0x7FC0;
constexpr int kLeastHalfExponent = -14;

std::uint32_t bits_of_float(double value) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(value));
}

std::uint32_t bfloat16_of(double value) {
  const std::uint32_t bits = bits_of_float(value);
  if ((bits & 0x7FFFFFFF) > kFloatInfinity) return kBFloatNan;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

std::uint32_t half_of(double value) {
  const auto narrow = static_cast<float>(value);
  const std::uint32_t sign = std::signbit(narrow) ? 0x8000 : 0;
  if (std::isnan(narrow)) return sign | kHalfNan;
  if (std::isinf(narrow)) return sign | kHalfInfinity;
  if (narrow == 0) return sign;
  int exponent = 0;
  const double size = std::frexp(std::fabs(static_cast<double>(narrow)), &exponent);
  // As a multiple of the half's last place, which nearbyint() rounds to the even one.
  const int least = std::max(exponent - 1, kLeastHalfExponent) - static_cast<int>(kHalfBits);
  const auto multiple =
      static_cast<std::uint64_t>(std::nearbyint(std::ldexp(size, exponent - least)));
  const auto biased =
      static_cast<std::uint64_t>(least + static_cast<int>(kHalfBits) - kLeastHalfExponent);
  // A multiple beyond the fraction's bits carries into the exponent by itself.
  const std::uint64_t bits = (biased << kHalfBits) + multiple;
  return sign | static_cast<std::uint32_t>(std::min<std::uint64_t>(bits, kHalfInfinity));
}

double half_meant(std::uint64_t word) {
  const double sign = word & 0x8000 ? -1.0 : 1.0;
  const auto exponent = static_cast<int>(word >> kHalfBits & 0x1F);
  const auto fraction = static_cast<double>(word & ((1u << kHalfBits) - 1));
  if (exponent == 0x1F) return sign * (fraction != 0 ? NAN : INFINITY);
  const double whole = exponent != 0 ? fraction + (1u << kHalfBits) : fraction;
  return sign * std::ldexp(whole, std::max(exponent, 1) - 15 - static_cast<int>(kHalfBits));
}

double float_meant(std::uint64_t word) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(word));
}

std::optional<double> changed(double value, Change change) {
  const double narrow = static_cast<double>(static_cast<float>(value));
  switch (change) {
    case Change::kNegative:
      return -value;
    case Change::kInverse:
      return value != 0 ? std::optional(1.0 / value) : std::nullopt;
    case Change::kComplement:
      return 1.0 - value;
    case Change::kInverseOfFloat:
      return narrow != 0 ? std::optional(1.0 / narrow) : std::nullopt;
    case Change::kComplementOfFloat:
      return 1.0 - narrow;
    default:
      return value;
  }
}

}  // namespace

std::span<const Way> all_ways() {
  using enum Change;
  using enum Encoding;
  static constexpr std::array kAll{
      Way{kNone, kDouble},          Way{kNegative, kDouble},
      Way{kInverse, kDouble},       Way{kComplement, kDouble},
      Way{kNone, kFloat},           Way{kNegative, kFloat},
      Way{kInverse, kFloat},        Way{kComplement, kFloat},
      Way{kInverseOfFloat, kFloat}, Way{kComplementOfFloat, kFloat},
      Way{kNone, kBFloat16},        Way{kNone, kHalf},
      Way{kNegative, kBFloat16},    Way{kNegative, kHalf},
  };
  return kAll;
}

std::uint64_t encoded(double value, Encoding encoding) {
  switch (encoding) {
    case Encoding::kDouble:
      return std::bit_cast<std::uint64_t>(value);
    case Encoding::kFloat:
      return bits_of_float(value);
    case Encoding::kBFloat16:
      return bfloat16_of(value);
    default:
      return half_of(value);
  }
}

std::optional<std::uint64_t> encoded(double value, Way way) {
  const auto made = changed(value, way.change);
  return made ? std::optional(encoded(*made, way.encoding)) : std::nullopt;
}

std::array<double, 2> decoded(std::uint64_t word, std::uint32_t bytes) {
  if (bytes == 8) return {std::bit_cast<double>(word), NAN};
  if (bytes == 4) return {float_meant(word), NAN};
  return {float_meant(word << 16), half_meant(word)};
}

}  // namespace anabranch::numbers
