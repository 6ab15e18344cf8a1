// SPDX-License-Identifier: Apache-2.0
#include "numbers/arithmetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>

namespace anabranch::numbers {
namespace {

bool is_odd(double value) { return std::fmod(std::fabs(value), 2.0) == 1.0; }

// Where either is infinite.
double infinite_power(double base, double exponent) {
  if (std::isinf(exponent)) {
    const double size = std::fabs(base);
    if (size == 1.0) return 1.0;
    return (exponent > 0) == (size > 1.0) ? std::fabs(exponent) : 0.0;
  }
  if (exponent > 0) return is_odd(exponent) ? base : std::fabs(base);
  return is_odd(exponent) ? std::copysign(0.0, base) : 0.0;
}

Outcome power(double base, double exponent, double& to) {
  to = 1.0;
  if (exponent == 0.0 || base == 1.0) return Outcome::kDone;
  if (std::isnan(base) || std::isnan(exponent)) {
    to = std::isnan(base) ? base : exponent;
    return Outcome::kDone;
  }
  if (std::isinf(base) || std::isinf(exponent)) {
    to = infinite_power(base, exponent);
    return Outcome::kDone;
  }
  if (base == 0.0 && exponent < 0.0) return Outcome::kUnknown;
  if (base < 0.0 && exponent != std::floor(exponent)) return Outcome::kOtherWay;  // complex
  to = std::pow(base, exponent);
  return std::isinf(to) ? Outcome::kUnknown : Outcome::kDone;
}

Outcome apply(Operator made_by, double a, double b, double& to) {
  switch (made_by) {
    case Operator::kAdd:
      to = a + b;
      break;
    case Operator::kSubtract:
      to = a - b;
      break;
    case Operator::kMultiply:
      to = a * b;
      break;
    case Operator::kDivide:
      if (b == 0.0) return Outcome::kUnknown;
      to = a / b;
      break;
    case Operator::kPower:
      return power(a, b, to);
    case Operator::kNegate:
      to = -a;
      break;
    case Operator::kAbsolute:
      to = std::fabs(a);
      break;
    case Operator::kEqual:
      to = a == b;
      break;
    case Operator::kNotEqual:
      to = a != b;
      break;
    case Operator::kLess:
      to = a < b;
      break;
    case Operator::kLessOrEqual:
      to = a <= b;
      break;
    case Operator::kGreater:
      to = a > b;
      break;
    case Operator::kGreaterOrEqual:
      to = a >= b;
      break;
    case Operator::kTruth:
      to = a != 0.0;
      break;
    default:
      to = a;
  }
  return Outcome::kDone;
}

}  // namespace

Status check_entries(std::span<const Entry> entries) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto is_before = [&](const Operand& operand) {
      return operand.entry < 0 || static_cast<std::size_t>(operand.entry) < i;
    };
    const bool is_given = entries[i].made_by == Operator::kGiven;
    if (entries[i].made_by >= Operator::kEnd ||
        !std::ranges::all_of(entries[i].operands, is_before) ||
        (is_given && i > 0 && entries[i - 1].made_by != Operator::kGiven)) {
      return Status(StatusCode::kProgramInvalid,
                    fmt::format("numbers: entry {} is made of nothing that comes before it.", i));
    }
  }
  return {};
}

Outcome evaluate(std::span<const Entry> entries, std::span<const double> numbers,
                 std::vector<double>& values) {
  values.assign(numbers.begin(), numbers.end());
  values.reserve(entries.size());
  for (const Entry& entry : entries.subspan(std::min(numbers.size(), entries.size()))) {
    const auto operand = [&](std::size_t i) {
      const Operand& of = entry.operands[i];
      return of.entry < 0 ? of.constant : values[static_cast<std::size_t>(of.entry)];
    };
    double value = 0;
    const Outcome outcome = apply(entry.made_by, operand(0), operand(1), value);
    if (outcome != Outcome::kDone) return outcome;
    if (decides(entry) && value != entry.value) return Outcome::kOtherWay;
    values.push_back(value);
  }
  return Outcome::kDone;
}

Distinct distinct_of(std::span<const Entry> entries) {
  using Name = std::pair<std::int32_t, std::uint64_t>;  // of an operand; constants by their bits
  Distinct found;
  std::vector<std::int32_t> renamed;
  std::map<std::tuple<Operator, Name, Name>, std::int32_t> known;
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    Entry entry = entries[i];
    for (Operand& operand : entry.operands) {
      if (operand.entry >= 0) operand.entry = renamed[static_cast<std::size_t>(operand.entry)];
    }
    const auto name = [&](std::size_t operand) {
      const Operand& of = entry.operands[operand];
      return of.entry < 0 ? Name(-1, std::bit_cast<std::uint64_t>(of.constant)) : Name(of.entry, 0);
    };
    const auto next = static_cast<std::int32_t>(found.entries.size());
    std::int32_t number = next;
    if (entry.made_by != Operator::kGiven) {
      number = known.try_emplace({entry.made_by, name(0), name(1)}, next).first->second;
    }
    if (number == next) {
      found.kept.push_back(i);
      found.entries.push_back(entry);
    }
    renamed.push_back(number);
  }
  return found;
}

}  // namespace anabranch::numbers
