// SPDX-License-Identifier: Apache-2.0
#include "numbers/encodings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace anabranch::numbers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Encodings, EachWordOfTwoBytesIsMadeOfWhatItMeans) {
  for (std::uint64_t word = 0; word <= 0xFFFF; ++word) {
    const auto [bfloat, half] = decoded(word, 2);
    if (!std::isnan(bfloat)) {
      EXPECT_EQ(encoded(bfloat, Encoding::kBFloat16), word);
    }
    if (!std::isnan(half)) {
      EXPECT_EQ(encoded(half, Encoding::kHalf), word);
    }
  }
}

TEST(Encodings, WhatLiesBetweenTwoIsTheNearestAndOfEquallyNearOnesTheEvenOne) {
  for (const Encoding encoding : {Encoding::kBFloat16, Encoding::kHalf}) {
    const auto meant = [&](std::uint64_t word) {
      return decoded(word, 2)[encoding == Encoding::kHalf ? 1 : 0];
    };
    for (std::uint64_t word = 0; word < 0x7BFF; ++word) {
      const double low = meant(word), high = meant(word + 1), middle = low + (high - low) / 2;
      EXPECT_EQ(encoded(middle, encoding), word + (word & 1)) << word;
      // Nearer than a float can tell, which it goes by, it is the middle.
      EXPECT_EQ(encoded(low + (high - low) * 0.49, encoding), word);
      EXPECT_EQ(encoded(low + (high - low) * 0.51, encoding), word + 1);
    }
  }
}

TEST(Encodings, WhatIsTooLargeIsInfiniteAndNoNumberIsNone) {
  EXPECT_EQ(encoded(65519.0, Encoding::kHalf), 0x7BFFu);
  EXPECT_EQ(encoded(65520.0, Encoding::kHalf), 0x7C00u);
  EXPECT_EQ(encoded(-1e30, Encoding::kHalf), 0xFC00u);
  EXPECT_EQ(encoded(1e300, Encoding::kFloat), 0x7F800000u);
  EXPECT_EQ(encoded(-kInfinity, Encoding::kBFloat16), 0xFF80u);
  EXPECT_EQ(encoded(NAN, Encoding::kBFloat16), 0x7FC0u);
  EXPECT_EQ(encoded(1e-9, Encoding::kHalf), 0u);
  EXPECT_EQ(encoded(-1e-9, Encoding::kHalf), 0x8000u);
}

TEST(Encodings, NothingIsTheInverseOfZero) {
  const auto made = [](double value, Change change) {
    return encoded(value, Way{change, Encoding::kFloat});
  };
  EXPECT_FALSE(made(0.0, Change::kInverse));
  EXPECT_TRUE(made(1e-60, Change::kInverse));
  EXPECT_FALSE(made(1e-60, Change::kInverseOfFloat));
  EXPECT_EQ(made(0.1, Change::kInverseOfFloat),
            encoded(1.0 / static_cast<double>(0.1f), Encoding::kFloat));
  EXPECT_EQ(made(0.25, Change::kComplement), encoded(0.75, Encoding::kFloat));
}

}  // namespace
}  // namespace anabranch::numbers
