// SPDX-License-Identifier: Apache-2.0
// The arithmetic of Python's floats, bit for bit, done again for other numbers.
// Ownership: values.
// Threads:   pure.
// Failure:   an Outcome: kUnknown where Python raises.
// Edges:     a trace begins with the numbers themselves.
// Source:    float_pow and its like in Python's Objects/floatobject.c, for what C leaves open.
#pragma once

#include <span>
#include <vector>

#include "anabranch/experimental/number_program.h"

namespace anabranch::numbers {

// Refused where numbers of the step do not come first, or where an entry is made of a later one.
Status check_entries(std::span<const Entry> entries);

inline bool decides(const Entry& entry) { return entry.made_by >= Operator::kEqual; }

// What all entries are where the numbers have these values, into `values`.
Outcome evaluate(std::span<const Entry> entries, std::span<const double> numbers,
                 std::vector<double>& values);

// Without what was made alike more than once: an optimizer does the same for each tensor. `kept`
// has the numbers of those that are left, in order; operands are those of `entries`.
struct Distinct {
  std::vector<std::uint32_t> kept{};
  std::vector<Entry> entries{};
};
Distinct distinct_of(std::span<const Entry> entries);

}  // namespace anabranch::numbers
