// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/plan/plan_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kTries = 64;  // values of one number

// Where a number may be anything, these: far from what kernels are given otherwise, and small
// enough for a region that loops so often.
constexpr double kLeastOfAny = 1 << 16, kMostOfAny = 1 << 20;

Status refuse(const std::string& what) {
  return Status(StatusCode::kNotRecordable, "record: " + what);
}

// A well mixed number (splitmix64).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Some value between the bounds, as the kind has it.
std::uint64_t some_word(const Buffer& number, std::uint64_t seed) {
  const double least = std::isfinite(number.least)  ? number.least
                       : std::isfinite(number.most) ? number.most - kMostOfAny
                                                    : kLeastOfAny;
  const double most = std::isfinite(number.most) ? number.most : std::max(least, 0.0) + kMostOfAny;
  const double share = static_cast<double>(mix(seed) >> 11) * 0x1p-53;
  const double value = least + share * (most - least);
  switch (number.number) {
    case NumberKind::kF32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case NumberKind::kBF16:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16;
    case NumberKind::kF64:
      return std::bit_cast<std::uint64_t>(value);
    case NumberKind::kI32:
      return static_cast<std::uint32_t>(static_cast<std::int32_t>(std::floor(value)));
    default:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(std::floor(value)));
  }
}

// One block, the most, and some number between, in some order: a region that keeps to bounds of its
// own is found out by the ends.
std::array<std::uint64_t, kNumberValues> some_blocks(std::uint32_t most, std::uint64_t seed) {
  static_assert(kNumberValues == 3);
  std::array<std::uint64_t, kNumberValues> blocks{1, most, 1 + mix(seed) % most};
  const std::uint64_t order = mix(seed + 1);
  std::swap(blocks[0], blocks[order % 3]);
  std::swap(blocks[1], blocks[1 + order / 3 % 2]);
  return blocks;
}

// Of two values a third capture tells all.
bool are_told_apart(const PlanNumber& one, bool has_two, std::span<const PlanNumber> others) {
  if (one.words[0] == one.words[1]) return false;
  if (!has_two && (one.words[1] == one.words[2] || one.words[0] == one.words[2])) return false;
  return std::ranges::none_of(others, [&](const PlanNumber& other) {
    return other.bytes == one.bytes && other.words[0] == one.words[0] &&
           other.words[1] == one.words[1];
  });
}

Status too_near(const Buffer& buffer, bool is_of_grid) {
  const std::string name = printable_text(buffer.name);
  if (is_of_grid) {
    const auto& most = buffer.most_blocks;
    return refuse(fmt::format(
        "grid '{}' has at most {}x{}x{} blocks, too few to tell it from the plan's other grids and "
        "numbers. Declare more, or record a plan for each grid.",
        name, most[0], most[1], most[2]));
  }
  return refuse(fmt::format(
      "number '{}' lies between {} and {}, too near one another to tell where kernels have "
      "it. Declare wider bounds, or make it an input of {} bytes.",
      name, buffer.least, buffer.most, buffer.size_bytes));
}

Status choose(PlanNumber number, const Buffer& buffer, std::vector<PlanNumber>& chosen) {
  const std::uint32_t most =
      number.is_of_grid ? buffer.most_blocks[number.offset / sizeof(std::uint32_t)] : 0;
  std::uint32_t tries = 0;
  do {
    if (++tries > kTries) return too_near(buffer, number.is_of_grid);
    const std::uint64_t seed = (std::uint64_t{number.slot} * kTries + tries) * kNumberValues;
    if (number.is_of_grid) {
      number.words = some_blocks(most, seed + mix(number.offset));
      continue;
    }
    for (std::uint64_t i = 0; i < kNumberValues; ++i) {
      number.words[i] = some_word(buffer, seed + i);
    }
  } while (!are_told_apart(number, most == 2, chosen));
  chosen.push_back(number);
  return {};
}

std::uint64_t piece_of(std::uint64_t word, std::uint32_t shift, std::uint32_t bytes) {
  const std::uint64_t piece = word >> shift;
  return bytes == sizeof word ? piece : piece & ((std::uint64_t{1} << (8 * bytes)) - 1);
}

// Of words in two captures with other numbers.
class Explainer {
 public:
  Explainer(std::span<const PlanNumber> chosen, std::uint64_t first, std::uint64_t other)
      : chosen_(chosen), first_(first), other_(other) {}

