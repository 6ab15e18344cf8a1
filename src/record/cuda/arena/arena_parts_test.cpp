// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/arena/arena_parts.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "record/cuda/arena/plan_arena.h"
#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kKiB = 1024, kLeast = 32 * kKiB;

struct Arena {
  std::vector<Unit> units;
  ArenaLayout layout;

  void add(std::uint64_t offset, std::uint64_t bytes) {
    units.push_back({0, 0, bytes});
    layout.offsets.push_back(offset);
    if (offset != kNotInArena) layout.size_bytes = std::max(layout.size_bytes, offset + bytes);
  }
  ArenaParts cut(std::uint64_t least_bytes = kLeast) const {
    return cut_arena(layout, units, least_bytes);
  }
};

// Temporaries of a graph that a capture might have: chains side by side, joined now and then, each
// unit used by some nodes behind the one that it was made by.
Arena planned_arena(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto nodes = static_cast<std::uint32_t>(20 + random() % 200);
  const auto chains = static_cast<std::uint32_t>(1 + random() % 3);
  GraphImage image = testing::image_of(std::vector<NodeImage>(nodes, testing::fill(0)));
  std::vector<Site> sites;
  std::vector<UnitKind> kinds;
  Arena made;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    const auto comes_after = [&](std::uint32_t before) {
      image.edges.push_back({node - before, node, {}});
    };
    if (chains > 1 && node > 0 && random() % 8 == 0) comes_after(1);
    if (node >= chains) comes_after(chains);
    const auto unit = static_cast<std::uint32_t>(made.units.size());
    made.units.push_back({0, 0, random() % 20 == 0 ? 0 : (kKiB << random() % 7) - random() % 700});
    kinds.push_back(random() % 10 == 0 ? UnitKind::kGiven : UnitKind::kTemporary);
    for (std::uint64_t user = node; user < nodes; user += chains * (1 + random() % 20)) {
      sites.push_back({static_cast<std::uint32_t>(user), Operand::kDestination, 0, unit, 0});
      if (random() % 2) break;
    }
  }
  std::stable_sort(sites.begin(), sites.end(),
                   [](const Site& a, const Site& b) { return a.node < b.node; });
  auto plan = plan_arena(image, sites, made.units, kinds);
  EXPECT_TRUE(plan.ok());
  made.layout = plan->parts.arena;
  return made;
}

// Whatever a planner might answer, holes and all.
Arena random_arena(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Arena made;
  const std::uint64_t field = 512 << random() % 12;
  for (std::uint64_t units = random() % 60; units > 0; --units) {
    const std::uint64_t offset = random() % field / kPartAlignment * kPartAlignment;
    made.add(random() % 10 == 0 ? kNotInArena : offset, random() % (field >> random() % 10));
  }
  return made;
}

