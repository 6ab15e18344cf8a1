// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/check_captured.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>

#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::AllOf;
using testing::Arrow;
using ::testing::HasSubstr;
using testing::image_of;
using enum CapturedUse::Extent;

constexpr std::uint64_t kUnitBytes = 16;
constexpr bool kReads = false, kWrites = true;

Bytes bytes_between(std::uint64_t begin, std::uint64_t end) {
  return make_bytes({.offset_bytes = begin, .item_bytes = end - begin});
}

// Kernels, by what each does with one unit.
struct Case {
  GraphImage image;
  CapturedUses uses;

  Case(std::vector<CapturedUse> of_nodes, std::initializer_list<Arrow> arrows) {
    std::vector<NodeImage> nodes;
    for (const CapturedUse& use : of_nodes) {
      while (nodes.size() <= use.node) nodes.push_back(testing::kernel("k", {}));
    }
    image = image_of(std::move(nodes), arrows);
    uses = {std::move(of_nodes), {{kUnitBytes, false}, {kUnitBytes, true}}};
  }
  Status check() const { return check_captured(image, uses); }
};
constexpr std::uint32_t kGiven = 0, kFresh = 1;  // units

bool is_refused(std::vector<CapturedUse> uses, std::initializer_list<Arrow> arrows = {}) {
  return Case(std::move(uses), arrows).check().code() == StatusCode::kRace;
}

TEST(CheckCaptured, TwoCopiesOfOneByteAreRefusedWithBothNamedAndTheRemedy) {
  const Case step({{0, kGiven, kWrites, kBytes, bytes_between(0, 8)},
                   {1, kGiven, kReads, kBytes, bytes_between(7, 9)}},
                  {});
  EXPECT_EQ(step.check().code(), StatusCode::kRace);
  EXPECT_THAT(step.check().message(),
              AllOf(HasSubstr("kernel 0 'k' writes what kernel 1 'k' reads"),
                    HasSubstr("no path from kernel 0 'k' to kernel 1 'k'"),
                    HasSubstr("wait_stream, or an event")));
}

TEST(CheckCaptured, WhatAPathOrdersIsNotRefused) {
  const CapturedUse first{0, kGiven, kWrites, kBytes, bytes_between(0, 8)};
  const CapturedUse last{2, kGiven, kWrites, kBytes, bytes_between(0, 8)};
  const CapturedUse between{1, kFresh, kWrites, kUnknown};
  EXPECT_FALSE(is_refused({first, between, last}, {{0, 2}}));
  EXPECT_FALSE(is_refused({first, between, last}, {{0, 1}, {1, 2}}));
  EXPECT_FALSE(is_refused({first, between, last}, {{0, 2, true}}));
  EXPECT_TRUE(is_refused({first, between, last}, {{0, 1}}));
}

TEST(CheckCaptured, CopiesOfDifferentBytesNeedNoOrder) {
  EXPECT_FALSE(is_refused({{0, kGiven, kWrites, kBytes, bytes_between(0, 8)},
                           {1, kGiven, kWrites, kBytes, bytes_between(8, 16)}}));
  EXPECT_FALSE(is_refused({{0, kGiven, kReads, kBytes, bytes_between(0, 8)},
                           {1, kGiven, kReads, kBytes, bytes_between(0, 8)}}));
}

TEST(CheckCaptured, RowsThatLieInEachOthersGapsNeedNoOrder) {
  const auto rows = [](std::uint64_t begin) {
    return make_bytes({.offset_bytes = begin, .item_bytes = 4, .dims = {{2, 8}}});
  };
  EXPECT_FALSE(
      is_refused({{0, kGiven, kWrites, kBytes, rows(0)}, {1, kGiven, kWrites, kBytes, rows(4)}}));
  EXPECT_TRUE(
      is_refused({{0, kGiven, kWrites, kBytes, rows(0)}, {1, kGiven, kWrites, kBytes, rows(3)}}));
}

