// SPDX-License-Identifier: Apache-2.0
#include "numbers.h"

#include <charconv>
#include <limits>
#include <string>
#include <system_error>

namespace anabranch::tool {
namespace {

// The power of two that a unit stands for.
std::optional<unsigned> shift_of(std::string_view unit) {
  constexpr std::string_view kPrefixes = "kmgt";
  std::string lower;
  for (const char c : unit) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower.empty() || lower == "b") return 0;
  const std::size_t prefix = kPrefixes.find(lower[0]);
  const std::string rest = lower.substr(1);
  if (prefix == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) return {};
  return 10 * static_cast<unsigned>(prefix + 1);
}

}  // namespace

std::optional<std::uint64_t> parse_count(std::string_view text, std::uint64_t most) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end || value > most) return {};
  return value;
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::optional<unsigned> shift = shift_of(text.substr(digits));
  if (!shift) return {};
  const std::optional<std::uint64_t> value = parse_count(text.substr(0, digits), kMost >> *shift);
  if (!value) return {};
  return *value << *shift;
}

}  // namespace anabranch::tool
