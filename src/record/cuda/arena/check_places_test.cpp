// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/arena/check_places.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <random>

#include "record/cuda/arena/arena_parts.h"
#include "record/cuda/image/graph_image_testing.h"
#include "record/cuda/order/early_edges.h"

namespace anabranch::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using enum UnitKind;

constexpr std::uint64_t kGranule = 512;

// A graph, its units, and where they lie.
struct Placed {
  GraphImage image;
  std::vector<Site> by_unit;
  std::vector<PlacedSite> by_source;
  std::vector<Unit> units;
  std::vector<UnitKind> kinds;
  std::vector<CudaSlot> slots;
  std::vector<SourceRule> rules;
  ArenaLayout arena;
  std::vector<Loan> loans;

  std::uint32_t add_unit(UnitKind kind, std::uint64_t bytes) {
    units.push_back({0, 0, bytes});
    kinds.push_back(kind);
    return static_cast<std::uint32_t>(units.size() - 1);
  }
  std::uint32_t add_node(const std::vector<std::uint32_t>& used,
                         const std::vector<std::uint32_t>& after, bool programmatic = false) {
    const auto node = static_cast<std::uint32_t>(image.nodes.size());
    image.nodes.push_back(testing::fill(0));
    for (const std::uint32_t unit : used) by_unit.push_back({node, Operand::kParam, 0, unit, 4});
    for (const std::uint32_t before : after) {
      CuEdgeData data{};
      data.type = programmatic ? kEdgeProgrammatic : kEdgeDefault;
      image.edges.push_back({before, node, data});
    }
    return node;
  }
  void plan(std::uint64_t least_part_bytes = kGranule) {
    close_early_edges(image);
    auto planned = plan_arena(image, by_unit, units, kinds);
    ASSERT_TRUE(planned.ok());
    arena = planned->parts.arena;
    loans = planned->loans;
    std::vector<bool> is_named(units.size());
    for (const Site& site : by_unit) is_named[site.unit] = true;
    const auto add_source = [&](std::uint64_t bytes) {
      rules.emplace_back(bytes, bytes == 0 ? 0 : kGranule - 1);
    };
    for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
      if (kinds[unit] == kTemporary || !is_named[unit]) continue;
      slots.push_back({unit, unit, units[unit].bytes, kGranule});
      add_source(units[unit].bytes);
    }
    const ArenaParts parts = cut_arena(arena, units, least_part_bytes);
    for (const std::uint64_t bytes : parts.bytes) add_source(bytes);
    for (const Site& site : by_unit) {
      const auto [source, offset] = place_of(site.unit, parts);
      by_source.push_back({site.node, site.operand, site.offset, source, site.shift + offset});
    }
  }
  Status check() const {
    return check_places(image, {by_unit, by_source, units, kinds, slots, rules});
  }

  std::uint32_t slot_of(std::uint32_t unit) const {
    const auto at = std::ranges::find(slots, unit, &CudaSlot::unit);
    return static_cast<std::uint32_t>(at - slots.begin());
  }
  // Where a unit lies now: of its first site.
  std::pair<std::uint32_t, std::uint64_t> place(std::uint32_t unit) const {
    for (std::size_t i = 0; i < by_unit.size(); ++i) {
      if (by_unit[i].unit != unit) continue;
      return {by_source[i].source, by_source[i].shift - by_unit[i].shift};
    }
    return {~0u, 0};
  }
  void move(std::uint32_t unit, std::uint32_t source, std::uint64_t offset) {
    for (std::size_t i = 0; i < by_unit.size(); ++i) {
      if (by_unit[i].unit != unit) continue;
      by_source[i].source = source;
      by_source[i].shift = by_unit[i].shift + offset;
    }
  }

 private:
  std::pair<std::uint32_t, std::uint64_t> place_of(std::uint32_t unit,
                                                   const ArenaParts& parts) const {
    if (kinds[unit] != kTemporary) return {slot_of(unit), 0};
    for (const Loan& loan : loans) {
      if (index_of(loan.temporary) != unit) continue;
      return {slot_of(index_of(loan.lender)), loan.offset};
    }
    const auto first_part = static_cast<std::uint32_t>(slots.size());
    return {first_part + parts.places[unit].part, parts.places[unit].offset};
  }
};

