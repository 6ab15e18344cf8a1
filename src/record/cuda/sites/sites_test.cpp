// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/sites.h"

#include <gmock/gmock.h>

#include <cstring>

#include "device/sim/sim_testing.h"
#include "record/cuda/image/capture_memory.h"
#include "record/cuda/image/graph_image_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::AllOf;
using testing::copy;
using ::testing::ElementsAre;
using testing::fill;
using ::testing::HasSubstr;
using testing::image_of;
using testing::kernel;

// Unit 0 at 0x10000 and 0x90000, unit 1 at 0x20000 and 0x80000, 4 KiB each.
UnitTable two_units() {
  return *UnitTable::make(std::vector<CaptureAllocation>{{0x10000, 4096}, {0x20000, 4096}},
                          std::vector<CaptureAllocation>{{0x90000, 4096}, {0x80000, 4096}});
}

std::vector<FoundSite> sites_of(const GraphImage& first, const GraphImage& second) {
  auto found = find_sites(first, second, two_units());
  EXPECT_TRUE(found.ok()) << (found.ok() ? "" : found.error().message());
  if (!found.ok()) return {};
  EXPECT_EQ(found->unsure.size(), 0u) << found->first_unsure.message();
  return found->sites;
}

std::string doubt(const GraphImage& first, const GraphImage& second) {
  const auto found = find_sites(first, second, two_units());
  EXPECT_TRUE(found.ok());
  EXPECT_EQ(found->unsure.size(), 1u);
  return found->first_unsure.message();
}

TEST(Sites, AWordInOneUnitAtOneOffsetInBothCapturesIsASite) {
  EXPECT_THAT(sites_of(image_of({kernel("k", {0x10000, 7, 0x20010})}),
                       image_of({kernel("k", {0x90000, 7, 0x80010})})),
              ElementsAre(FoundSite{0, Operand::kParam, 0, 0, 0},
                          FoundSite{0, Operand::kParam, 16, 1, 16}));
}

// Half an old address, left between members, and a number beside it: a word that looks like an
// address in both captures unless these differ in both halves.
TEST(Sites, ANumberBesideHalfAnAddressIsNoSite) {
  const std::uint64_t first = 0x3'02600000, second = 0x13'02a00000;
  const auto units = UnitTable::make(std::vector<CaptureAllocation>{{first, 4096}},
                                     std::vector<CaptureAllocation>{{second, 4096}});
  ASSERT_TRUE(units.ok());
  const auto half = [](std::uint64_t low, std::uint64_t high) {
    return (high >> 32 << 32) | (low & 0xFFFFFFFF);
  };
  for (const std::uint64_t number : {first, second}) {
    for (const auto& [a, b] : {std::pair(half(first, number), half(second, number)),
                               std::pair(half(number, first), half(number, second))}) {
      const auto found = find_sites(image_of({kernel("k", {a, first})}),
                                    image_of({kernel("k", {b, second})}), *units);
      ASSERT_TRUE(found.ok());
      EXPECT_EQ(found->unsure.size(), 1u);
      EXPECT_THAT(found->sites, ElementsAre(FoundSite{0, Operand::kParam, 8, 0, 0}));
    }
  }
}

class SitesInCaptureMemory : public sim::SimTest {};

