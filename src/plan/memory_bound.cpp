// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_bound.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "plan/antichain.h"

namespace anabranch::memory {
namespace {

constexpr std::size_t kMaxRegion = 160;  // lives
constexpr std::size_t kMaxTries = 512;
constexpr std::size_t kMaxWork = 500'000;  // squares of numbers of lives, all tries together
constexpr std::uint32_t kSpread = 4;       // lives that begin so close have nearly the same region

// The life and those conflicting with it that begin earlier, of too many the largest: an antichain
// lies in such a region of the one of its lives that begins last.
std::vector<std::uint32_t> find_region(const Lives& lives, const Conflicts& conflicts,
                                       std::uint32_t life) {
  std::vector<std::uint32_t> region{life};
  for (const std::uint32_t other : conflicts.of(life)) {
    if (other < life) region.push_back(other);
  }
  if (region.size() > kMaxRegion) {
    const auto larger = [&](std::uint32_t a, std::uint32_t b) {
      return lives.all[a].size_bytes > lives.all[b].size_bytes;
    };
    std::nth_element(region.begin(), region.begin() + kMaxRegion, region.end(), larger);
    region.resize(kMaxRegion);
  }
  std::sort(region.begin(), region.end());
  return region;
}

std::uint64_t weigh_region(const Lives& lives, const Conflicts& conflicts, std::uint32_t life) {
  std::uint64_t sum = lives.all[life].size_bytes;
  for (const std::uint32_t other : conflicts.of(life)) {
    if (other < life) sum += lives.all[other].size_bytes;
  }
  return sum;
}

}  // namespace

std::uint64_t find_peak_in_order(const Lives& lives) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> ends;
  for (const Life& life : lives.all) ends.emplace_back(life.end, life.size_bytes);
  std::sort(ends.begin(), ends.end());
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  std::size_t ended = 0;
  for (const Life& life : lives.all) {
    while (ends[ended].first < life.begin) live -= ends[ended++].second;
    live += life.size_bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

std::uint64_t find_peak_across_streams(const Lives& lives, const Conflicts& conflicts) {
  const std::size_t lives_count = lives.all.size();
  if (lives_count <= kMaxRegion) {
    std::vector<std::uint32_t> all(lives_count);
    std::iota(all.begin(), all.end(), 0u);
    return find_heaviest_antichain(lives, all);
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> tries;  // no antichain there weighs more
  for (std::uint32_t i = 0; i < lives_count; ++i) {
    tries.emplace_back(weigh_region(lives, conflicts, i), i);
  }
  const std::size_t count = std::min(tries.size(), kMaxTries);
  std::partial_sort(tries.begin(), tries.begin() + static_cast<std::ptrdiff_t>(count), tries.end(),
                    std::greater<>());
  std::uint64_t peak = 0;
  std::size_t work = 0;
  std::vector<bool> near_tried(lives_count + kSpread, false);
  for (std::size_t i = 0; i < count && tries[i].first > peak && work < kMaxWork; ++i) {
    const std::uint32_t life = tries[i].second;
    if (near_tried[life]) continue;
    const std::uint32_t from = life - std::min(life, kSpread);
    std::fill(near_tried.begin() + from, near_tried.begin() + life + kSpread, true);
    const std::vector<std::uint32_t> region = find_region(lives, conflicts, life);
    work += region.size() * region.size();
    peak = std::max(peak, find_heaviest_antichain(lives, region));
  }
  return peak;
}

}  // namespace anabranch::memory
