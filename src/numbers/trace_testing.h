// SPDX-License-Identifier: Apache-2.0
// Arithmetic that notes itself, as Python's does while a step is captured. For tests.
#pragma once

#include <bit>
#include <cmath>
#include <initializer_list>
#include <span>
#include <vector>

#include "anabranch/experimental/number_program.h"

namespace anabranch::numbers::testing {

class Trace {
 public:
  explicit Trace(std::span<const double> numbers) {
    for (const double number : numbers) entries.push_back({.value = number});
  }
  // Answers the number of the entry.
  int add(Operator made_by, Operand a, Operand b, double value) {
    entries.push_back({.made_by = made_by, .operands = {a, b}, .value = value});
    return static_cast<int>(entries.size()) - 1;
  }
  double operator[](int entry) const { return entries[static_cast<std::size_t>(entry)].value; }

  std::vector<Entry> entries;
};

inline Operand of(int entry) { return {.entry = entry}; }
inline Operand constant(double value) { return {.constant = value}; }
inline std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }
inline std::uint64_t single(double value) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(value));
}

// 1 - a * b, of the entry for it.
inline int decay(Trace& trace) {
  const int product = trace.add(Operator::kMultiply, of(0), of(1), trace[0] * trace[1]);
  return trace.add(Operator::kSubtract, constant(1), of(product), 1 - trace[product]);
}

}  // namespace anabranch::numbers::testing
