// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/number_words.h"

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

}  // namespace

Result<std::vector<ParamWord>> find_numbers(const FoundSites& found, const FoundSites& other) {
  if (found.sites != other.sites || found.tables != other.tables) {
    return Status(StatusCode::kCapturesDiffer,
                  "record: with other numbers the step names other memory, or brings other bytes "
                  "to the device. Its numbers are not followed: each is recorded by itself.");
  }
  std::vector<ParamWord> numbers;
  auto in_two = found.unsure.begin();
  for (const ParamWord& word : other.unsure) {
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