// Every pair of units and of their nodes, by the paths between these.
class Oracle {
 public:
  explicit Oracle(const Placed& placed) : nodes_(placed.units.size()) {
    const std::size_t count = placed.image.nodes.size();
    std::vector<std::vector<bool>> reaches(count, std::vector<bool>(count));
    ends_before_ = reaches;
    for (std::uint32_t from = 0; from < count; ++from) {
      reaches[from][from] = true;
      for (const EdgeImage& edge : placed.image.edges) {  // from < to, sorted by `to`
        if (!reaches[from][edge.from]) continue;
        reaches[from][edge.to] = true;
        // A whole edge waits for the end of the node that it comes from, and of no other.
        if (ends_before_[from][edge.from] || (edge.from == from && !is_early(edge))) {
          ends_before_[from][edge.to] = true;
        }
      }
    }
    for (const Site& site : placed.by_unit) nodes_[site.unit].push_back(site.node);
  }

  bool is_right(const Placed& now) const {
    for (std::uint32_t a = 0; a < nodes_.size(); ++a) {
      if (nodes_[a].empty() || !is_inside(now, a)) {
        if (!nodes_[a].empty()) return false;
        continue;
      }
      for (std::uint32_t b = 0; b < a; ++b) {
        if (nodes_[b].empty() || !share(now, a, b)) continue;
        if (!may_share(now, a, b) && !may_share(now, b, a)) return false;
      }
    }
    return true;
  }

 private:
  static bool is_inside(const Placed& now, std::uint32_t unit) {
    const auto [source, offset] = now.place(unit);
    return offset + now.units[unit].bytes <= now.rules[source].bytes();
  }
  static bool share(const Placed& now, std::uint32_t a, std::uint32_t b) {
    const auto [source, offset] = now.place(a);
    const auto [other, at] = now.place(b);
    return source == other && offset < at + now.units[b].bytes && at < offset + now.units[a].bytes;
  }
  // a is over before b, and is no memory that holds something before or after.
  bool may_share(const Placed& now, std::uint32_t a, std::uint32_t b) const {
    if (now.kinds[a] != kTemporary || now.kinds[b] == kGiven) return false;
    return std::ranges::all_of(nodes_[a], [&](std::uint32_t first) {
      return std::ranges::all_of(nodes_[b],
                                 [&](std::uint32_t second) { return ends_before_[first][second]; });
    });
  }

  std::vector<std::vector<bool>> ends_before_;
  std::vector<std::vector<std::uint32_t>> nodes_;  // by unit
};

// A layer leaves what its backward reads; backwards, in turn, each leaves a gradient, which is used
// once more at the end.
Placed training_step(std::uint32_t layers, std::uint64_t activation, std::uint64_t gradient) {
  Placed step;
  std::uint32_t last = step.add_unit(kGiven, activation), node = 0;
  std::vector<std::uint32_t> saved, gradients;
  const auto queue = [&](const std::vector<std::uint32_t>& used) {
    node = step.add_node(
        used, step.image.nodes.empty() ? std::vector<std::uint32_t>{} : std::vector{node});
  };
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (const std::uint64_t share : {1, 2, 1}) {
      const std::uint32_t made = step.add_unit(kTemporary, share * activation);
      queue({last, made});
      saved.push_back(last = made);
    }
  }
  while (!saved.empty()) {
    const std::uint32_t made = step.add_unit(kTemporary, activation);
    queue({last, saved.back(), made});
    gradients.push_back(step.add_unit(kFresh, gradient));
    queue({made, saved.back(), gradients.back()});
    saved.pop_back();
    last = made;
  }
  for (const std::uint32_t made : gradients) queue({made});
  return step;
}

Placed random_step(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Placed step;
  const auto bytes = [&] { return kGranule * (1 + random() % 6) - random() % 2 * 100; };
  const std::size_t nodes = 12 + random() % 24;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    std::vector<std::uint32_t> used, after;
    if (random() % 4 != 0) used.push_back(step.add_unit(kTemporary, bytes()));
    if (random() % 4 == 0) used.push_back(step.add_unit(kFresh, 2 * bytes()));
    if (random() % 12 == 0) used.push_back(step.add_unit(kGiven, 2 * bytes()));
    for (int i = 0; i < 2 && !step.units.empty(); ++i) {
      const std::uint64_t recent = std::min<std::uint64_t>(step.units.size(), 5);
      used.push_back(static_cast<std::uint32_t>(step.units.size() - 1 - random() % recent));
    }
    for (std::uint32_t before = node - std::min(node, 3u); before < node; ++before) {
      if (random() % 2) after.push_back(before);
    }
    step.add_node(used, after, random() % 8 == 0);
  }
  return step;
}

