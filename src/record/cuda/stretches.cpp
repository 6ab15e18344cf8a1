// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/stretches.h"

#include <algorithm>
#include <array>

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

// So many places are looked at, so that it takes little time.
constexpr std::uint32_t kMostCuts = 128;

// The memory of a step, by the pieces where it begins to be needed and is needed no more, and what
// launches in stretches of these pieces take. `begun_` and the like are of all pieces before one.
class Memory {
 public:
  Memory(const Discovery& step, std::span<const std::uint32_t> let_go) {
    const std::vector<Life> lives = lives_of(step);
    ends_ = ends_of_pieces(step, lives);
    given_.resize(ends_.size() + 1);
    begun_.resize(ends_.size() + 1);
    over_.resize(ends_.size() + 1);
    temporaries_.resize(ends_.size());
    made_.resize(ends_.size());
    std::vector<bool> is_let_go(step.units.size());
    for (const std::uint32_t allocation : let_go) is_let_go[step.unit_of[allocation]] = true;
    for (std::size_t unit = 0; unit < lives.size(); ++unit) {
      if (lives[unit].first == kNever) continue;
      const Life life{piece_of(lives[unit].first), piece_of(lives[unit].last)};
      add(life, step.units[unit].bytes, step.kinds[unit], is_let_go[unit]);
    }
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      begun_[i + 1] += begun_[i];
      over_[i + 1] += over_[i];
    }
    for (std::size_t i = ends_.size(); i > 0; --i) given_[i - 1] += given_[i];
  }

  // The node behind each piece.
  std::span<const std::uint32_t> ends() const { return ends_; }
  bool has_let_go() const { return !given_.empty() && given_.front() > 0; }

  // Of all that the nodes name, without temporaries.
  std::uint64_t named() const { return named_; }

  // What the pieces take at once, one by one.
  std::uint64_t peak() const {
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      most = std::max(most, given_[i] + begun_[i + 1] - over_[i]);
    }
    return most;
  }

  // Where stretches may begin and end, as numbers of pieces: at the start, behind the last one, and
  // between them where little is there.
  std::vector<std::uint32_t> cuts() const {
    const auto pieces = static_cast<std::uint32_t>(ends_.size());
    const std::uint32_t step = pieces / kMostCuts + 1;
    std::vector<std::uint32_t> found{0};
    for (std::uint32_t begin = 1; begin < pieces; begin += step) {
      std::uint32_t best = begin;
      for (std::uint32_t i = begin; i < std::min(begin + step, pieces); ++i) {
        if (held_at(i) < held_at(best)) best = i;
      }
      found.push_back(best);
    }
    found.push_back(pieces);
    return found;
  }

  // What a launch takes at most while it runs the stretch from `begin` to each of `cuts` behind
  // that. All is there at once that other stretches need as well, that is answered, or that was
  // given and is let go of behind it; the others are temporaries, which take what they take at
  // their peak.
  std::vector<std::uint64_t> taken_from(std::uint32_t begin,
                                        std::span<const std::uint32_t> cuts) const {
    std::vector<std::uint64_t> taken, live(ends_.size());
    std::uint64_t within = 0, most = 0;
    std::uint32_t piece = begin;
    for (const std::uint32_t end : cuts) {
      if (end <= begin) continue;
      for (; piece < end; ++piece) {
        for (const auto& [life, bytes] : temporaries_[piece]) {
          if (life.first < begin) continue;
          within += bytes;
          for (std::uint32_t i = life.first; i <= piece; ++i) {
            most = std::max(most, live[i] += bytes);
          }
        }
      }
      taken.push_back(given_[begin] + begun_[end] - over_[begin] - within + most);
    }
    return taken;
  }

  // The same of one stretch, whose temporaries lie in what it makes for later where they are over
  // before that and no larger. An estimate: one that fits in time lies at its beginning.
  std::uint64_t taken(std::uint32_t begin, std::uint32_t end) const {
    std::vector<Block> temporaries;
    std::vector<Lender> lenders;
    std::uint64_t within = 0;
    for (std::uint32_t piece = begin; piece < end; ++piece) {
      for (const Block& block : made_[piece]) {
        const bool is_over = block.life.last < end;
        if (!is_over) lenders.push_back({block, {}});
        if (is_over) temporaries.push_back(block);
        within += is_over ? block.bytes : 0;
      }
    }
    std::ranges::stable_sort(temporaries, std::ranges::greater(), &Block::bytes);
    std::vector<std::uint64_t> live(end - begin);
    for (const Block& block : temporaries) {
      if (std::ranges::any_of(lenders, [&](Lender& lender) { return lender.lend(block); }))
        continue;
      for (std::uint32_t i = block.life.first; i <= block.life.last; ++i) {
        live[i - begin] += block.bytes;
      }
    }
    return given_[begin] + begun_[end] - over_[begin] - within + std::ranges::max(live);
  }

 private:
  // What a launch makes. What it answers is never over.
  struct Block {
    Life life;
    std::uint64_t bytes = 0;
  };
  struct Lender {
    Block block;
    std::vector<Life> lent;

    bool lend(const Block& to) {
      const auto is_apart = [&](const Life& other) {
        return other.last < to.life.first || to.life.last < other.first;
      };
      if (to.life.last >= block.life.first || to.bytes > block.bytes ||
          !std::ranges::all_of(lent, is_apart)) {
        return false;
      }
      lent.push_back(to.life);
      return true;
    }
  };

  std::uint32_t piece_of(std::uint32_t node) const {
    return static_cast<std::uint32_t>(std::ranges::upper_bound(ends_, node) - ends_.begin());
  }
  // Between a piece and the one before it.
  std::uint64_t held_at(std::uint32_t piece) const {
    return given_[piece] + begun_[piece] - over_[piece];
  }

  void add(const Life& life, std::uint64_t bytes, UnitKind kind, bool is_let_go) {
    if (kind == UnitKind::kTemporary) {
      temporaries_[life.last].push_back({life, bytes});
      over_[life.last + 1] += bytes;
    } else {
      named_ += bytes;
    }
    if (kind != UnitKind::kGiven) {
      begun_[life.first + 1] += bytes;
      const std::uint32_t last = kind == UnitKind::kTemporary ? life.last : kNever;
      made_[life.first].push_back({{life.first, last}, bytes});
    } else if (is_let_go) {
      given_[life.last] += bytes;
    }
  }

  std::vector<std::uint32_t> ends_;              // of pieces, as nodes
  std::vector<std::uint64_t> begun_;             // that a launch makes
  std::vector<std::uint64_t> over_;              // of these, what is needed no more
  std::vector<std::uint64_t> given_;             // by piece, what is let go of behind it or later
  std::vector<std::vector<Block>> temporaries_;  // by the piece that names them last
  std::vector<std::vector<Block>> made_;         // by the piece that names it first
  std::uint64_t named_ = 0;
};

