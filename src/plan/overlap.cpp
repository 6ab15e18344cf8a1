// SPDX-License-Identifier: Apache-2.0
#include "plan/overlap.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <set>
#include <utility>

namespace anabranch {
namespace {

using Repeat = Bytes::Repeat;

// Merges repeats that together make one: a run that goes on, or rows without a gap.
void merge_repeats(Bytes& bytes) {
  std::vector<Repeat>& repeats = bytes.repeats;
  std::sort(repeats.begin(), repeats.end(),
            [](const Repeat& a, const Repeat& b) { return a.stride > b.stride; });
  while (!repeats.empty() && repeats.back().stride <= bytes.run) {
    bytes.run += repeats.back().stride * (repeats.back().count - 1);
    repeats.pop_back();
  }
  for (std::size_t i = repeats.size(); i-- > 1;) {
    Repeat& outer = repeats[i - 1];
    const Repeat inner = repeats[i];
    // Steps of the outer that are steps of the inner, and leave no gap.
    if (outer.stride % inner.stride != 0 || outer.stride / inner.stride > inner.count) continue;
    outer = {inner.stride, inner.count + (outer.count - 1) * (outer.stride / inner.stride)};
    repeats.erase(repeats.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// sum(stride_k * z_k) with 0 <= z_k <= most_k falls into an interval.
struct Term {
  std::int64_t stride = 0;
  std::int64_t most = 0;
  std::int64_t divisor = 0;  // of all strides from here on
  std::int64_t reach = 0;    // the largest sum of the terms after this one
};

std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return value > 0 ? (value - 1) / by + 1 : 0;
}

class Search {
 public:
  Search(std::vector<Term> terms, CompareWork& work) : terms_(std::move(terms)), work_(work) {}

  Overlap run(std::int64_t low, std::int64_t high) {
    const bool found = visit(0, low, high);
    if (found) return Overlap::kOverlap;
    return gave_up() ? Overlap::kUnknown : Overlap::kDisjoint;
  }

 private:
  bool visit(std::size_t number, std::int64_t low, std::int64_t high);
  bool gave_up() const { return nodes_ > kMaxNodes || work_.exhausted(); }

  std::vector<Term> terms_;
  CompareWork& work_;
  std::uint32_t nodes_ = 0;
  // Where the search was in vain: term and rest. Sums that several multiples reach are common.
  std::set<std::pair<std::size_t, std::int64_t>> failed_;
};

bool Search::visit(std::size_t number, std::int64_t low, std::int64_t high) {
  if (low <= 0 && high >= 0) return true;
  if (high < 0 || number == terms_.size()) return false;
  const Term& term = terms_[number];
  if (high / term.divisor < divide_up(low, term.divisor)) return false;
  if (++nodes_ > kMaxNodes || !work_.spend(CompareWork::kSearch)) return false;
  if (!failed_.emplace(number, low).second) return false;
  const std::int64_t last = std::min(high / term.stride, term.most);
  const std::int64_t first = divide_up(low - term.reach, term.stride);
  // From above: the fewest bytes are then left to the smaller strides.
  for (std::int64_t z = last; z >= first && !gave_up(); --z) {
    if (visit(number + 1, low - z * term.stride, high - z * term.stride)) return true;
  }
  return false;
}

// The strides of both views, the equal ones as one term.
std::vector<Term> make_terms(const Bytes& a, const Bytes& b) {
  std::vector<Term> terms;
  terms.reserve(a.repeats.size() + b.repeats.size());
  for (const Bytes* bytes : {&a, &b}) {
    for (const Repeat& repeat : bytes->repeats) terms.push_back({repeat.stride, repeat.count - 1});
  }
  std::sort(terms.begin(), terms.end(),
            [](const Term& x, const Term& y) { return x.stride > y.stride; });
  std::size_t size = 0;
  for (const Term& term : terms) {
    if (size > 0 && terms[size - 1].stride == term.stride) {
      terms[size - 1].most += term.most;
    } else {
      terms[size++] = term;
    }
  }
  terms.resize(size);
  std::int64_t divisor = 0;
  std::int64_t reach = 0;
  for (std::size_t i = terms.size(); i-- > 0;) {
    terms[i].divisor = divisor = std::gcd(divisor, terms[i].stride);
    terms[i].reach = reach;
    reach += terms[i].stride * terms[i].most;
  }
  return terms;
}

std::int64_t extent_of(const Bytes& bytes) { return bytes.end - bytes.begin - bytes.run; }

}  // namespace

Bytes make_bytes(const View& view) {
  Bytes bytes;
  bytes.begin = bytes.end = static_cast<std::int64_t>(view.offset_bytes);
  if (view.item_bytes == 0) return bytes;
  bytes.end += static_cast<std::int64_t>(view.item_bytes);
  for (const Dim& dim : view.dims) {
    if (dim.size == 0) return {bytes.begin, bytes.begin, 0, {}};
    if (dim.size == 1 || dim.stride_bytes == 0) continue;
    const auto count = static_cast<std::int64_t>(dim.size);
    const std::int64_t reach = dim.stride_bytes * (count - 1);
    (reach < 0 ? bytes.begin : bytes.end) += reach;
    bytes.repeats.push_back({std::abs(dim.stride_bytes), count});
  }
  bytes.run = static_cast<std::int64_t>(view.item_bytes);
  merge_repeats(bytes);
  return bytes;
}

Overlap find_overlap(const Bytes& a, const Bytes& b) {
  CompareWork unlimited = CompareWork::unlimited();
  return find_overlap(a, b, unlimited);
}

Overlap find_overlap(const Bytes& a, const Bytes& b, CompareWork& work) {
  if (!work.spend(1)) return Overlap::kUnknown;
  if (a.begin == a.end || b.begin == b.end) return Overlap::kDisjoint;
  if (a.begin >= b.end || b.begin >= a.end) return Overlap::kDisjoint;
  if (a.repeats.empty() && b.repeats.empty()) return Overlap::kOverlap;
  if (a.begin == b.begin) return Overlap::kOverlap;
  // A run of `a` at x and one of `b` at y share a byte if -a.run < x - y < b.run. Counting the
  // repeats of `b` from its last makes x - y the sum of terms, less what follows.
  const std::int64_t start = b.begin + extent_of(b) - a.begin;
  return Search(make_terms(a, b), work).run(start - a.run + 1, start + b.run - 1);
}

bool surely_covers(const Bytes& outer, const Bytes& inner) {
  if (inner.begin == inner.end) return true;
  if (outer.repeats.empty()) return outer.begin <= inner.begin && inner.end <= outer.end;
  return outer.repeats == inner.repeats && outer.begin <= inner.begin && inner.end <= outer.end;
}

}  // namespace anabranch