std::uint64_t sum(const std::vector<std::uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

void expect_every_promise(const Arena& arena, const ArenaParts& parts, std::uint64_t least) {
  std::vector<std::uint64_t> base(parts.bytes.size(), kNotInArena), reach(parts.bytes.size());
  for (std::size_t unit = 0; unit < arena.units.size(); ++unit) {
    const std::uint64_t offset = arena.layout.offsets[unit];
    if (offset == kNotInArena) continue;
    const ArenaParts::PartOffset& place = parts.places[unit];
    ASSERT_LT(place.part, parts.bytes.size());
    EXPECT_EQ(place.offset % kPartAlignment, 0u);
    EXPECT_LE(place.offset + arena.units[unit].bytes, parts.bytes[place.part]);
    auto& begin = base[place.part];
    if (begin == kNotInArena) begin = offset - place.offset;
    EXPECT_EQ(offset - place.offset, begin) << "units of a part keep their distances";
    reach[place.part] = std::max(reach[place.part], place.offset + arena.units[unit].bytes);
  }
  EXPECT_EQ(parts.bytes, reach) << "a part is no longer than it must be";
  EXPECT_LE(sum(parts.bytes), arena.layout.size_bytes + arena.layout.size_bytes / kWasteShare);
  EXPECT_LE(parts.bytes.size(), kMostParts);
  for (std::size_t part = 0; part < base.size() && base.size() > 1; ++part) {
    const bool is_last = part + 1 == base.size();
    EXPECT_GE(is_last ? parts.bytes[part] : base[part + 1] - base[part], least);
  }
}

TEST(ArenaParts, EveryUnitLiesInOnePartAndLittleIsWasted) {
  std::size_t cuts = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    for (const std::uint64_t least : {std::uint64_t{512}, 8 * kKiB, kLeast}) {
      for (const Arena& arena : {planned_arena(seed), random_arena(seed)}) {
        const ArenaParts parts = arena.cut(least);
        expect_every_promise(arena, parts, least);
        cuts += parts.bytes.empty() ? 0 : parts.bytes.size() - 1;
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GT(cuts, 3000u);
}

TEST(ArenaParts, UnitsSideBySideAreCutApartWithoutWaste) {
  Arena arena;
  for (std::uint64_t i = 0; i < 8; ++i) arena.add(i * kLeast / 2, kLeast / 2);
  const ArenaParts parts = arena.cut();
  EXPECT_THAT(parts.bytes, ElementsAre(kLeast, kLeast, kLeast, kLeast));
  EXPECT_EQ(parts.places[5].part, 2u);
  EXPECT_EQ(parts.places[5].offset, kLeast / 2);
}

TEST(ArenaParts, ALaterCutWithoutWasteIsBetterThanAnEarlierOneWithSome) {
  Arena arena;
  arena.add(0, kLeast + 512);
  arena.add(kLeast, kLeast / 2);  // a cut before it would cost 512 bytes
  arena.add(kLeast + kLeast / 2, 2 * kLeast);
  EXPECT_THAT(arena.cut().bytes, ElementsAre(kLeast + kLeast / 2, 2 * kLeast));
}

TEST(ArenaParts, AUnitThatReachesAcrossACutMakesThePartBeforeItLonger) {
  Arena arena;
  arena.add(0, kLeast + 512);
  arena.add(kLeast, 2 * kLeast);
  const ArenaParts parts = arena.cut();
  EXPECT_THAT(parts.bytes, ElementsAre(kLeast + 512, 2 * kLeast));
  EXPECT_EQ(parts.places[1].offset, 0u);
}

TEST(ArenaParts, WhereEveryCutWouldWasteTooMuchThereIsOnePart) {
  Arena arena;
  arena.add(0, 4 * kLeast);
  for (std::uint64_t i = 0; i < 4; ++i) arena.add(i * kLeast, kLeast);  // while the first is dead
  EXPECT_THAT(arena.cut().bytes, ElementsAre(4 * kLeast));
}

TEST(ArenaParts, LargeArenasHaveLargePartsInsteadOfMany) {
  Arena arena;
  for (std::uint64_t i = 0; i < 1000; ++i) arena.add(i * kLeast, kLeast);
  EXPECT_EQ(arena.cut().bytes.size(), 62u);  // sixteen units each
}

TEST(ArenaParts, OnDemandThereIsOnePart) {
  Arena arena;
  for (std::uint64_t i = 0; i < 100; ++i) arena.add(i * kLeast, kLeast);
  EXPECT_THAT(arena.cut(~std::uint64_t{0}).bytes, ElementsAre(100 * kLeast));
}

TEST(ArenaParts, WithoutTemporariesThereIsNonePart) {
  Arena arena;
  EXPECT_THAT(arena.cut().bytes, IsEmpty());
  arena.add(kNotInArena, kLeast);
  EXPECT_THAT(arena.cut().bytes, IsEmpty());
}

TEST(ArenaParts, TemporariesWithoutBytesHaveAPlaceToo) {
  Arena arena;
  arena.add(0, 0);
  EXPECT_THAT(arena.cut().bytes, ElementsAre(0));
  arena.add(0, kLeast);
  EXPECT_THAT(arena.cut().bytes, ElementsAre(kLeast));
}

// Activations of each layer until its backward is done, and what lives within a layer: the shape
// for which parts are made.
TEST(ArenaParts, ATrainingStepOfManyLayersIsCutIntoManyParts) {
  constexpr std::uint32_t kLayers = 16, kSaved = 10, kSteps = 2 * kLayers * kSaved;
  std::vector<Site> sites;
  Arena arena;
  GraphImage image = testing::image_of(std::vector<NodeImage>(kSteps, testing::fill(0)));
  const auto use = [&](std::uint32_t node, std::uint32_t unit) {
    sites.push_back({node, Operand::kDestination, 0, unit, 0});
  };
  for (std::uint32_t node = 0; node < kSteps; ++node) {
    if (node > 0) image.edges.push_back({node - 1, node, {}});
    const std::uint32_t mirror = kSteps - 1 - node;
    if (node < mirror) {  // saved: units of one to eleven times 4 MiB
      arena.units.push_back({0, 0, (1 + node * 7 % 11) << 22});
      use(node, node);
      if (node > 0) use(node, node - 1);
      continue;
    }
    arena.units.push_back({0, 0, (1 + node * 5 % 13) << 22});  // a gradient of another size
    use(node, mirror);
    use(node, node);
    use(node, node - 1);
  }
  const std::vector<UnitKind> kinds(arena.units.size(), UnitKind::kTemporary);
  auto plan = plan_arena(image, sites, arena.units, kinds);
  ASSERT_TRUE(plan.ok());
  arena.layout = plan->parts.arena;
  const ArenaParts parts = arena.cut(kLeastPartBytes);
  expect_every_promise(arena, parts, kLeastPartBytes);
  EXPECT_GE(parts.bytes.size(), 32u);
}

}  // namespace
}  // namespace anabranch::cuda