// Flags or a number in a word of whose other bytes a kernel reads none: an old address has been
// left there. With another address in its place they would be others.
TEST_F(SitesInCaptureMemory, FlagsBesideWhatIsLeftOfAnAddressAreNoSite) {
  const auto memory = *CaptureMemory::make(*d);
  std::vector<CaptureAllocation> captures[2];
  for (std::vector<CaptureAllocation>& capture : captures) {
    memory->begin_capture();
    for (const std::uint64_t bytes : {512, 3 << 20, 64}) {
      capture.push_back({*memory->allocate(bytes), bytes});
    }
  }
  const auto units = UnitTable::make(captures[0], captures[1]);
  ASSERT_TRUE(units.ok());
  for (std::size_t unit = 0; unit < units->units().size(); ++unit) {
    const std::uint64_t first = captures[0][unit].address, second = captures[1][unit].address;
    for (const int bytes : {2, 3, 4, 5}) {
      const std::uint64_t own = (std::uint64_t{1} << 8 * bytes) - 1;
      for (const std::uint64_t flags : {std::uint64_t{0}, std::uint64_t{1}, first, second}) {
        const auto word = [&](std::uint64_t old) { return (old & ~own) | (flags & own); };
        const auto found = find_sites(image_of({kernel("k", {word(first), first})}),
                                      image_of({kernel("k", {word(second), second})}), *units);
        ASSERT_TRUE(found.ok());
        EXPECT_THAT(found->sites, ElementsAre(FoundSite{0, Operand::kParam, 8,
                                                        static_cast<std::uint32_t>(unit), 0}))
            << bytes << " bytes of " << flags;
      }
    }
  }
}

TEST(Sites, OperandsOfCopiesAndFillsAreSites) {
  EXPECT_THAT(sites_of(image_of({fill(0x10000), copy(0x10008, 0x20000)}),
                       image_of({fill(0x90000), copy(0x90008, 0x80000)})),
              ElementsAre(FoundSite{0, Operand::kDestination, 0, 0, 0},
                          FoundSite{1, Operand::kSource, 0, 1, 0},
                          FoundSite{1, Operand::kDestination, 0, 0, 8}));
}

TEST(Sites, PinnedMemoryOfACopyIsASiteLikeAnyOther) {
  auto first = image_of({copy(0x10000, 0)}), second = image_of({copy(0x90000, 0)});
  for (auto [image, address] : {std::pair(&first, 0x20000ul), std::pair(&second, 0x80000ul)}) {
    image->nodes[0].copy.src_memory_type = CuMemoryType::kHost;
    image->nodes[0].copy.src_host = reinterpret_cast<const void*>(address);
  }
  EXPECT_THAT(sites_of(first, second), ElementsAre(FoundSite{0, Operand::kSource, 0, 1, 0},
                                                   FoundSite{0, Operand::kDestination, 0, 0, 0}));
}

// From the host's memory at `address`, which is known to hold these words if there are any.
GraphImage copy_of(std::uint64_t address, const std::vector<std::uint64_t>& words) {
  NodeImage node = copy(0x50000, 0);
  node.copy.src_memory_type = CuMemoryType::kHost;
  node.copy.src_host = reinterpret_cast<const void*>(address);
  const auto* const bytes = reinterpret_cast<const std::byte*>(words.data());
  node.source_bytes.assign(bytes, bytes + words.size() * sizeof words[0]);
  return image_of({node});
}

TEST(Sites, WordsThatACopyTakesFromPinnedMemoryAreSites) {
  const auto found = find_sites(copy_of(0x7000, {0x10000, 5, 0x20020}),
                                copy_of(0x8000, {0x90000, 5, 0x80020}), two_units());
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(found->tables, ElementsAre(0));
  EXPECT_THAT(found->sites, ElementsAre(FoundSite{0, Operand::kTable, 0, 0, 0},
                                        FoundSite{0, Operand::kTable, 16, 1, 0x20}));
}

TEST(Sites, PinnedMemoryAtOneAddressIsATableOnlyIfItHoldsSomethingElse) {
  const auto tables = [](std::uint64_t in_second) {
    return find_sites(copy_of(0x7000, {0x10000}), copy_of(0x7000, {in_second}), two_units())
        ->tables.size();
  };
  EXPECT_EQ(tables(0x10000), 0u);
  EXPECT_EQ(tables(0x90000), 1u);
}

