// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/stretches.h"

#include <algorithm>

#include "record/cuda/arena/placement.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kNever = ~0u;

// The first and the last node that names a unit.
struct Life {
  std::uint32_t first = kNever, last = 0;
};

std::vector<Life> lives_of(const Discovery& step) {
  std::vector<Life> lives(step.units.size());
  for (const Site& site : step.step.sites) {
    Life& life = lives[site.unit];
    life.first = std::min(life.first, site.node);
    life.last = std::max(life.last, site.node);
  }
  return lives;
}

// Where each piece of a step ends, which no stretch may cut: nodes that share scratch memory, which
// is no allocation and so nothing that one stretch could leave for another.
std::vector<std::uint32_t> ends_of_pieces(const Discovery& step, std::span<const Life> lives) {
  std::vector<bool> is_scratch(step.units.size(), true);
  for (const std::uint32_t unit : step.unit_of) is_scratch[unit] = false;
  std::vector<std::uint32_t> last(step.step.image.nodes.size());
  for (std::size_t unit = 0; unit < lives.size(); ++unit) {
    if (!is_scratch[unit] || lives[unit].first == kNever) continue;
    last[lives[unit].first] = std::max(last[lives[unit].first], lives[unit].last);
  }
  std::vector<std::uint32_t> ends;
  std::uint32_t reached = 0;
  for (std::uint32_t node = 0; node < last.size(); ++node) {
    reached = std::max(reached, last[node]);
    if (reached <= node) ends.push_back(node + 1);
  }
  return ends;
}

// The memory of a step, by the pieces where it begins to be needed and is needed no more.
class Memory {
 public:
  Memory(const Discovery& step, std::span<const std::uint32_t> let_go) {
    const std::vector<Life> lives = lives_of(step);
    ends_ = ends_of_pieces(step, lives);
    pieces_.resize(ends_.size());
    dying_.resize(ends_.size());
    std::vector<bool> is_let_go(step.units.size());
    for (const std::uint32_t allocation : let_go) is_let_go[step.unit_of[allocation]] = true;
    for (std::size_t unit = 0; unit < lives.size(); ++unit) {
      if (lives[unit].first == kNever) continue;
      const Life life{piece_of(lives[unit].first), piece_of(lives[unit].last)};
      add(life, step.units[unit].bytes, step.kinds[unit], is_let_go[unit]);
    }
  }

  // Of all that the nodes name, without temporaries.
  std::uint64_t named() const { return named_; }

  // What the pieces take at once, one by one.
  std::uint64_t peak() const {
    std::uint64_t given = let_go_, made = 0, most = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      made += pieces_[i].begins;
      most = std::max(most, given + made);
      given -= pieces_[i].let_go;
      for (const Temporary& temporary : dying_[i]) made -= temporary.bytes;
    }
    return most;
  }

  // Where each of the fewest stretches ends that take no more than `bound`, which is peak() at
  // least. What was made for an earlier stretch stays until the one that needs it last is queued;
  // temporaries lie in fresh memory until that is needed.
  std::vector<std::uint32_t> cut(std::uint64_t bound) const {
    std::vector<std::uint32_t> ends;
    std::uint64_t given = let_go_, later_given = let_go_, made = 0, kept = 0;
    std::uint32_t begin = 0;
    for (std::uint32_t i = 0; i < pieces_.size(); ++i) {
      made += pieces_[i].begins;
      if (given + made + kept > bound) {
        begin = i;
        ends.push_back(ends_[i - 1]);
        given = later_given;
        kept = 0;
      }
      later_given -= pieces_[i].let_go;
      for (const Temporary& temporary : dying_[i]) {
        made -= temporary.bytes;
        if (temporary.first < begin) kept += temporary.bytes;
      }
    }
    if (!ends_.empty()) ends.push_back(ends_.back());
    return ends;
  }

 private:
  struct Piece {
    std::uint64_t begins = 0;  // fresh memory and temporaries that it names first
    std::uint64_t let_go = 0;  // given memory that it names last
  };
  struct Temporary {
    std::uint32_t first = 0;
    std::uint64_t bytes = 0;
  };

  std::uint32_t piece_of(std::uint32_t node) const {
    return static_cast<std::uint32_t>(std::ranges::upper_bound(ends_, node) - ends_.begin());
  }

  void add(const Life& life, std::uint64_t bytes, UnitKind kind, bool is_let_go) {
    if (kind == UnitKind::kTemporary) {
      dying_[life.last].push_back({life.first, bytes});
    } else {
      named_ += bytes;
    }
    if (kind != UnitKind::kGiven) {
      pieces_[life.first].begins += bytes;
    } else if (is_let_go) {
      let_go_ += bytes;
      pieces_[life.last].let_go += bytes;
    }
  }

  std::vector<std::uint32_t> ends_;  // of pieces, as nodes
  std::vector<Piece> pieces_;
  std::vector<std::vector<Temporary>> dying_;  // by the piece that names them last
  std::uint64_t let_go_ = 0, named_ = 0;
};

