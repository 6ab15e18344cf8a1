// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_place.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

namespace anabranch::memory {
namespace {

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Places lives one by one, each beside the conflicting lives that have a place.
class Packer {
 public:
  Packer(const Lives& lives, const Conflicts& conflicts)
      : lives_(lives), conflicts_(conflicts), placed_(lives.all.size()) {}

  std::uint64_t offset_of(std::uint32_t life) const { return placed_[life].begin; }
  std::uint64_t end_of(std::uint32_t life) const { return placed_[life].end; }
  std::size_t neighbours_seen() const { return neighbours_seen_; }
  void place(std::uint32_t life, std::uint64_t offset) {
    placed_[life] = {offset, offset + lives_.all[life].size_bytes};
  }

  // Places these anew, in this order. Answers the end of the topmost.
  std::uint64_t pack(std::span<const std::uint32_t> turn) {
    for (const std::uint32_t life : turn) placed_[life] = {};
    std::uint64_t top = 0;
    for (const std::uint32_t life : turn) {
      place(life, find_place(life));
      top = std::max(top, end_of(life));
    }
    return top;
  }

 private:
  // The lowest gap that is large enough. The tightest gap was tried: it packs worse.
  std::uint64_t find_place(std::uint32_t number) {
    const Life& life = lives_.all[number];
    gather_taken(number);
    std::uint64_t offset = 0;
    // A heap, since low gaps are found long before all is sorted.
    const auto above = [](Interval a, Interval b) { return a.begin > b.begin; };
    std::make_heap(taken_.begin(), taken_.end(), above);
    while (!taken_.empty() && offset + life.size_bytes > taken_.front().begin) {
      offset = std::max(offset, align_up(taken_.front().end, life.alignment));
      std::pop_heap(taken_.begin(), taken_.end(), above);
      taken_.pop_back();
    }
    return offset;
  }
  void gather_taken(std::uint32_t number) {
    taken_.clear();
    neighbours_seen_ += conflicts_.of(number).size();
    for (const std::uint32_t other : conflicts_.of(number)) {
      if (placed_[other].end != 0) taken_.push_back(placed_[other]);
    }
  }

  const Lives& lives_;
  const Conflicts& conflicts_;
  std::vector<Interval> placed_;  // by life; ends at 0 if it has no place
  std::vector<Interval> taken_;
  std::size_t neighbours_seen_ = 0;
};

// The life, those that conflict with it, those that conflict with these, ..., up to a number.
std::vector<std::uint32_t> find_region(const Conflicts& conflicts, std::size_t lives,
                                       std::uint32_t around, std::size_t size) {
  std::vector<std::uint32_t> region{around};
  std::vector<bool> in_region(lives, false);
  in_region[around] = true;
  for (std::size_t i = 0; i < region.size(); ++i) {
    for (const std::uint32_t other : conflicts.of(region[i])) {
      if (region.size() >= size) return region;
      if (in_region[other]) continue;
      in_region[other] = true;
      region.push_back(other);
    }
  }
  return region;
}

// All three round in one way on every machine.
double square(double x) { return x * x; }
double same(double x) { return x; }
double root(double x) { return std::sqrt(x); }

// Places all lives by several orders and goes on with the best: lowers the topmost life again and
// again by placing the lives around it anew. Who ended up on top has its turn before all others.
class Improver {
 public:
  Improver(const Lives& lives, const Conflicts& conflicts)
      : lives_(lives),
        conflicts_(conflicts),
        packer_(lives, conflicts),
        importance_(lives.all.size(), 0),
        blamed_(lives.all.size(), 0) {}

  Layout run(std::uint64_t lower_bound, std::size_t budget) {
    const std::vector<std::uint64_t> beside = weigh_neighbours();
    Layout best;
    std::vector<double> best_importance;
    for (const auto weigh_size : {square, same, root}) {
      set_importance(beside, weigh_size);
      const std::uint64_t size = pack_all();
      if (best.offsets.empty() || size < best.size_bytes) {
        best = current_layout();
        best_importance = importance_;
      }
      if (best.size_bytes <= lower_bound) return best;
      if (packer_.neighbours_seen() + conflicts_.count() > budget) break;
    }
    importance_ = best_importance;
    for (std::uint32_t i = 0; i < lives_.all.size(); ++i) packer_.place(i, best.offsets[i]);
    improve(lower_bound, budget);
    return current_layout();
  }

