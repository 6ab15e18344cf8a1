// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plan/memory_place.h"

namespace anabranch::memory {
namespace {

constexpr std::uint32_t kNobody = ~0u;

// The arena cut into spans that each have one latest tenant. Who takes a span comes after its
// tenant, and so after all tenants before.
class Spans {
 public:
  explicit Spans(const Lives& lives) : lives_(lives) {}

  std::uint64_t size_bytes() const { return spans_.empty() ? 0 : spans_.back().end; }
  std::size_t count() const { return spans_.size(); }

  std::uint64_t move_in(std::uint32_t life) {
    const Gap gap = find_gap(lives_.all[life]);
    take(gap, life);
    return gap.offset;
  }
  std::uint64_t move_in_on_top(std::uint32_t life) {
    const std::uint64_t offset = align_up(size_bytes(), lives_.all[life].alignment);
    take({offset, spans_.size(), spans_.size()}, life);
    return offset;
  }

 private:
  struct Span {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t tenant = kNobody;
  };
  struct Gap {
    std::uint64_t offset = 0;
    std::size_t first = 0;  // spans it touches
    std::size_t past = 0;
  };

  bool free_for(const Span& span, const Life& life) const {
    return span.tenant == kNobody || lives_.before(lives_.all[span.tenant], life);
  }

  // The tightest run of spans that are free for it; else the top, with what is free below it.
  Gap find_gap(const Life& life) const {
    Gap best;
    std::uint64_t best_left = ~std::uint64_t{0};
    for (std::size_t i = 0; i < spans_.size();) {
      if (!free_for(spans_[i], life)) {
        ++i;
        continue;
      }
      std::size_t past = i + 1;
      while (past < spans_.size() && free_for(spans_[past], life)) ++past;
      const std::uint64_t offset = align_up(spans_[i].begin, life.alignment);
      const std::uint64_t end = spans_[past - 1].end;
      const bool fits = offset + life.size_bytes <= end;
      if (fits && end - offset - life.size_bytes < best_left) {
        best_left = end - offset - life.size_bytes;
        best = {offset, i, past};
      }
      if (!fits && past == spans_.size() && best_left == ~std::uint64_t{0}) {
        return {offset, i, past};
      }
      i = past;
    }
    if (best_left != ~std::uint64_t{0}) return best;
    return {align_up(size_bytes(), life.alignment), spans_.size(), spans_.size()};
  }

  // Replaces what it touches by itself and what it leaves.
  void take(const Gap& gap, std::uint32_t life) {
    const std::uint64_t end = gap.offset + lives_.all[life].size_bytes;
    std::vector<Span> now;
    const std::uint64_t begin = gap.first < spans_.size() ? spans_[gap.first].begin : size_bytes();
    if (begin < gap.offset && gap.first == gap.past) now.push_back({begin, gap.offset});
    for (std::size_t i = gap.first; i < gap.past; ++i) {
      if (spans_[i].begin >= gap.offset) break;
      now.push_back({spans_[i].begin, std::min(spans_[i].end, gap.offset), spans_[i].tenant});
    }
    if (gap.first < gap.past && spans_[gap.past - 1].end < gap.offset) {
      now.push_back({spans_[gap.past - 1].end, gap.offset});
    }
    now.push_back({gap.offset, end, life});
    for (std::size_t i = gap.first; i < gap.past; ++i) {
      if (spans_[i].end <= end) continue;
      now.push_back({std::max(spans_[i].begin, end), spans_[i].end, spans_[i].tenant});
    }
    const auto at = spans_.begin() + static_cast<std::ptrdiff_t>(gap.first);
    const auto past = spans_.begin() + static_cast<std::ptrdiff_t>(gap.past);
    spans_.insert(spans_.erase(at, past), now.begin(), now.end());
  }

  const Lives& lives_;
  std::vector<Span> spans_;  // adjacent, from byte 0 on
};

}  // namespace

Layout place_in_order(const Lives& lives, std::size_t budget) {
  Layout layout;
  Spans spans(lives);
  for (std::uint32_t i = 0; i < lives.all.size(); ++i) {
    const bool affordable = budget >= spans.count();
    budget -= affordable ? spans.count() : 0;
    layout.offsets.push_back(affordable ? spans.move_in(i) : spans.move_in_on_top(i));
  }
  layout.size_bytes = spans.size_bytes();
  return layout;
}

}  // namespace anabranch::memory
