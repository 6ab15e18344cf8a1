// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_loans.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "plan/memory_place.h"

namespace anabranch::memory {
namespace {

// One lender, and who has borrowed of it so far.
class Lender {
 public:
  explicit Lender(const Life& life) : life_(&life) {}

  const Life& life() const { return *life_; }

  // The lowest offset at which the temporary meets nobody; empty where there is none. Adds to
  // `seen` whom it looked at.
  std::optional<std::uint64_t> find_place(const Lives& lives, const Life& temporary,
                                          std::size_t& seen) const {
    ++seen;
    if (temporary.size_bytes > life_->size_bytes || temporary.alignment > life_->alignment ||
        !lives.before(temporary, *life_)) {
      return std::nullopt;
    }
    std::uint64_t offset = 0;
    for (const Borrower& other : borrowers_) {  // by offset
      if (offset + temporary.size_bytes <= other.begin) break;
      ++seen;
      if (lives.before(*other.life, temporary) || lives.before(temporary, *other.life)) continue;
      offset = std::max(offset, align_up(other.end, temporary.alignment));
    }
    const bool fits = offset + temporary.size_bytes <= life_->size_bytes;
    return fits ? std::optional(offset) : std::nullopt;
  }

  void lend(const Life& temporary, std::uint64_t offset) {
    const Borrower made{offset, offset + temporary.size_bytes, &temporary};
    const auto behind =
        std::upper_bound(borrowers_.begin(), borrowers_.end(), made,
                         [](const Borrower& a, const Borrower& b) { return a.begin < b.begin; });
    borrowers_.insert(behind, made);
  }

 private:
  struct Borrower {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    const Life* life = nullptr;
  };
  const Life* life_;
  std::vector<Borrower> borrowers_;
};

std::vector<const Life*> by_falling_size(const Lives& lives) {
  std::vector<const Life*> sorted;
  for (const Life& life : lives.all) sorted.push_back(&life);
  std::sort(sorted.begin(), sorted.end(), [](const Life* a, const Life* b) {
    return std::pair(b->size_bytes, index_of(a->buffer)) <
           std::pair(a->size_bytes, index_of(b->buffer));
  });
  return sorted;
}

}  // namespace

std::vector<Loan> find_loans(const Lives& temporaries, const Lives& lenders, std::size_t budget) {
  std::vector<Lender> by_first_use;  // as lives are
  for (const Life& life : lenders.all) by_first_use.emplace_back(life);
  std::vector<Loan> loans;
  std::size_t seen = 0;
  for (const Life* const temporary : by_falling_size(temporaries)) {
    if (seen > budget) break;
    auto lender = std::partition_point(
        by_first_use.begin(), by_first_use.end(),
        [&](const Lender& other) { return other.life().begin <= temporary->end; });
    for (; lender != by_first_use.end(); ++lender) {
      const auto offset = lender->find_place(temporaries, *temporary, seen);
      if (!offset) continue;
      lender->lend(*temporary, *offset);
      loans.push_back({temporary->buffer, lender->life().buffer, *offset});
      break;
    }
  }
  std::sort(loans.begin(), loans.end(), [](const Loan& a, const Loan& b) {
    return index_of(a.temporary) < index_of(b.temporary);
  });
  return loans;
}

}  // namespace anabranch::memory