TEST(Sites, HostMemoryOfWhichNothingIsKnownMustStayWhereItIs) {
  EXPECT_TRUE(find_sites(copy_of(0x7000, {}), copy_of(0x7000, {}), two_units()).ok());
  const auto found = find_sites(copy_of(0x7000, {}), copy_of(0x8000, {}), two_units());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), StatusCode::kCapturesDiffer);
  EXPECT_THAT(found.error().message(),
              AllOf(HasSubstr("copy 0"), HasSubstr("0x7000 and 0x8000"),
                    HasSubstr("only if it is pinned, in one piece and at most 16 MiB")));
}

TEST(Sites, WordsInsideAStructPassedByValueAreFound) {
  auto first = image_of({kernel("k", {1, 0x10020, 3})});
  auto second = image_of({kernel("k", {1, 0x90020, 3})});
  for (GraphImage* image : {&first, &second}) image->nodes[0].kernel.fields = {{0, 24}};
  EXPECT_THAT(sites_of(first, second), ElementsAre(FoundSite{0, Operand::kParam, 8, 0, 0x20}));
}

// A tensor map has 16 words; smaller structs hold none.
TEST(Sites, WhereATensorMapMayLieAnAddressIsRefusedIfMapsAreOpaque) {
  const auto with_words = [](std::size_t count, std::uint64_t address) {
    NodeImage node = kernel("k", {});
    node.kernel.params.resize(8 * count);
    std::memcpy(node.kernel.params.data() + 8, &address, sizeof address);
    node.kernel.fields = {{0, static_cast<std::uint32_t>(8 * count)}};
    return image_of({node});
  };
  const auto found = [&](std::size_t count, const std::string& why) {
    return find_sites(with_words(count, 0x10000), with_words(count, 0x90000), two_units(), why);
  };
  const FoundSite site{0, Operand::kParam, 8, 0, 0};
  EXPECT_THAT(found(16, "")->sites, ElementsAre(site));
  EXPECT_THAT(found(15, "they differ")->sites, ElementsAre(site));
  const auto refused = found(16, "they differ");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), StatusCode::kNotRecordable);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("'k'"), HasSubstr("since they differ")));
}

TEST(Sites, EqualWordsAreLeftAloneWhateverTheyLookLike) {
  const auto same = image_of({kernel("k", {0x10000, 0x7f0000000000, 0})});
  EXPECT_TRUE(sites_of(same, same).empty());
}

TEST(Sites, AWordThatDiffersAndIsNoAddressIsInDoubtByName) {
  EXPECT_THAT(doubt(image_of({fill(0x10000), kernel("scale", {0x10000, 0x3f800000})}),
                    image_of({fill(0x90000), kernel("scale", {0x90000, 0x40000000})})),
              AllOf(HasSubstr("kernel 1 'scale'"), HasSubstr("byte 8"),
                    HasSubstr("(0x3f800000, 0x40000000)")));
}

TEST(Sites, AWordInOtherUnitsOrAtOtherOffsetsIsInDoubt) {
  doubt(image_of({kernel("k", {0x10000})}), image_of({kernel("k", {0x80000})}));
  doubt(image_of({kernel("k", {0x10000})}), image_of({kernel("k", {0x90008})}));
  doubt(image_of({kernel("k", {0x10000})}), image_of({kernel("k", {0x70000})}));
}

TEST(Sites, AnOperandOfACopyThatDiffersAndIsNoAddressIsRefused) {
  const auto found = find_sites(image_of({copy(0x10000, 0x30000)}),
                                image_of({copy(0x90000, 0x40000)}), two_units());
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.error().message(), HasSubstr("(0x30000, 0x40000)"));
}

TEST(Sites, BytesTooFewForAnAddressThatDifferAreInDoubt) {
  auto first = image_of({kernel("k", {0x10000})}), second = image_of({kernel("k", {0x10001})});
  for (GraphImage* image : {&first, &second}) image->nodes[0].kernel.fields = {{0, 4}};
  EXPECT_THAT(doubt(first, second), HasSubstr("bytes too few for an address"));
}

}  // namespace
}  // namespace anabranch::cuda