// Every temporary a granule further, at the beginning of each slot and in the place of each other.
void for_each_mutant(const Placed& placed, const std::function<void(const Placed&)>& check) {
  for (std::uint32_t unit = 0; unit < placed.units.size(); ++unit) {
    const auto [source, offset] = placed.place(unit);
    if (source == ~0u || placed.kinds[unit] != kTemporary) continue;
    const auto try_at = [&](std::uint32_t to, std::uint64_t at) {
      Placed mutant = placed;
      mutant.move(unit, to, at);
      check(mutant);
    };
    try_at(source, offset + kGranule);
    if (offset != 0) try_at(source, offset - kGranule);
    for (std::uint32_t slot = 0; slot < placed.slots.size(); ++slot) try_at(slot, 0);
    for (std::uint32_t other = 0; other < unit; ++other) {
      const auto [to, at] = placed.place(other);
      if (to != ~0u) try_at(to, at);
    }
  }
}

TEST(CheckPlaces, WhatIsPlannedIsRightAndEveryMutantThatIsNotIsFound) {
  std::size_t wrong = 0, right = 0, loans = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Placed step = random_step(seed);
    step.plan();
    const Oracle oracle(step);
    ASSERT_TRUE(step.check().ok()) << step.check().message();
    ASSERT_TRUE(oracle.is_right(step));
    loans += step.loans.size();
    for_each_mutant(step, [&](const Placed& mutant) {
      const bool is_right = oracle.is_right(mutant);
      ASSERT_EQ(mutant.check().ok(), is_right) << mutant.check().message();
      (is_right ? right : wrong) += 1;
    });
  }
  EXPECT_GT(loans, 300u);
  EXPECT_GT(wrong, 10'000u);
  EXPECT_GT(right, 500u);
}

TEST(CheckPlaces, InATrainingStepNoTemporaryMayMoveIntoAnothersTime) {
  Placed step = training_step(4, 4 * kGranule, 16 * kGranule);
  step.plan();
  ASSERT_TRUE(step.check().ok()) << step.check().message();
  const Oracle oracle(step);
  std::size_t wrong = 0;
  for_each_mutant(step, [&](const Placed& mutant) {
    const bool is_right = oracle.is_right(mutant);
    EXPECT_EQ(mutant.check().ok(), is_right) << mutant.check().message();
    wrong += !is_right;
  });
  EXPECT_GT(wrong, 100u);
}

// In MiB, of 24 layers.
TEST(CheckPlaces, WhereGradientsAreLargerThanActivationsNextToNothingIsLeftOfTheArena) {
  const auto arena_of = [](bool lends, std::uint64_t gradient) {
    Placed step = training_step(24, std::uint64_t{4} << 20, gradient);
    for (UnitKind& kind : step.kinds) {
      if (kind == kFresh && !lends) kind = kGiven;
    }
    step.plan(kLeastPartBytes);
    EXPECT_TRUE(step.check().ok()) << step.check().message();
    return step.arena.size_bytes >> 20;
  };
  // Activations of 4, 8 and 4 MiB a layer, and 72 gradients of 12 MiB, or of 4: only some fit.
  EXPECT_EQ(arena_of(false, std::uint64_t{12} << 20), 388u);
  EXPECT_EQ(arena_of(true, std::uint64_t{12} << 20), 8u);
  EXPECT_EQ(arena_of(true, std::uint64_t{4} << 20), 196u);
}

Placed two_nodes(UnitKind second) {
  Placed step;
  const std::uint32_t first = step.add_unit(kTemporary, kGranule),
                      other = step.add_unit(second, kGranule);
  step.add_node({first}, {});
  step.add_node({other}, {0});
  step.plan();
  return step;
}

TEST(CheckPlaces, BothNodesAndTheBytesAreNamed) {
  Placed step = two_nodes(kFresh);
  ASSERT_TRUE(step.check().ok()) << step.check().message();
  EXPECT_EQ(step.loans.size(), 1u);
  step.image.edges.clear();
  EXPECT_EQ(step.check().code(), StatusCode::kRace);
  EXPECT_THAT(step.check().message(),
              AllOf(HasSubstr("fill 0 and fill 1"), HasSubstr("bytes 0..512 of slot 0")));
}

