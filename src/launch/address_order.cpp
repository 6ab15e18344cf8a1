// SPDX-License-Identifier: Apache-2.0
#include "launch/address_order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace anabranch::cuda {
namespace {

constexpr int kDigitBits = 8;
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;

// One pass of a radix sort, over the digit that begins at `bit`.
void sort_by_digit(std::span<const std::uint64_t> addresses, int bit,
                   std::span<const std::uint32_t> from, std::span<std::uint32_t> to) noexcept {
  const auto digit = [&](std::uint32_t slot) { return (addresses[slot] >> bit) % kDigits; };
  std::array<std::uint32_t, kDigits> places{};
  for (const std::uint32_t slot : from) ++places[digit(slot)];
  std::uint32_t before = 0;
  for (std::uint32_t& place : places) before += std::exchange(place, before);
  for (const std::uint32_t slot : from) to[places[digit(slot)]++] = slot;
}

}  // namespace

// By radix: comparisons of addresses in no order are mispredicted, one in two. What all addresses
// have in common, their alignment and the region they lie in, takes no pass.
void sort_by_address(std::span<const std::uint64_t> addresses, std::span<std::uint32_t> order,
                     std::span<std::uint32_t> spare) noexcept {
  std::uint64_t differing = 0;
  for (const std::uint32_t slot : order) differing |= addresses[slot] ^ addresses[order[0]];
  const int end = 64 - std::countl_zero(differing);
  std::span<std::uint32_t> from = order, to = spare;
  for (int bit = std::countr_zero(differing); bit < end; bit += kDigitBits) {
    sort_by_digit(addresses, bit, from, to);
    std::swap(from, to);
  }
  if (from.data() != order.data()) std::copy(from.begin(), from.end(), order.begin());
}

}  // namespace anabranch::cuda
