// SPDX-License-Identifier: Apache-2.0
#include "anabranch/experimental/number_program.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "numbers/arithmetic.h"
#include "numbers/encodings.h"
#include "numbers/explain.h"

namespace anabranch::numbers {
namespace {

constexpr Encoding kEncodings[] = {Encoding::kDouble, Encoding::kFloat, Encoding::kBFloat16,
                                   Encoding::kHalf};

// A value that no word tells of, since it was the same in both captures, encoded so.
struct Rounded {
  std::uint32_t entry = 0;
  Encoding encoding = Encoding::kDouble;
  std::uint64_t bits = 0;
};

Status refuse(const char* why) { return Status(StatusCode::kNotRecordable, why); }

bool is_made_as(const Entry& a, const Entry& b) {
  const auto is_same = [&](std::size_t i) {
    const Operand &mine = a.operands[i], &its = b.operands[i];
    return mine.entry == its.entry && (mine.entry >= 0 || mine.constant == its.constant);
  };
  return a.made_by == b.made_by && is_same(0) && is_same(1) && (!decides(a) || a.value == b.value);
}

Status check_alike(std::span<const Entry> first, std::span<const Entry> other) {
  if (!std::ranges::equal(first, other, is_made_as)) {
    return refuse("with another value the step computes something else");
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].made_by == Operator::kGiven && first[i].value == other[i].value) {
      return refuse("it was the same in both captures");
    }
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    const bool is_looked_at = first[i].is_looked_at || other[i].is_looked_at;
    if (is_looked_at && first[i].value != other[i].value) {
      return refuse("the step makes an integer or a text of it");
    }
  }
  return {};
}

std::vector<Rounded> rounded_in(std::span<const Entry> entries, std::span<const ValuePair> pairs) {
  std::vector<Rounded> rounded;
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    if (decides(entries[i])) continue;
    for (const Encoding encoding : kEncodings) {
      if (!pairs[i].has_moved() && encoding != Encoding::kDouble) continue;
      const std::uint64_t bits = encoded(pairs[i].first, encoding);
      if (bits == encoded(pairs[i].other, encoding)) rounded.push_back({i, encoding, bits});
    }
  }
  return rounded;
}

// The bits that all ways of a piece make.
std::optional<std::uint64_t> bits_of(const Piece& piece, std::span<const double> values) {
  const auto made = [&](const EntryWay& way) { return encoded(values[way.entry], way.way); };
  const auto bits = made(piece.ways.front());
  if (!bits) return std::nullopt;
  const auto is_same = [&](const EntryWay& way) { return made(way) == bits; };
  return std::all_of(piece.ways.begin() + 1, piece.ways.end(), is_same) ? bits : std::nullopt;
}

}  // namespace

struct NumberProgram::Parts {
  std::size_t numbers = 0;
  std::vector<Entry> entries{};
  std::vector<Rounded> rounded{};
  std::vector<Formula> formulas{};
};

Result<NumberProgram> NumberProgram::make(std::span<const Entry> first,
                                          std::span<const Entry> other,
                                          std::span<const Word> words) {
  if (Status valid = check_entries(first); !valid.ok()) return valid;
  if (Status alike = check_alike(first, other); !alike.ok()) return alike;
  auto parts = std::make_shared<Parts>();
  Distinct distinct = distinct_of(first);
  std::vector<ValuePair> pairs;
  for (const std::uint32_t i : distinct.kept) pairs.push_back({first[i].value, other[i].value});
  parts->numbers =
      static_cast<std::size_t>(std::ranges::count(first, Operator::kGiven, &Entry::made_by));
  parts->rounded = rounded_in(distinct.entries, pairs);
  parts->entries = std::move(distinct.entries);
  const Explainer explainer(pairs, parts->numbers);
  for (const Word& word : words) {
    auto formula = explainer.explain(word, parts->formulas.size());
    if (!formula.ok()) return formula.error();
    parts->formulas.push_back(*std::move(formula));
  }
  return NumberProgram(std::move(parts));
}

std::size_t NumberProgram::number_count() const { return parts_->numbers; }

std::size_t NumberProgram::word_count() const { return parts_->formulas.size(); }

Outcome NumberProgram::run(std::span<const double> numbers, std::span<std::uint64_t> words) const {
  assert(numbers.size() == number_count() && words.size() == word_count());
  std::vector<double> values;
  const Outcome outcome = evaluate(parts_->entries, numbers, values);
  if (outcome != Outcome::kDone) return outcome;
  for (const Rounded& one : parts_->rounded) {
    if (encoded(values[one.entry], one.encoding) != one.bits) return Outcome::kOtherRounding;
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    const Formula& formula = parts_->formulas[i];
    words[i] = formula.constant;
    for (const Piece& piece : formula.pieces) {
      const auto bits = bits_of(piece, values);
      if (!bits) return Outcome::kUnknown;
      words[i] |= *bits << piece.shift;
    }
  }
  return Outcome::kDone;
}

}  // namespace anabranch::numbers
