// SPDX-License-Identifier: Apache-2.0
#include "anabranch/experimental/number_program.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>

#include "numbers/trace_testing.h"

namespace anabranch::numbers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace testing;

NumberProgram made(const Trace& first, const Trace& other, std::vector<Word> words) {
  auto program = NumberProgram::make(first.entries, other.entries, words);
  EXPECT_TRUE(program.ok()) << (program.ok() ? "" : program.error().message());
  return *std::move(program);
}

std::vector<std::uint64_t> words_of(const NumberProgram& program, std::vector<double> numbers) {
  std::vector<std::uint64_t> words(program.word_count());
  EXPECT_EQ(program.run(numbers, words), Outcome::kDone);
  return words;
}

Outcome outcome_of(const NumberProgram& program, std::vector<double> numbers) {
  std::vector<std::uint64_t> words(program.word_count());
  return program.run(numbers, words);
}

std::string why_not(const Trace& first, const Trace& other, std::vector<Word> words) {
  const auto program = NumberProgram::make(first.entries, other.entries, words);
  return program.ok() ? "" : program.error().message();
}

constexpr std::array kFirst{0.1, 0.83}, kOther{0.23, 0.7};

TEST(NumberProgram, WordsFollowWhatIsComputedBitForBit) {
  Trace first(kFirst), other(kOther);
  const int value = decay(first);
  decay(other);
  const auto program =
      made(first, other,
           {{8, bits(first[value]), bits(other[value])},
            {8, bits(-first[0]), bits(-other[0])},
            {8, single(1.0 / first[1]) << 32 | 7, single(1.0 / other[1]) << 32 | 7},
            {4, single(first[value]), single(other[value])}});
  EXPECT_EQ(program.number_count(), 2u);
  EXPECT_THAT(words_of(program, {0.3, 0.9}),
              ElementsAre(bits(1 - 0.3 * 0.9), bits(-0.3), single(1.0 / 0.9) << 32 | 7,
                          single(1 - 0.3 * 0.9)));
}

TEST(NumberProgram, WhatIsMadeAlikeManyTimesIsOneValue) {
  Trace first(kFirst), other(kOther);
  for (int i = 0; i < 100; ++i) decay(first), decay(other);
  const auto program = made(first, other, {{8, bits(first[201]), bits(other[201])}});
  // Were they two values, another word than one of them would be unknown where they part.
  EXPECT_THAT(words_of(program, {0.5, 0.5}), ElementsAre(bits(0.75)));
}

TEST(NumberProgram, WhatCompilersLeaveStaysAsItWasCaptured) {
  Trace first(kFirst), other(kOther);
  const auto program = made(first, other,
                            {{8, 0x7FDA, 0},
                             {8, 0x7FFF0BED9100, 0x7FFF0BED9000},
                             {8, std::uint64_t{0x7FDA} << 32 | single(0.1), single(0.23)},
                             {1, 7, 9}});
  EXPECT_THAT(words_of(program, {0.5, 0.6}),
              ElementsAre(0x7FDA, 0x7FFF0BED9100, std::uint64_t{0x7FDA} << 32 | single(0.5), 7));
}

// Addresses of the heap below 4 GiB, in a program that has one there, are floats of all sizes.
TEST(NumberProgram, AddressesOfTheHeapAreNoFloats) {
  Trace first(kFirst), other(kOther);
  const auto at = reinterpret_cast<std::uint64_t>(sbrk(1 << 16));
  const auto program = made(first, other, {{8, at + 64, at + 4096}});
  EXPECT_THAT(words_of(program, {0.5, 0.6}), ElementsAre(at + 64));
}

TEST(NumberProgram, WhatMayFollowInAnotherWayIsRefused) {
  Trace first(kFirst), other(kOther);
  EXPECT_THAT(why_not(first, other, {{8, bits(std::sqrt(0.1)), bits(std::sqrt(0.23))}}),
              HasSubstr("another way than by Python's arithmetic (word 0: "));
  Trace longer(kOther);
  decay(longer);
  EXPECT_THAT(why_not(first, longer, {}), HasSubstr("computes something else"));
  EXPECT_THAT(why_not(first, first, {}), HasSubstr("the same in both captures"));
  other.entries[1].is_looked_at = true;
  EXPECT_THAT(why_not(first, other, {}), HasSubstr("an integer or a text"));
}

