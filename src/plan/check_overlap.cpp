// SPDX-License-Identifier: Apache-2.0
#include "plan/check_overlap.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

namespace anabranch::check {
namespace {

using Level = ByteSet::Level;

bool has_no_bytes(const View& view) {
  const auto empty = [](const Dim& dim) { return dim.size == 0; };
  return view.item_bytes == 0 || std::any_of(view.dims.begin(), view.dims.end(), empty);
}

// Takes levels in rising order of stride and joins each with the run or with the level below where
// the set of bytes stays the same.
void add_level(ByteSet& set, Level level) {
  if (set.levels.empty() && level.stride <= set.run) {
    set.run += (level.count - 1) * level.stride;
    return;
  }
  if (!set.levels.empty()) {
    Level& below = set.levels.back();
    const bool multiple = level.stride % below.stride == 0;
    if (multiple && level.stride / below.stride <= below.count) {
      below.count += (level.count - 1) * (level.stride / below.stride);
      return;
    }
  }
  set.levels.push_back(level);
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - static_cast<std::int64_t>(a % b != 0 && a < 0);
}

// One of the two trees: what lies below each level.
struct Tree {
  explicit Tree(const ByteSet& set) : levels(set.levels), run(static_cast<std::int64_t>(set.run)) {
    extents.assign(levels.size() + 1, run);
    divisors.assign(levels.size() + 1, 0);
    for (std::size_t i = levels.size(); i-- > 0;) {
      extents[i] = extents[i + 1] + static_cast<std::int64_t>(levels[i].stride) * last(i);
      divisors[i] = std::gcd(divisors[i + 1], static_cast<std::int64_t>(levels[i].stride));
    }
  }
  bool leaf(std::size_t level) const { return level == levels.size(); }
  std::int64_t stride(std::size_t i) const { return static_cast<std::int64_t>(levels[i].stride); }
  std::int64_t last(std::size_t i) const { return static_cast<std::int64_t>(levels[i].count) - 1; }

  const std::vector<Level>& levels;
  std::int64_t run;
  std::vector<std::int64_t> extents;   // bytes from first to last of a branch at a level
  std::vector<std::int64_t> divisors;  // common divisor of the strides from a level on
};

class Walk {
 public:
  Walk(const Tree& a, const Tree& b, CompareWork& work) : a_(a), b_(b), work_(work) {}

  // Whether a branch of `a` at `level_a` meets one of `b` that starts `gap` bytes after it.
  Overlap meet(std::size_t level_a, std::size_t level_b, std::int64_t gap) {
    if (gap >= a_.extents[level_a] || -gap >= b_.extents[level_b]) return Overlap::kNone;
    if (a_.leaf(level_a) && b_.leaf(level_b)) return Overlap::kShared;
    if (residues_differ(level_a, level_b, gap)) return Overlap::kNone;
    if (!visited_.emplace(level_a, level_b, gap).second) return Overlap::kNone;
    if (visited_.size() > kMaxVisits) return Overlap::kUndecided;
    if (!work_.spend(CompareWork::kSearch)) return Overlap::kUndecided;
    const std::int64_t stride_a = a_.leaf(level_a) ? 0 : a_.stride(level_a);
    const std::int64_t stride_b = b_.leaf(level_b) ? 0 : b_.stride(level_b);
    // With equal strides only the difference of the two indices matters.
    const bool open_a = stride_a >= stride_b;
    const bool open_b = stride_b >= stride_a;
    const std::size_t next_a = level_a + (open_a ? 1 : 0);
    const std::size_t next_b = level_b + (open_b ? 1 : 0);
    const std::int64_t stride = std::max(stride_a, stride_b);
    // `gap - k * stride` must lie above -extent of b and below the extent of a.
    std::int64_t low = floor_div(gap - a_.extents[next_a], stride) + 1;
    std::int64_t high = floor_div(gap + b_.extents[next_b] - 1, stride);
    low = std::max(low, open_b ? -b_.last(level_b) : 0);
    high = std::min(high, open_a ? a_.last(level_a) : 0);
    for (std::int64_t k = low; k <= high; ++k) {
      const Overlap below = meet(next_a, next_b, gap - k * stride);
      if (below != Overlap::kNone) return below;
    }
    return Overlap::kNone;
  }

 private:
  // All runs of both branches start at a multiple of `divisor` from the branch's own start.
  bool residues_differ(std::size_t level_a, std::size_t level_b, std::int64_t gap) const {
    const std::int64_t divisor = std::gcd(a_.divisors[level_a], b_.divisors[level_b]);
    const std::int64_t residue = gap - floor_div(gap, divisor) * divisor;
    return residue >= a_.run && residue + b_.run <= divisor;
  }

  const Tree& a_;
  const Tree& b_;
  CompareWork& work_;
  std::set<std::tuple<std::size_t, std::size_t, std::int64_t>> visited_;
};

// What the walk would find at its first pair, before anything is made for it: the columns of a
// matrix are told apart here.
bool residues_differ(const ByteSet& a, const ByteSet& b) {
  std::uint64_t divisor = 0;
  for (const Level level : a.levels) divisor = std::gcd(divisor, level.stride);
  for (const Level level : b.levels) divisor = std::gcd(divisor, level.stride);
  const std::uint64_t gap = (b.begin % divisor + divisor - a.begin % divisor) % divisor;
  return gap >= a.run && gap + b.run <= divisor;
}

}  // namespace

ByteSet make_byte_set(const View& view) {
  ByteSet set;
  set.begin = set.end = view.offset_bytes;
  if (has_no_bytes(view)) return set;
  set.run = view.item_bytes;
  std::vector<Level> levels;
  for (const Dim& dim : view.dims) {
    if (dim.size == 1 || dim.stride_bytes == 0) continue;
    const std::uint64_t stride = static_cast<std::uint64_t>(std::abs(dim.stride_bytes));
    if (dim.stride_bytes < 0) set.begin -= (dim.size - 1) * stride;
    levels.push_back({stride, dim.size});
  }
  std::sort(levels.begin(), levels.end());
  for (const Level level : levels) add_level(set, level);
  std::reverse(set.levels.begin(), set.levels.end());
  set.end = set.begin + set.run;
  for (const Level level : set.levels) set.end += (level.count - 1) * level.stride;
  return set;
}

bool ByteSet::surely_covers(const ByteSet& other) const {
  return *this == other || (contiguous() && begin <= other.begin && other.end <= end);
}

Overlap find_overlap(const ByteSet& a, const ByteSet& b) {
  CompareWork unlimited = CompareWork::unlimited();
  return find_overlap(a, b, unlimited);
}

Overlap find_overlap(const ByteSet& a, const ByteSet& b, CompareWork& work) {
  if (!work.spend(1)) return Overlap::kUndecided;
  if (a.begin == a.end || b.begin == b.end) return Overlap::kNone;
  if (a.end <= b.begin || b.end <= a.begin) return Overlap::kNone;
  if (a.contiguous() && b.contiguous()) return Overlap::kShared;
  if (residues_differ(a, b)) return Overlap::kNone;
  const Tree tree_a(a);
  const Tree tree_b(b);
  const auto gap = static_cast<std::int64_t>(b.begin) - static_cast<std::int64_t>(a.begin);
  return Walk(tree_a, tree_b, work).meet(0, 0, gap);
}

}  // namespace anabranch::check