  std::optional<NumberWord> run(std::uint32_t bytes) {
    if (!explain(0, bytes)) return std::nullopt;
    return std::move(word_);
  }

 private:
  bool explain(std::uint32_t shift, std::uint32_t bytes) {
    const std::uint64_t a = piece_of(first_, shift, bytes), b = piece_of(other_, shift, bytes);
    if (a == b) {
      word_.constant |= a << shift;
      return true;
    }
    const auto is_it = [&](const PlanNumber& number) {
      return number.bytes == bytes && number.words[0] == a && number.words[1] == b;
    };
    if (const auto found = std::ranges::find_if(chosen_, is_it); found != chosen_.end()) {
      word_.pieces.push_back({static_cast<std::uint32_t>(found - chosen_.begin()), shift});
      return true;
    }
    if (bytes % 2 != 0 || bytes <= bytes_of(NumberKind::kBF16)) return false;
    return explain(shift, bytes / 2) && explain(shift + 4 * bytes, bytes / 2);
  }

  const std::span<const PlanNumber> chosen_;
  const std::uint64_t first_, other_;
  NumberWord word_;
};

Status unexplained(const GraphImage& image, const ParamWord& word) {
  return refuse(fmt::format(
      "{} is given something at byte {} that a region computes from a number of the plan, or that "
      "is not of the number's own kind ({:#x} and {:#x}). Give kernels the numbers themselves, "
      "declared as they take them; compute on the device, or outside.",
      describe_node(image, word.node), word.offset, word.first, word.second));
}

bool are_one_place(const ParamWord& a, const ParamWord& b) {
  return a.node == b.node && a.offset == b.offset && a.bytes == b.bytes;
}

}  // namespace

Result<std::vector<PlanNumber>> choose_numbers(const Plan& plan) {
  std::vector<PlanNumber> chosen;
  for (std::uint32_t slot = 0; slot < plan.slots().size(); ++slot) {
    const BufferId id = plan.slots()[slot].buffer;
    const Buffer& buffer = plan.program().buffer(id);
    if (buffer.role == Role::kNumber) {
      const PlanNumber number{slot, id, static_cast<std::uint32_t>(buffer.size_bytes)};
      if (Status done = choose(number, buffer, chosen); !done.ok()) return done;
    }
    for (std::uint32_t i = 0; i < buffer.most_blocks.size(); ++i) {
      constexpr std::uint32_t kBytes = sizeof buffer.most_blocks[0];
      if (buffer.most_blocks[i] <= 1) continue;
      const PlanNumber blocks{slot, id, kBytes, i * kBytes, true};
      if (Status done = choose(blocks, buffer, chosen); !done.ok()) return done;
    }
  }
  return chosen;
}

std::vector<PlanValue> values_of(const Program& program, std::span<const PlanNumber> chosen,
                                 std::size_t value) {
  constexpr std::array<std::uint32_t, 3> kOneBlock{1, 1, 1};
  std::vector<PlanValue> values(program.buffers().size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (program.buffers()[i].role != Role::kGrid) continue;
    std::memcpy(&values[i], &kOneBlock, sizeof kOneBlock);
  }
  for (const PlanNumber& number : chosen) {
    std::memcpy(reinterpret_cast<char*>(&values[index_of(number.buffer)]) + number.offset,
                &number.words[value], number.bytes);
  }
  return values;
}

Status check_numbers(std::span<const PlanNumber> chosen, const StepGraph& third,
                     const StepGraph& fourth) {
  const auto& seen = fourth.numbers;
  for (std::size_t i = 0; i < std::max(third.numbers.size(), seen.size()); ++i) {
    if (i >= third.numbers.size()) return unexplained(fourth.image, seen[i]);
    const ParamWord& word = third.numbers[i];
    const auto made = Explainer(chosen, word.first, word.second).run(word.bytes);
    if (!made || i >= seen.size() || !are_one_place(word, seen[i]) ||
        made->made_of([&](auto number) { return chosen[number].words[2]; }) != seen[i].second) {
      return unexplained(third.image, word);
    }
  }
  return {};
}

std::vector<NumberWord> explain_numbers(std::span<const PlanNumber> chosen,
                                        std::span<const CudaNumber> words) {
  std::vector<NumberWord> explained;
  for (const CudaNumber& word : words) {
    explained.push_back(*Explainer(chosen, word.first, word.other).run(word.bytes));
  }
  return explained;
}

}  // namespace anabranch::cuda
