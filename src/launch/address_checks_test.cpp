// SPDX-License-Identifier: Apache-2.0
#include "launch/address_checks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <vector>

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAreArray;
using Addresses = std::vector<std::uint64_t>;

constexpr std::uint64_t kTop = std::uint64_t{1} << 63;

// One by one, as it is meant.
Placed expected(const Addresses& given, const std::vector<SourceRule>& rules,
                const std::vector<std::uint32_t>& order) {
  Placed how = Placed::kRight;
  std::uint64_t end = 1;
  for (const std::uint32_t source : order) {
    if (given[source] < end || given[source] >= kTop) how = Placed::kInDisorder;
    end = given[source] + rules[source].bytes();
    if (end >= kTop) how = Placed::kInDisorder;
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i] >= kTop && how == Placed::kRight) how = Placed::kInDisorder;
    if ((given[i] & rules[i].mask()) != 0) return Placed::kMisplaced;
  }
  return how;
}

// Sources one behind the other, some of them then put where they may not be.
class AddressChecks : public ::testing::Test {
 protected:
  void place(std::size_t count) {
    given.clear(), rules.clear();
    std::uint64_t at = 512;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = pick(4096), mask = (std::uint64_t{1} << pick(10)) - 1;
      rules.emplace_back(bytes, mask);
      at = ((at + mask) & ~mask) + pick(3) * 512;
      given.push_back(at);
      at += bytes;
    }
  }
  void spoil(std::size_t source) {
    switch (pick(6)) {
      case 0:
        given[source] = 0;
        break;
      case 1:
        given[source] += 1;
        break;
      case 2:
        given[source] |= kTop;
        break;
      case 3:
        given[source] = kTop - 512;
        break;
      case 4:
        std::swap(given[source], given[pick(given.size())]);
        break;
      default:
        break;
    }
  }
  std::size_t pick(std::size_t below) { return random_() % below; }

  Addresses given;
  std::vector<SourceRule> rules;

 private:
  std::mt19937_64 random_{11};
};

TEST_F(AddressChecks, SayOfAnyAddressesWhatLookingAtEachWouldSay) {
  std::array<int, 3> found{};
  for (int round = 0; round < 20000; ++round) {
    place(pick(23));
    if (!given.empty() && pick(2) != 0) spoil(pick(given.size()));
    std::vector<std::uint32_t> order(given.size());
    std::iota(order.begin(), order.end(), 0u);
    Addresses to(given.size(), 1);
    const Placed how = take_in_turn(given, rules.data(), to.data());
    ASSERT_EQ(how, expected(given, rules, order)) << "round " << round;
    ASSERT_THAT(to, ElementsAreArray(given));
    ++found[static_cast<std::size_t>(how)];
  }
  EXPECT_THAT(found, ::testing::Each(::testing::Gt(1000)));
}

TEST_F(AddressChecks, GoByTheOrderTheyAreGivenWhichNeedNotNameAll) {
  std::array<int, 3> found{};
  for (int round = 0; round < 20000; ++round) {
    place(1 + pick(23));
    std::vector<std::uint32_t> order(given.size());
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(round)));
    Addresses placed(given.size());
    std::vector<SourceRule> rules_then(given.size(), SourceRule(0, 0));
    for (std::size_t i = 0; i < order.size(); ++i) {
      placed[order[i]] = given[i];
      rules_then[order[i]] = rules[i];
    }
    given = placed, rules = rules_then;
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(pick(order.size())));
    if (pick(2) != 0) spoil(pick(given.size()));
    Addresses to(given.size(), 1);
    const Placed how = take_in_order(given, rules.data(), order, to.data());
    ASSERT_EQ(how, expected(given, rules, order)) << "round " << round;
    ASSERT_THAT(to, ElementsAreArray(given));
    ++found[static_cast<std::size_t>(how)];
  }
  EXPECT_THAT(found, ::testing::Each(::testing::Gt(1000)));
}

}  // namespace
}  // namespace anabranch::cuda
