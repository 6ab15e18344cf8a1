// SPDX-License-Identifier: Apache-2.0
// How words of a recording's kernels follow the numbers of its step: a learning rate reaches
// kernels as 1 - lr * decay. The arithmetic was noted while the step was captured, twice, with
// other numbers each time; a launch does it again for the numbers of now.
//
// Ownership: values.
// Threads:   pure, and a program is immutable.
// Failure:   kNotRecordable says in one clause why words cannot be followed; kProgramInvalid names
//            an entry that is made of a later one; see Outcome.
// Edges:     a program without words only tells whether the step goes the same way. Made for the
//            Python package, and may change with any version.
//
// The arithmetic is that of Python's floats, bit for bit. A word is explained by a value if it is
// that in both captures, as kernels have it: a double, a float, a bfloat16 or a half, or several of
// these in one word; negative, inverted or taken from 1 where torch does that in C++. What is
// explained by nothing and can be no number that follows is what compilers leave between the
// members of a struct, and stays as it was captured. A value that was the same in both captures, or
// was rounded alike, has to be so in all launches: no word tells whether it is used. An explanation
// by two values may be wrong, so compare a launch with a third before you rely on it. Where there
// are several, they have to give the same word in each launch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "anabranch/export.h"
#include "anabranch/status.h"

namespace anabranch::numbers {

// Of Python's floats; kGiven is a number of the step. Comparisons come last.
enum class Operator : std::uint8_t {
  kGiven,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kPower,
  kNegate,
  kPlus,
  kAbsolute,
  kEqual,
  kNotEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kTruth,
  kEnd
};

struct Operand {
  std::int32_t entry = -1;  // an earlier one; below 0: it is a constant
  double constant = 0;
};

// A value and how it was made. A comparison is 1 or 0, and decides which way the step goes.
struct Entry {
  Operator made_by = Operator::kGiven;
  bool is_looked_at = false;  // something may depend on it that is in no entry
  std::array<Operand, 2> operands{};
  double value = 0;
};

// Bytes of kernels' parameters, in both captures.
struct Word {
  std::uint32_t bytes = 0;  // 8 at most
  std::uint64_t first = 0;
  std::uint64_t other = 0;
};

enum class Outcome : std::uint8_t {
  kDone,
  kOtherWay,       // a comparison comes to something else, or Python would get a complex number
  kOtherRounding,  // a value is rounded otherwise than in both captures
  kUnknown,        // an operator raises, or two explanations of a word part
};

class ANABRANCH_API NumberProgram {
 public:
  // Both traces begin with the numbers of the step. Refused where they are made otherwise, or where
  // a word may follow in a way that is not known.
  static Result<NumberProgram> make(std::span<const Entry> first, std::span<const Entry> other,
                                    std::span<const Word> words);

  std::size_t number_count() const;
  std::size_t word_count() const;
  // For as many numbers, as many words. Where it is not kDone nothing of these is of use.
  Outcome run(std::span<const double> numbers, std::span<std::uint64_t> words) const;

 private:
  struct Parts;
  explicit NumberProgram(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

// Numbers for the other capture, near those of an earlier call, `before`, or near those of now:
// such that two ways to make a word that give the same now differ, as far as that can be, and as
// much as possible is rounded otherwise than now. `entries` are of a capture with the numbers of
// now. Refused where with none of those that were tried the step goes the same way.
ANABRANCH_API Result<std::vector<double>> find_numbers_apart(std::span<const Entry> entries,
                                                             std::span<const double> now,
                                                             std::span<const double> before);

}  // namespace anabranch::numbers