TEST(CheckPlaces, NothingMayLieInAResultAfterItsFirstUse) {
  Placed step;
  const std::uint32_t result = step.add_unit(kFresh, kGranule),
                      later = step.add_unit(kTemporary, kGranule);
  step.add_node({result}, {});
  step.add_node({later}, {0});
  step.plan();
  ASSERT_TRUE(step.check().ok()) << step.check().message();
  EXPECT_TRUE(step.loans.empty());
  step.move(later, 0, 0);
  EXPECT_EQ(step.check().code(), StatusCode::kRace);
  EXPECT_THAT(step.check().message(),
              HasSubstr("fill 1 uses a temporary at bytes 0..512 of slot 0, which fill 0 has "
                        "used for a result before it"));
}

TEST(CheckPlaces, ANodeThatMayBeginEarlyHasNothingOver) {
  Placed step = two_nodes(kFresh);
  step.image.edges[0].data.type = kEdgeProgrammatic;
  EXPECT_EQ(step.check().code(), StatusCode::kRace);
  step.image.edges[0].data = {kPortLaunchOrder, 0, kEdgeDefault, {}};
  EXPECT_EQ(step.check().code(), StatusCode::kRace);
  // Nor has what comes behind its end, if that does not come behind the other's end as well.
  const std::uint32_t late = step.add_node({}, {1});
  step.by_unit[1].node = step.by_source[1].node = late;
  EXPECT_EQ(step.check().code(), StatusCode::kRace);
  close_early_edges(step.image);
  EXPECT_TRUE(step.check().ok()) << step.check().message();
}

TEST(CheckPlaces, APlaceThatIsNoneIsRefused) {
  const Placed step = two_nodes(kFresh);
  const auto refused = [&](const std::function<void(Placed&)>& change) {
    Placed changed = step;
    change(changed);
    const Status status = changed.check();
    EXPECT_EQ(status.code(), StatusCode::kPlanInvalid);
    return status.message();
  };
  EXPECT_THAT(refused([](Placed& p) { p.kinds[1] = kGiven; }), HasSubstr("what a launch is given"));
  EXPECT_THAT(refused([](Placed& p) { p.move(0, 7, 0); }), HasSubstr("no source"));
  EXPECT_THAT(refused([](Placed& p) { p.move(0, 0, 512); }), HasSubstr("has 512 bytes at 512"));
  EXPECT_THAT(refused([](Placed& p) { p.move(1, 0, 8); }), HasSubstr("bytes at 8"));
  EXPECT_THAT(refused([](Placed& p) { p.rules[0] = SourceRule(kGranule, 255); }),
              HasSubstr("which is aligned to 256"));
  EXPECT_THAT(refused([](Placed& p) {
                p.rules[0] = SourceRule(2 * kGranule, 511);
                p.move(1, 0, kGranule);
              }),
              HasSubstr("elsewhere than in its slot"));
  EXPECT_THAT(refused([](Placed& p) {
                p.by_unit.push_back(p.by_unit[0]);
                p.by_source.push_back(p.by_source[0]);
                ++p.by_source.back().shift;
              }),
              HasSubstr("two places"));
}

TEST(CheckPlaces, WhatATableNamesIsUsedWhereItIsRead) {
  Placed step;
  const std::uint32_t table = step.add_unit(kTemporary, kGranule),
                      named = step.add_unit(kTemporary, kGranule),
                      result = step.add_unit(kFresh, 2 * kGranule);
  step.add_node({table, named}, {});  // writes the table
  step.add_node({table}, {0});        // reads it
  step.add_node({result}, {1});
  const TableWrite write{0, table, 0, 8, 0, 8, {named}};
  step.plan();
  const auto check = [&] {
    return check_places(
        step.image, {step.by_unit, step.by_source, step.units, step.kinds, step.slots, step.rules},
        std::span(&write, 1));
  };
  EXPECT_TRUE(check().ok()) << check().message();
  step.image.edges = {{0, 1, {}}, {0, 2, {}}};
  EXPECT_EQ(check().code(), StatusCode::kRace);
}

TEST(CheckPlaces, AStepWithoutUnitsIsRight) {
  Placed step;
  step.add_node({}, {});
  step.plan();
  EXPECT_TRUE(step.check().ok());
}

}  // namespace
}  // namespace anabranch::cuda