TEST(CheckCaptured, AKernelMeetsWhateverGoesOverAllOfItsMemory) {
  const CapturedUse all{0, kGiven, kWrites, kBytes, bytes_between(0, 16)};
  const CapturedUse part{0, kGiven, kWrites, kBytes, bytes_between(0, 15)};
  EXPECT_TRUE(is_refused({all, {1, kGiven, kReads, kSome}}));
  EXPECT_TRUE(is_refused({all, {1, kGiven, kWrites, kSome}}));
  EXPECT_FALSE(is_refused({part, {1, kGiven, kReads, kSome}}));
  const CapturedUse read{0, kGiven, kReads, kBytes, bytes_between(0, 16)};
  EXPECT_TRUE(is_refused({read, {1, kGiven, kWrites, kSome}}));
  EXPECT_FALSE(is_refused({read, {1, kGiven, kReads, kSome}}));
}

TEST(CheckCaptured, WhatIsNotCertainIsNotRefused) {
  const CapturedUse all{0, kGiven, kWrites, kBytes, bytes_between(0, 16)};
  EXPECT_FALSE(is_refused({all, {1, kGiven, kWrites, kMaybe}}));
  EXPECT_FALSE(is_refused({all, {1, kGiven, kWrites, kUnknown}}));
  // Two kernels may use different bytes: two requests' rows of one cache.
  EXPECT_FALSE(is_refused({{0, kGiven, kWrites, kSome}, {1, kGiven, kWrites, kSome}}));
  EXPECT_FALSE(is_refused({{0, kGiven, kWrites, kSome}, {1, kGiven, kReads, kSome}}));
}

TEST(CheckCaptured, AReaderOfFreshMemoryComesBehindSomebodyWhoWritesIt) {
  for (const auto writer : {kSome, kMaybe}) {
    EXPECT_TRUE(is_refused({{0, kFresh, kWrites, writer}, {1, kFresh, kReads, kSome}}));
    EXPECT_FALSE(is_refused({{0, kFresh, kWrites, writer}, {1, kFresh, kReads, kSome}}, {{0, 1}}));
  }
  EXPECT_TRUE(
      is_refused({{0, kFresh, kWrites, kSome}, {1, kFresh, kReads, kBytes, bytes_between(0, 1)}}));
}

TEST(CheckCaptured, AReaderOfFreshMemoryMayHaveItFromAnyoneBeforeIt) {
  const CapturedUse reader{2, kFresh, kReads, kSome};
  const CapturedUse beside{1, kFresh, kWrites, kSome};
  EXPECT_FALSE(is_refused({{0, kFresh, kWrites, kUnknown}, beside, reader}, {{0, 2}}));
  EXPECT_TRUE(is_refused({{0, kFresh, kWrites, kUnknown}, beside, reader}));
  EXPECT_TRUE(is_refused({{0, kFresh, kReads, kSome}, beside, reader}, {{0, 2}}));
}

TEST(CheckCaptured, AReaderOfFreshMemoryIsNotRefusedForWhatNobodyKnows) {
  const CapturedUse reader{1, kFresh, kReads, kSome};
  EXPECT_FALSE(is_refused({{0, kFresh, kWrites, kUnknown}, reader}));
  EXPECT_FALSE(is_refused({{0, kFresh, kReads, kSome}, {1, kFresh, kWrites, kSome}}));
  // What adds to its memory may be the first that writes it.
  EXPECT_FALSE(is_refused({{0, kFresh, kWrites, kSome}, reader, {1, kFresh, kWrites, kSome}}));
}

// Of copies and fills without notes.
CapturedUses uses_of(const GraphImage& image, std::vector<FoundSite> sites,
                     std::vector<std::uint32_t> tables = {}) {
  const std::vector<CaptureAllocation> first{{4096, 256}, {8192, 256}};
  const std::vector<CaptureAllocation> second{{12288, 256}, {16384, 256}};
  const auto units = UnitTable::make(first, second);
  const NodeAccesses accesses =
      find_accesses(first, *units, false, nullptr, image, std::move(sites));
  return find_captured_uses(image, tables, accesses, *units, false, nullptr);
}

