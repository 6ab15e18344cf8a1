// SPDX-License-Identifier: Apache-2.0
#include "numbers/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "numbers/heap.h"

namespace anabranch::numbers {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Numbers that follow others are of such a size, differ by such a part at least, and are no more
// than so many times as far from one another as the numbers that they follow.
constexpr double kLeastSize = 0x1p-60, kMostSize = 0x1p60, kFarther = 4;

double least_apart(std::uint32_t bytes) { return bytes == 8 ? 0x1p-32 : bytes == 4 ? 0x1p-20 : 0; }

// Which of ways_; 3 where numbers have no such bytes.
std::size_t index_of(std::uint32_t bytes) {
  return bytes == 8 ? 0 : bytes == 4 ? 1 : bytes == 2 ? 2 : 3;
}

std::uint64_t mask_of(std::uint32_t bytes) {
  return bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * bytes) - 1;
}

std::uint64_t piece_of(std::uint64_t word, std::uint32_t shift, std::uint32_t bytes) {
  return word >> shift & mask_of(bytes);
}

// Whether it may be an address of this process: its programs, heaps and stacks lie there.
bool is_address(std::uint64_t word) {
  const std::uint64_t top = word >> 40;
  return (top >= 0x55 && top < 0x58) || (top >= 0x7E && top < 0x80) || is_in_heap(word);
}

// Whether both may be, or the lower halves of both are an address's upper half, so that the upper
// ones are the next address's lower half.
bool are_addresses(std::uint64_t first, std::uint64_t other) {
  const std::uint64_t half = first & 0xFFFFFFFF;
  return (is_address(first) && is_address(other)) ||
         (half == (other & 0xFFFFFFFF) && is_address(half << 32));
}

// Whether it may be the lower half of an address, with nothing below: the chance that a float has
// such bits is one in sixteen, that a double has them less than one in 2^32.
bool is_of_an_address(std::uint64_t word, std::uint32_t bytes) {
  return bytes >= 4 && (word & ((std::uint64_t{1} << (8 * bytes - 28)) - 1)) == 0;
}

bool is_ordinary(double value) {
  return std::fabs(value) >= kLeastSize && std::fabs(value) <= kMostSize;
}

double apart(const ValuePair& pair) {
  const double ratio = pair.first / pair.other;
  return pair.first != 0 && pair.other != 0 && std::isfinite(ratio)
             ? std::fabs(std::log2(std::fabs(ratio)))
             : kInfinity;
}

// The bits of no piece of these stay.
Formula formula_of(const Word& word, std::uint32_t bytes, std::vector<Piece> pieces) {
  std::uint64_t mask = 0;
  for (const Piece& piece : pieces) mask |= mask_of(bytes) << piece.shift;
  return {word.first & ~mask, std::move(pieces)};
}

}  // namespace

bool ValuePair::has_moved() const {
  return std::bit_cast<std::uint64_t>(first) != std::bit_cast<std::uint64_t>(other);
}

Explainer::Explainer(std::span<const ValuePair> pairs, std::size_t numbers) {
  for (std::uint32_t entry = 0; entry < pairs.size(); ++entry) {
    if (entry < numbers) most_apart_ = std::max(most_apart_, apart(pairs[entry]));
    if (!pairs[entry].has_moved()) continue;
    for (const Way& way : all_ways()) {
      const auto first = encoded(pairs[entry].first, way);
      const auto other = encoded(pairs[entry].other, way);
      if (!first || !other) continue;
      ways_[index_of(bytes_of(way.encoding))][{*first, *other}].push_back({entry, way});
    }
  }
}

Result<Formula> Explainer::explain(const Word& word, std::size_t number) const {
  const std::uint32_t half = word.bytes / 2;
  for (const std::uint32_t bytes : {word.bytes, half}) {
    Parts parts = parts_of(word, bytes);
    if (parts.is_whole && !parts.known.empty()) {
      return formula_of(word, bytes, std::move(parts.known));
    }
  }
  // A number beside what a compiler has left, or that alone.
  Parts parts = parts_of(word, half);
  if (may_follow_beside(word, parts.known)) {
    return Status(StatusCode::kNotRecordable,
                  fmt::format("a kernel is given something that follows it in another way than by "
                              "Python's arithmetic (word {}: {:#x} and {:#x})",
                              number, word.first, word.other));
  }
  return formula_of(word, half, std::move(parts.known));
}

Explainer::Parts Explainer::parts_of(const Word& word, std::uint32_t bytes) const {
  Parts parts;
  for (std::uint32_t at = 0; bytes != 0 && at < 8 * word.bytes; at += 8 * bytes) {
    const Bits bits{piece_of(word.first, at, bytes), piece_of(word.other, at, bytes)};
    if (bits.first == bits.second) continue;
    const std::size_t index = index_of(bytes);
    const auto found = index < 3 ? ways_[index].find(bits) : ways_[0].end();
    if (index < 3 && found != ways_[index].end()) {
      parts.known.push_back({at, found->second});
    } else {
      parts.is_whole = false;
    }
  }
  return parts;
}

// Whether something of the word may be a number that follows, beside the halves that are known.
bool Explainer::may_follow_beside(const Word& word, std::span<const Piece> known) const {
  const std::uint32_t half = word.bytes / 2;
  if (known.empty()) {
    if (half == 4 && are_addresses(word.first, word.other)) return false;
    if (may_follow(word, 0, word.bytes)) return true;
    if (half != 4) return false;
  }
  for (const std::uint32_t at : {0u, 8 * half}) {
    const bool is_known =
        std::ranges::any_of(known, [&](const Piece& piece) { return piece.shift == at; });
    if (!is_known && may_follow(word, at, half)) return true;
  }
  return false;
}

// Whether a piece may be a number that follows those of the step: one of an ordinary size, that is
// not much farther from the other capture's than they are.
bool Explainer::may_follow(const Word& word, std::uint32_t shift, std::uint32_t bytes) const {
  const std::uint64_t first = piece_of(word.first, shift, bytes);
  const std::uint64_t other = piece_of(word.other, shift, bytes);
  if (index_of(bytes) == 3 || first == other) return false;
  if (is_of_an_address(first, bytes) && is_of_an_address(other, bytes)) return false;
  const auto a = decoded(first, bytes), b = decoded(other, bytes);
  return are_alike(a[0], b[0], least_apart(bytes)) || are_alike(a[1], b[1], least_apart(bytes));
}

bool Explainer::are_alike(double a, double b, double least) const {
  if (a == 0 || b == 0) return most_apart_ == kInfinity && is_ordinary(a + b);
  return is_ordinary(a) && is_ordinary(b) && (a > 0) == (b > 0) &&
         std::fabs(a - b) >= least * std::fabs(a) &&
         std::fabs(std::log2(a / b)) <= 1 + kFarther * most_apart_;
}

}  // namespace anabranch::numbers