 private:
  static constexpr std::size_t kSmallestRegion = 64;
  static constexpr int kTries = 32;

  std::vector<std::uint64_t> weigh_neighbours() const {
    std::vector<std::uint64_t> sums;
    for (std::uint32_t i = 0; i < lives_.all.size(); ++i) {
      std::uint64_t sum = lives_.all[i].size_bytes;
      for (const std::uint32_t other : conflicts_.of(i)) sum += lives_.all[other].size_bytes;
      sums.push_back(sum);
    }
    return sums;
  }
  // Large lives, and those with much beside them, have the fewest places to go.
  void set_importance(const std::vector<std::uint64_t>& beside, double (*weigh_size)(double)) {
    for (std::uint32_t i = 0; i < lives_.all.size(); ++i) {
      const double size = weigh_size(static_cast<double>(lives_.all[i].size_bytes));
      importance_[i] = size * static_cast<double>(beside[i]);
    }
  }
  Layout current_layout() const {
    Layout layout{packer_.end_of(find_topmost()), {}};
    for (std::uint32_t i = 0; i < lives_.all.size(); ++i) {
      layout.offsets.push_back(packer_.offset_of(i));
    }
    return layout;
  }
  std::uint64_t pack_all() {
    std::vector<std::uint32_t> turn(lives_.all.size());
    std::iota(turn.begin(), turn.end(), 0u);
    sort(turn);
    return packer_.pack(turn);
  }
  void improve(std::uint64_t lower_bound, std::size_t budget) {
    std::size_t region_size = kSmallestRegion;
    std::uint32_t topmost = find_topmost();
    while (packer_.end_of(topmost) > lower_bound && packer_.neighbours_seen() < budget) {
      if (lower(topmost, region_size, budget)) {
        topmost = find_topmost();
      } else if (region_size >= lives_.all.size()) {
        break;
      } else {
        region_size *= 4;
      }
    }
  }
  void sort(std::vector<std::uint32_t>& turn) const {
    std::sort(turn.begin(), turn.end(), [&](std::uint32_t a, std::uint32_t b) {
      if (blamed_[a] != blamed_[b]) return blamed_[a] > blamed_[b];
      return importance_[a] != importance_[b] ? importance_[a] > importance_[b] : a < b;
    });
  }
  void blame(std::span<const std::uint32_t> region, std::uint64_t top) {
    ++blames_;
    for (const std::uint32_t life : region) {
      if (packer_.end_of(life) == top) blamed_[life] = blames_;
    }
  }
  std::uint32_t find_topmost() const {
    std::uint32_t top = 0;
    for (std::uint32_t i = 1; i < lives_.all.size(); ++i) {
      if (packer_.end_of(i) > packer_.end_of(top)) top = i;
    }
    return top;
  }
  // Whether all lives around the topmost now end below where it did; if not, all is as it was.
  bool lower(std::uint32_t topmost, std::size_t region_size, std::size_t budget) {
    const std::uint64_t size = packer_.end_of(topmost);
    std::vector<std::uint32_t> turn =
        find_region(conflicts_, lives_.all.size(), topmost, region_size);
    blame(turn, size);
    std::vector<std::pair<std::uint32_t, std::uint64_t>> before;
    for (const std::uint32_t life : turn) before.emplace_back(life, packer_.offset_of(life));
    for (int i = 0; i < kTries && packer_.neighbours_seen() < budget; ++i) {
      sort(turn);
      const std::uint64_t top = packer_.pack(turn);
      if (top < size) return true;
      blame(turn, top);
    }
    for (const auto& [life, offset] : before) packer_.place(life, offset);
    return false;
  }

  const Lives& lives_;
  const Conflicts& conflicts_;
  Packer packer_;
  std::vector<double> importance_;  // by life
  std::uint64_t blames_ = 0;
  std::vector<std::uint64_t> blamed_;  // by life, when last
};

}  // namespace

Layout place_apart(const Lives& lives) {
  Layout layout;
  for (const Life& life : lives.all) {
    layout.offsets.push_back(align_up(layout.size_bytes, life.alignment));
    layout.size_bytes = layout.offsets.back() + life.size_bytes;
  }
  return layout;
}

Layout place_by_size(const Lives& lives, const Conflicts& conflicts, std::uint64_t lower_bound,
                     std::size_t budget) {
  if (lives.all.empty()) return {};
  return Improver(lives, conflicts).run(lower_bound, budget);
}

}  // namespace anabranch::memory
