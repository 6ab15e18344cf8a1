// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/arena/arena_parts.h"

#include <algorithm>

namespace anabranch::cuda {
namespace {

// Where in the arena a unit lies.
struct Piece {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t unit = 0;
};

std::vector<Piece> pieces_by_begin(const ArenaLayout& arena, std::span<const Unit> units) {
  std::vector<Piece> pieces;
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    const std::uint64_t begin = arena.offsets[unit];
    if (begin != kNotInArena) pieces.push_back({begin, begin + units[unit].bytes, unit});
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  return pieces;
}

// The first piece behind the part that begins with `first`: the cut that wastes the least between
// once and twice the least span, or the next one behind that wastes no more than it may. What
// follows it spans the least, too: waste is under a cut's share of the arena, which is no more than
// the least span, so that whatever reaches the arena's end begins behind the cut.
std::size_t find_cut(std::span<const Piece> pieces, std::size_t first, std::uint64_t arena_bytes,
                     std::uint64_t least) {
  const std::uint64_t base = pieces[first].begin;
  std::uint64_t reach = pieces[first].end, best_waste = ~std::uint64_t{0};
  std::size_t best = pieces.size();
  for (std::size_t i = first + 1; i < pieces.size() && best_waste != 0; ++i) {
    const std::uint64_t at = pieces[i].begin;
    if (arena_bytes - at < least || (best != pieces.size() && at - base >= 2 * least)) break;
    const std::uint64_t waste = reach - std::min(reach, at);
    if (at - base >= least && waste <= (at - base) / kWasteShare && waste < best_waste) {
      best = i;
      best_waste = waste;
    }
    reach = std::max(reach, pieces[i].end);
  }
  return best;
}

}  // namespace

ArenaParts cut_arena(const ArenaLayout& arena, std::span<const Unit> units,
                     std::uint64_t least_bytes) {
  const std::uint64_t least =
      std::max({least_bytes, arena.size_bytes / kMostParts, kPartAlignment});
  const std::vector<Piece> pieces = pieces_by_begin(arena, units);
  ArenaParts parts;
  parts.places.resize(units.size());
  for (std::size_t first = 0; first < pieces.size();) {
    const std::size_t cut = find_cut(pieces, first, arena.size_bytes, least);
    const std::uint64_t base = pieces[first].begin;
    const auto part = static_cast<std::uint32_t>(parts.bytes.size());
    std::uint64_t end = base;
    for (; first < cut; ++first) {
      parts.places[pieces[first].unit] = {part, pieces[first].begin - base};
      end = std::max(end, pieces[first].end);
    }
    parts.bytes.push_back(end - base);
  }
  return parts;
}

}  // namespace anabranch::cuda