TEST(CheckCaptured, ACopyAndAFillSayWhichBytesTheyTouch) {
  NodeImage copy = testing::copy(0, 0);
  copy.copy.src_x_bytes = 4;
  copy.copy.height = 2;
  copy.copy.src_pitch = 32;
  copy.copy.dst_pitch = 64;
  const auto image = image_of({copy, testing::fill(0)});
  const auto found = uses_of(image, {{0, Operand::kSource, 0, 0, 8},
                                     {0, Operand::kDestination, 0, 1, 0},
                                     {1, Operand::kDestination, 0, 0, 100}});
  ASSERT_EQ(found.uses.size(), 3u);
  const auto rows = [](std::uint64_t begin, std::uint64_t width, std::int64_t pitch) {
    return make_bytes({.offset_bytes = begin, .item_bytes = width, .dims = {{2, pitch}}});
  };
  EXPECT_EQ(found.uses[0].bytes, rows(12, 16, 32));
  EXPECT_FALSE(found.uses[0].writes);
  EXPECT_EQ(found.uses[1].bytes, rows(0, 16, 64));
  EXPECT_TRUE(found.uses[1].writes);
  EXPECT_EQ(found.uses[2].bytes, bytes_between(100, 164));
  for (const CapturedUse& use : found.uses) EXPECT_EQ(use.extent, kBytes);
  for (const CapturedUnit& unit : found.units) EXPECT_FALSE(unit.is_fresh);
}

TEST(CheckCaptured, TwoCopiesOfOneByteOfTheHostAreRefused) {
  constexpr std::uint64_t kHost = 0x7000'0000'0000;  // behind all that is the device's
  const auto image = [&](std::uint64_t read, std::initializer_list<Arrow> arrows = {}) {
    return image_of({testing::from_host(4096, read), testing::to_host(kHost, 8192)}, arrows);
  };
  const std::vector<FoundSite> sites{{0, Operand::kDestination, 0, 0, 0},
                                     {1, Operand::kSource, 0, 1, 0}};
  const auto is_refused_at = [&](const GraphImage& step, std::vector<std::uint32_t> tables = {}) {
    return check_captured(step, uses_of(step, sites, std::move(tables))).code() ==
           StatusCode::kRace;
  };
  EXPECT_TRUE(is_refused_at(image(kHost + 15)));
  EXPECT_FALSE(is_refused_at(image(kHost + 16)));
  EXPECT_FALSE(is_refused_at(image(kHost + 15, {{0, 1}})));
  EXPECT_FALSE(is_refused_at(image(kHost + 15), {0}));
  const auto readers = image_of({testing::from_host(4096, kHost), testing::from_host(8192, kHost)});
  EXPECT_FALSE(check_captured(readers, uses_of(readers, {{0, Operand::kDestination, 0, 0, 0},
                                                         {1, Operand::kDestination, 0, 1, 0}}))
                   .code() == StatusCode::kRace);
}

TEST(CheckCaptured, MemoryOfTheHostThatIsAUnitCountsAsThat) {
  const std::uint64_t host = 4096;
  const auto image = image_of({testing::from_host(8192, host), testing::to_host(host, 8192)});
  const auto found = uses_of(image, {{0, Operand::kSource, 0, 0, 0},
                                     {0, Operand::kDestination, 0, 1, 0},
                                     {1, Operand::kSource, 0, 1, 64},
                                     {1, Operand::kDestination, 0, 0, 64}});
  EXPECT_EQ(found.uses.size(), 4u);
  EXPECT_FALSE(check_captured(image, found).code() == StatusCode::kRace);
}

TEST(CheckCaptured, OfAKernelWithoutANoteAndOfATableNothingIsCertain) {
  const auto image = image_of({testing::kernel("k", {0}), testing::copy(0, 0)});
  const auto found = uses_of(image, {{0, Operand::kParam, 0, 0, 0}, {1, Operand::kTable, 0, 1, 0}});
  for (const CapturedUse& use : found.uses) EXPECT_EQ(use.extent, kUnknown);
}

// By brute force: who comes before whom, and who surely touches which bytes.
struct Oracle {
  const Case& step;
  std::vector<std::vector<bool>> before;

