// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/number_words.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <tuple>

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kHalf = 4;

std::uint64_t half_of(std::uint64_t word, std::uint32_t half) {
  return (word >> (8 * kHalf * half)) & 0xFFFFFFFF;
}

bool comes_before(const ParamWord& a, const ParamWord& b) {
  return std::tie(a.node, a.offset) < std::tie(b.node, b.offset);
}

// The halves that agree in the first two captures and not in the third.
void add_halves(const ParamWord& in_two, const ParamWord& in_third,
                std::vector<ParamWord>& numbers) {
  if (in_third.bytes != 2 * kHalf) return;
  for (std::uint32_t half = 0; half < 2; ++half) {
    const std::uint64_t first = half_of(in_third.first, half);
    const std::uint64_t third = half_of(in_third.second, half);
    if (first == half_of(in_two.second, half) && first != third) {
      numbers.push_back({in_third.node, in_third.offset + kHalf * half, kHalf, first, third});
    }
  }
}

bool is_before(const FoundSite& a, const FoundSite& b) {
  return std::tie(a.node, a.offset, a.operand, a.address_unit, a.shift) <
         std::tie(b.node, b.offset, b.operand, b.address_unit, b.shift);
}

// Whether the third capture names the same memory. What a kernel's parameters hold besides, behind
// the used part of an array, may be left over from a launch before: an address in two captures, and
// another in the third.
bool have_same_memory(const FoundSites& found, const FoundSites& other) {
  std::vector<FoundSite> apart;
  std::ranges::set_symmetric_difference(found.sites, other.sites, std::back_inserter(apart),
                                        is_before);
  for (std::size_t i = 0; i < apart.size(); ++i) {
    const bool are_two = i + 1 < apart.size() && apart[i].node == apart[i + 1].node &&
                         apart[i].offset == apart[i + 1].offset;
    if (apart[i].operand != Operand::kParam || are_two) return false;
  }
  return found.tables == other.tables;
}

bool is_site(std::span<const FoundSite> sites, const ParamWord& word) {
  const FoundSite first{word.node, Operand::kParam, word.offset, 0, 0};
  const auto at = std::ranges::lower_bound(sites, first, is_before);
  return at != sites.end() && at->node == word.node && at->offset == word.offset;
}

}  // namespace

Result<std::vector<ParamWord>> find_numbers(const FoundSites& found, const FoundSites& other) {
  if (!have_same_memory(found, other)) {
    return Status(StatusCode::kCapturesDiffer,
                  "record: with other numbers the step names other memory, or brings other bytes "
                  "to the device. Its numbers are not followed: each is recorded by itself.");
  }
  std::vector<ParamWord> numbers;
  auto in_two = found.unsure.begin();
  for (const ParamWord& word : other.unsure) {
    if (is_site(found.sites, word)) continue;
    while (in_two != found.unsure.end() && comes_before(*in_two, word)) ++in_two;
    if (in_two == found.unsure.end() || comes_before(word, *in_two)) {
      numbers.push_back(word);
    } else {
      add_halves(*in_two, word, numbers);
    }
  }
  return numbers;
}

}  // namespace anabranch::cuda
