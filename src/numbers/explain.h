// SPDX-License-Identifier: Apache-2.0
// Which values of a step's arithmetic make the words of its kernels, by two captures.
// Ownership: values.
// Threads:   pure.
// Failure:   kNotRecordable names the word that may follow the numbers in an unknown way.
// Edges:     of a word in which nothing follows them the formula is a constant.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "anabranch/experimental/number_program.h"
#include "numbers/encodings.h"

namespace anabranch::numbers {

struct ValuePair {
  double first = 0, other = 0;  // in both captures

  bool has_moved() const;
};

struct EntryWay {
  std::uint32_t entry = 0;
  Way way{};
};

// Bits from `shift` on, and all ways to make them.
struct Piece {
  std::uint32_t shift = 0;
  std::vector<EntryWay> ways{};
};

struct Formula {
  std::uint64_t constant = 0;  // the bits that follow nothing
  std::vector<Piece> pieces{};
};

class Explainer {
 public:
  // Of each value, of which the first so many are numbers of the step.
  Explainer(std::span<const ValuePair> pairs, std::size_t numbers);
  // `number`: for messages.
  Result<Formula> explain(const Word& word, std::size_t number) const;

 private:
  using Bits = std::pair<std::uint64_t, std::uint64_t>;  // in both captures
  struct Parts {
    std::vector<Piece> known{};
    bool is_whole = true;  // nothing that differs is left
  };

  Parts parts_of(const Word& word, std::uint32_t bytes) const;
  bool may_follow_beside(const Word& word, std::span<const Piece> known) const;
  bool may_follow(const Word& word, std::uint32_t shift, std::uint32_t bytes) const;
  bool are_alike(double a, double b, double least) const;

  std::map<Bits, std::vector<EntryWay>> ways_[3];  // of 8, 4 and 2 bytes
  double most_apart_ = 0;  // by how many powers of two the step's numbers differ
};

}  // namespace anabranch::numbers