  explicit Oracle(const Case& of) : step(of) {
    const std::size_t nodes = of.image.nodes.size();
    before.assign(nodes, std::vector<bool>(nodes));
    for (const EdgeImage& edge : of.image.edges) before[edge.from][edge.to] = true;
    for (std::size_t k = 0; k < nodes; ++k) {
      for (std::size_t i = 0; i < nodes; ++i) {
        for (std::size_t j = 0; before[i][k] && j < nodes; ++j) {
          if (before[k][j]) before[i][j] = true;
        }
      }
    }
  }
  static bool touches(const CapturedUse& use, std::int64_t byte) {
    if (use.extent != kBytes || byte < use.bytes.begin || byte >= use.bytes.end) return false;
    const auto at = byte - use.bytes.begin;
    return use.bytes.repeats.empty() || at % use.bytes.repeats[0].stride < use.bytes.run;
  }
  // Whatever the bytes are that a kernel uses.
  static bool surely_meet(const CapturedUse& a, const CapturedUse& b) {
    if (a.extent == kSome && b.extent == kBytes) return surely_meet(b, a);
    std::uint64_t shared = 0, touched = 0;
    for (std::int64_t byte = 0; byte < std::int64_t{kUnitBytes}; ++byte) {
      shared += touches(a, byte) && touches(b, byte);
      touched += touches(a, byte);
    }
    return shared != 0 || (b.extent == kSome && touched == kUnitBytes);
  }
  bool lacks_an_edge(const CapturedUse& a, const CapturedUse& b) const {
    if (a.unit != b.unit || a.node >= b.node || before[a.node][b.node]) return false;
    if ((a.writes || b.writes) && surely_meet(a, b)) return true;
    const bool may_read_from =
        a.unit == kFresh && a.writes && a.extent != kUnknown && !b.writes && b.extent != kUnknown;
    return may_read_from &&
           std::none_of(step.uses.uses.begin(), step.uses.uses.end(),
                        [&](const CapturedUse& other) {
                          return other.unit == kFresh && other.writes &&
                                 (other.node == b.node || before[other.node][b.node]);
                        });
  }
  bool has_race() const {
    for (const CapturedUse& a : step.uses.uses) {
      for (const CapturedUse& b : step.uses.uses) {
        if (lacks_an_edge(a, b)) return true;
      }
    }
    return false;
  }
};

Case random_case(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t end) { return static_cast<std::uint32_t>(random() % end); };
  const std::uint32_t nodes = 3 + below(8);
  std::vector<CapturedUse> uses;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    for (std::uint32_t i = 0; i < 1 + below(2); ++i) {
      const auto extent = std::array{kBytes, kSome, kMaybe, kUnknown}[below(4)];
      CapturedUse use{node, below(2), extent >= kMaybe || below(2) == 0, extent};
      if (extent == kBytes) {
        const std::uint64_t begin = below(3) == 0 ? 0 : below(12);
        use.bytes =
            below(3) == 0
                ? make_bytes({.offset_bytes = begin % 4,
                              .item_bytes = 1 + below(3),
                              .dims = {{1 + below(3), 4}}})
                : bytes_between(begin, begin == 0 && below(2) == 0 ? kUnitBytes : begin + below(5));
      }
      uses.push_back(use);
    }
  }
  Case made(std::move(uses), {});
  const std::uint32_t once_in = 1 + below(4);
  for (std::uint32_t to = 1; to < nodes; ++to) {
    for (std::uint32_t from = 0; from < to; ++from) {
      if (below(once_in) == 0 && below(nodes) < 5) made.image.edges.push_back({from, to, {}});
    }
  }
  return made;
}

TEST(CheckCaptured, WhetherAnEdgeIsMissingAgreesWithBruteForce) {
  std::uint32_t refused = 0;
  constexpr std::uint32_t kSeeds = 2000;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Case step = random_case(seed);
    const bool is_expected = Oracle(step).has_race();
    ASSERT_EQ(step.check().code() == StatusCode::kRace, is_expected)
        << "seed " << seed << ": " << step.check().message();
    refused += is_expected;
  }
  EXPECT_GT(refused, kSeeds / 10);
  EXPECT_LT(refused, kSeeds * 9 / 10);
}

}  // namespace
}  // namespace anabranch::cuda
