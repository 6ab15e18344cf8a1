// SPDX-License-Identifier: Apache-2.0
// Numbers of a plan on CUDA, and the dimensions of its grids, which are numbers too: what they are
// while the plan is captured, and which words of kernels are theirs.
// Ownership: values.
// Threads:   pure.
// Failure:   kNotRecordable names the number or the kernel.
// Edges:     a number that no kernel is given has no word.
//
// A word is a number's if it has the number's bits in two captures with other values of all numbers
// each; a fourth capture, with values that nothing was found by, then has to have what these say.
// What a region computes from a number, on the host, is none of it, and refused.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "anabranch/status.h"
#include "record/cuda/arena/sources.h"
#include "record/cuda/sites/step_graph.h"

namespace anabranch::cuda {

// In the first two captures, the third and the fourth.
inline constexpr std::size_t kNumberValues = 3;

// What regions read of a number or a grid; its bytes are the lowest.
using PlanValue = std::array<std::uint64_t, 2>;

struct PlanNumber {
  std::uint32_t slot = 0;  // of the plan
  BufferId buffer{};
  std::uint32_t bytes = 0;
  std::uint32_t offset = 0;  // in the value
  bool is_of_grid = false;
  std::array<std::uint64_t, kNumberValues> words{};  // the number's bits are the lowest

  std::uint64_t word_of(const PlanValue& value) const {
    std::uint64_t word = 0;
    std::memcpy(&word, reinterpret_cast<const char*>(&value) + offset, bytes);
    return word;
  }
};

// Values between the bounds, by which the numbers are told apart. Refused where there are too few.
// A dimension of a grid that is one block at most is no number.
Result<std::vector<PlanNumber>> choose_numbers(const Plan& plan);

// By buffer of the program.
std::vector<PlanValue> values_of(const Program& program, std::span<const PlanNumber> chosen,
                                 std::size_t value);

// A word of kernels' parameters: bits that stay, and the bits of numbers.
struct NumberWord {
  struct Piece {
    std::uint32_t number = 0;  // of those that were chosen
    std::uint32_t shift = 0;
  };
  std::uint64_t constant = 0;
  std::vector<Piece> pieces{};

  // `word_of(number)` is its bits.
  template <typename WordOf>
  std::uint64_t made_of(WordOf word_of) const {
    std::uint64_t word = constant;
    for (const Piece& piece : pieces) word |= word_of(piece.number) << piece.shift;
    return word;
  }
};

// Whether all words of `third` and `fourth`, which are of the captures with these values, follow.
Status check_numbers(std::span<const PlanNumber> chosen, const StepGraph& third,
                     const StepGraph& fourth);

// By the recording's numbers, which were checked.
std::vector<NumberWord> explain_numbers(std::span<const PlanNumber> chosen,
                                        std::span<const CudaNumber> words);

}  // namespace anabranch::cuda