TEST(NumberProgram, EntriesAreMadeOfEarlierOnes) {
  Trace later(kFirst), given_behind(kFirst), unknown(kFirst);
  later.add(Operator::kNegate, of(2), {}, 0);
  decay(given_behind);
  given_behind.entries.push_back({.value = 1});
  unknown.add(Operator::kEnd, of(0), {}, 0);
  for (const Trace& trace : {later, given_behind, unknown}) {
    const auto program = NumberProgram::make(trace.entries, trace.entries, {});
    ASSERT_FALSE(program.ok());
    EXPECT_EQ(program.error().code(), StatusCode::kProgramInvalid);
    EXPECT_FALSE(find_numbers_apart(trace.entries, kFirst, kFirst).ok());
  }
}

TEST(NumberProgram, AComparisonThatComesToSomethingElseLeadsAnotherWay) {
  Trace first(kFirst), other(kOther);
  for (Trace* trace : {&first, &other}) trace->add(Operator::kLess, of(0), constant(0.5), 1);
  const auto program = made(first, other, {{8, bits(0.1), bits(0.23)}});
  EXPECT_EQ(outcome_of(program, {0.4, 0.1}), Outcome::kDone);
  EXPECT_EQ(outcome_of(program, {0.6, 0.1}), Outcome::kOtherWay);
}

TEST(NumberProgram, WhatWasRoundedAlikeHasToBe) {
  constexpr std::array kSmall{1e-3}, kAnother{2e-3};
  Trace first(kSmall), other(kAnother);
  for (Trace* trace : {&first, &other}) {
    const int small = trace->add(Operator::kMultiply, of(0), constant(1e-20), (*trace)[0] * 1e-20);
    trace->add(Operator::kAdd, constant(1), of(small), 1);
  }
  const auto program = made(first, other, {{8, bits(1e-3), bits(2e-3)}});
  EXPECT_THAT(words_of(program, {3e-3}), ElementsAre(bits(3e-3)));
  EXPECT_EQ(outcome_of(program, {1e6}), Outcome::kOtherRounding);
}

TEST(NumberProgram, WhereTwoExplanationsPartOrPythonRaisesNothingIsKnown) {
  constexpr std::array kAlike{0.1, 0.1}, kAlikeToo{0.2, 0.2};
  Trace first(kAlike), other(kAlikeToo);
  const auto program = made(first, other, {{8, bits(0.1), bits(0.2)}});
  EXPECT_THAT(words_of(program, {0.3, 0.3}), ElementsAre(bits(0.3)));
  EXPECT_EQ(outcome_of(program, {0.3, 0.4}), Outcome::kUnknown);
  Trace divided(kFirst), divided_other(kOther);
  for (Trace* trace : {&divided, &divided_other}) {
    trace->add(Operator::kDivide, constant(1), of(0), 1 / (*trace)[0]);
  }
  const auto inverse =
      made(divided, divided_other, {{8, bits(divided[2]), bits(divided_other[2])}});
  EXPECT_EQ(outcome_of(inverse, {0.0, 0.5}), Outcome::kUnknown);
}

// Python's own, where C's pow() leaves more open or raises nothing.
TEST(NumberProgram, PowersAreThoseOfPython) {
  constexpr std::array kBases{2.0, 3.0}, kOthers{2.5, 3.5};
  const auto outcome = [&](double base, double exponent) {
    Trace first(kBases), other(kOthers);
    for (Trace* trace : {&first, &other}) {
      trace->add(Operator::kPower, of(0), of(1), std::pow((*trace)[0], (*trace)[1]));
    }
    const auto program = made(first, other, {{8, bits(first[2]), bits(other[2])}});
    std::vector<std::uint64_t> words(1);
    return std::pair(program.run(std::vector{base, exponent}, words), words[0]);
  };
  EXPECT_EQ(outcome(-2.0, 3.0), std::pair(Outcome::kDone, bits(-8.0)));
  EXPECT_EQ(outcome(-INFINITY, 3.0), std::pair(Outcome::kDone, bits(-INFINITY)));
  EXPECT_EQ(outcome(-INFINITY, -3.0), std::pair(Outcome::kDone, bits(-0.0)));
  EXPECT_EQ(outcome(0.5, INFINITY), std::pair(Outcome::kDone, bits(0.0)));
  EXPECT_EQ(outcome(NAN, 0.0), std::pair(Outcome::kDone, bits(1.0)));
  EXPECT_EQ(outcome(1e-300, 2.0), std::pair(Outcome::kDone, bits(0.0)));
  EXPECT_EQ(outcome(0.0, -1.0).first, Outcome::kUnknown);
  EXPECT_EQ(outcome(1e300, 2.0).first, Outcome::kUnknown);
  EXPECT_EQ(outcome(-2.0, 0.5).first, Outcome::kOtherWay);
}

}  // namespace
}  // namespace anabranch::numbers
