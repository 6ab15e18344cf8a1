// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/number_words.h"

#include <gmock/gmock.h>

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

FoundSites with(std::vector<ParamWord> unsure) {
  FoundSites found;
  found.unsure = std::move(unsure);
  return found;
}

std::vector<ParamWord> numbers(const FoundSites& found, const FoundSites& other) {
  const auto made = find_numbers(found, other);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
  return made.ok() ? *made : std::vector<ParamWord>();
}

TEST(NumberWords, AWordInWhichOnlyTheThirdCaptureDiffersFollowsANumber) {
  const ParamWord word{3, 8, 8, 10, 20}, rest{3, 16, 4, 1, 2};
  EXPECT_THAT(numbers(with({}), with({word, rest})), ElementsAre(word, rest));
  const FoundSites others = with({{2, 8, 8, 5, 6}, {3, 0, 8, 5, 6}, {4, 8, 8, 5, 6}});
  EXPECT_THAT(numbers(others, with({word, rest})), ElementsAre(word, rest));
}

TEST(NumberWords, WhatDiffersInEveryCaptureFollowsNone) {
  EXPECT_THAT(numbers(with({{3, 8, 4, 10, 20}}), with({{3, 8, 4, 10, 30}})), IsEmpty());
  EXPECT_THAT(numbers(with({{3, 8, 8, 10, 20}}), with({{3, 8, 8, 10, 30}})), IsEmpty());
  EXPECT_THAT(numbers(with({{3, 8, 8, 10, 20}}), with({})), IsEmpty());
}

// A float, and beside it what the compiler left there.
TEST(NumberWords, HalfOfAWordMayFollowANumberWhereTheOtherHalfIsNoPartOfIt) {
  const std::uint64_t left = std::uint64_t{0x11} << 32, other_left = std::uint64_t{0x22} << 32;
  EXPECT_THAT(numbers(with({{3, 8, 8, left | 10, other_left | 10}}),
                      with({{3, 8, 8, left | 10, other_left | 20}})),
              ElementsAre(ParamWord{3, 8, 4, 10, 20}));
  const auto swap = [](std::uint64_t word) { return word >> 32 | word << 32; };
  EXPECT_THAT(numbers(with({{3, 8, 8, swap(left | 10), swap(other_left | 10)}}),
                      with({{3, 8, 8, swap(left | 10), swap(left | 20)}})),
              ElementsAre(ParamWord{3, 12, 4, 10, 20}));
}

TEST(NumberWords, AThirdCaptureThatNamesOtherMemoryIsRefused) {
  FoundSites found, other;
  found.sites = {{0, Operand::kParam, 0, 0, 0}};
  other.sites = {{0, Operand::kParam, 0, 1, 0}};
  const auto refused = find_numbers(found, other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), StatusCode::kCapturesDiffer);
  EXPECT_THAT(refused.error().message(), HasSubstr("names other memory"));
  found.sites = {{0, Operand::kDestination, 0, 0, 0}};
  other.sites = {};
  EXPECT_FALSE(find_numbers(found, other).ok());
}

// Behind the used part of an array.
TEST(NumberWords, AnAddressThatIsLeftOverInTwoCapturesIsNoNumberAndNoReasonToRefuse) {
  const ParamWord left{1, 16, 8, 0x1000, 0x77}, number{1, 24, 8, 10, 20};
  FoundSites found = with({}), other = with({left, number});
  found.sites = {{1, Operand::kParam, 8, 0, 0}, {1, Operand::kParam, 16, 2, 0}};
  other.sites = {{1, Operand::kParam, 8, 0, 0}};
  EXPECT_THAT(numbers(found, other), ElementsAre(number));
  found = with({left}), other = with({number});
  other.sites = {{1, Operand::kParam, 16, 2, 0}};
  EXPECT_THAT(numbers(found, other), ElementsAre(number));
}

}  // namespace
}  // namespace anabranch::cuda