// Of each number of stretches, those with the lowest peak: by the cut where they have come to, what
// they take, and the cut before it.
class Cutting {
 public:
  explicit Cutting(const Memory& memory) : memory_(memory), cuts_(memory.cuts()) {
    reached_.assign(kMostStretches + 1, std::vector<Reached>(cuts_.size()));
    reached_[0][0].bytes = 0;
    for (std::uint32_t from = 0; from + 1 < cuts_.size(); ++from) {
      const auto taken = memory.taken_from(cuts_[from], cuts_);
      for (std::uint32_t i = 0; i < taken.size(); ++i) go_on(from, from + 1 + i, taken[i]);
    }
  }

  // As an estimate; all bytes that there are where there are too few cuts for so many.
  std::uint64_t peak(std::uint32_t stretches) const {
    if (reached_[stretches].back().bytes == kNone) return kNone;
    std::uint64_t most = 0;
    std::uint32_t begin = 0;
    for (const std::uint32_t end : pieces(stretches)) {
      most = std::max(most, memory_.taken(begin, end));
      begin = end;
    }
    return most;
  }

  std::vector<std::uint32_t> ends(std::uint32_t stretches) const {
    std::vector<std::uint32_t> found;
    for (const std::uint32_t piece : pieces(stretches)) found.push_back(memory_.ends()[piece - 1]);
    return found;
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  struct Reached {
    std::uint64_t bytes = kNone;
    std::uint32_t from = 0;
  };

  // Where each stretch ends.
  std::vector<std::uint32_t> pieces(std::uint32_t stretches) const {
    std::vector<std::uint32_t> found(stretches);
    auto cut = static_cast<std::uint32_t>(cuts_.size()) - 1;
    for (; stretches > 0; cut = reached_[stretches--][cut].from) {
      found[stretches - 1] = cuts_[cut];
    }
    return found;
  }

  void go_on(std::uint32_t from, std::uint32_t to, std::uint64_t bytes) {
    for (std::uint32_t stretches = 0; stretches < kMostStretches; ++stretches) {
      const std::uint64_t peak = std::max(reached_[stretches][from].bytes, bytes);
      Reached& there = reached_[stretches + 1][to];
      if (peak < there.bytes) there = {peak, from};
    }
  }

  const Memory& memory_;
  std::vector<std::uint32_t> cuts_;
  std::vector<std::vector<Reached>> reached_;  // by stretches, by cut
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
    made.image.edges.push_back({edge.from - begin, edge.to - begin, edge.data, edge.is_ours});
  }
  made.facts.assign(step.facts.begin() + begin, step.facts.begin() + end);
  made.sites = taken(step.sites, begin, end);
  return made;
}

}  // namespace

std::vector<std::uint32_t> find_stretches(const Discovery& whole,
                                          std::span<const std::uint32_t> let_go) {
  const Memory memory(whole, let_go);
  if (memory.ends().empty()) return {};
  if (is_one_stretch(whole) || !memory.has_let_go()) return {memory.ends().back()};
  const Cutting cutting(memory);
  const std::uint64_t room = std::max(kStretchBytes, memory.named() / kStretchShare);
  std::array<std::uint64_t, kMostStretches> peaks;  // of 1, 2 and so on
  for (std::uint32_t i = 0; i < peaks.size(); ++i) peaks[i] = cutting.peak(i + 1);
  const std::uint64_t bound = std::max(memory.peak() + room, std::ranges::min(peaks) + room / 4);
  const auto fewest = std::ranges::find_if(peaks, [&](auto peak) { return peak <= bound; });
  return cutting.ends(static_cast<std::uint32_t>(fewest - peaks.begin()) + 1);
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