bool is_one_stretch(const Discovery& step) {
  return !step.tables.empty() || !step.step.numbers.empty();
}

UnitKind kind_within(UnitKind kind, const Unit& unit, const Life& life, std::uint32_t begin,
                     std::uint32_t end) {
  if (kind == UnitKind::kGiven) return kind;
  if (life.first < begin) return UnitKind::kGiven;
  const bool is_within = kind == UnitKind::kTemporary && life.last < end;
  return is_within || kind == UnitKind::kFresh ? kind : kind_of_allocated(unit);
}

// Those of some of a step's nodes, in the order of their nodes.
template <typename Thing>
std::vector<Thing> taken(const std::vector<Thing>& of, std::uint32_t begin, std::uint32_t end) {
  std::vector<Thing> found;
  for (Thing each : of) {
    if (each.node < begin || each.node >= end) continue;
    each.node -= begin;
    found.push_back(each);
  }
  return found;
}

StepGraph taken(const StepGraph& step, std::uint32_t begin, std::uint32_t end) {
  StepGraph made;
  const auto& [nodes, edges] = step.image;
  made.image.nodes.assign(nodes.begin() + begin, nodes.begin() + end);
  for (const EdgeImage& edge : edges) {
    if (edge.from < begin || edge.to >= end) continue;
    made.image.edges.push_back({edge.from - begin, edge.to - begin, edge.data});
  }
  made.facts.assign(step.facts.begin() + begin, step.facts.begin() + end);
  made.sites = taken(step.sites, begin, end);
  return made;
}

}  // namespace

std::vector<std::uint32_t> find_stretches(const Discovery& whole,
                                          std::span<const std::uint32_t> let_go) {
  const Memory memory(whole, let_go);
  if (is_one_stretch(whole)) return memory.cut(~std::uint64_t{0});
  const std::uint64_t room = std::max(kStretchBytes, memory.named() / kStretchShare);
  for (std::uint64_t bound = memory.peak() + room;; bound += room / 4) {
    auto ends = memory.cut(bound);
    if (ends.size() <= kMostStretches) return ends;
  }
}

Discovery take_stretch(const Discovery& whole, std::uint32_t begin, std::uint32_t end) {
  Discovery made;
  made.original = whole.original;
  made.step = taken(whole.step, begin, end);
  made.units = whole.units;
  made.unit_of = whole.unit_of;
  const std::vector<Life> lives = lives_of(whole);
  for (std::size_t unit = 0; unit < lives.size(); ++unit) {
    made.kinds.push_back(
        kind_within(whole.kinds[unit], whole.units[unit], lives[unit], begin, end));
  }
  made.slots = find_slots(made.units, made.unit_of, made.kinds, made.step.sites);
  if (begin == 0) {
    made.unsure = whole.unsure;
    made.first_unsure = whole.first_unsure;
  }
  made.is_of_one = whole.is_of_one;
  made.is_stretch = true;
  return made;
}

}  // namespace anabranch::cuda
