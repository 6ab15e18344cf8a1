// SPDX-License-Identifier: Apache-2.0
#include "launch/address_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace anabranch::cuda {
namespace {

TEST(AddressOrder, IsThatOfAStableSort) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2'000; ++round) {
    // From all alike to all 64 bits in use.
    const std::uint64_t mask = random() >> random() % 64 << random() % 64;
    const std::uint64_t common = random() & ~mask;
    std::vector<std::uint64_t> addresses(random() % 80);
    for (auto& address : addresses) address = (random() & mask) | common;
    std::vector<std::uint32_t> order(addresses.size()), spare(order.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    order.resize(order.size() - order.size() / 4);  // not all slots have bytes
    spare.resize(order.size());
    auto expected = order;
    std::stable_sort(expected.begin(), expected.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return addresses[a] < addresses[b]; });
    sort_by_address(addresses, order, spare);
    ASSERT_EQ(order, expected) << "round " << round;
  }
}

}  // namespace
}  // namespace anabranch::cuda
