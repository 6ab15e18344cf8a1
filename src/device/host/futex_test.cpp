// SPDX-License-Identifier: Apache-2.0
#include "device/host/futex.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

namespace anabranch::host {
namespace {

constexpr std::uint64_t kNoSpin = 0;
constexpr std::uint64_t kSpin = 50'000;

TEST(Gate, ReachesEveryNumberUpToThePublishedOne) {
  Gate gate;
  EXPECT_TRUE(gate.reached(0));
  EXPECT_FALSE(gate.reached(1));
  gate.publish(5);
  EXPECT_TRUE(gate.reached(5));
  EXPECT_FALSE(gate.reached(6));
}

TEST(Gate, CountsOnBeyondTheWrapOfItsNumbers) {
  constexpr std::uint32_t kEnd = 1u << 31;
  Gate gate;
  for (const std::uint32_t number : {kEnd / 2 - 1, kEnd - 2}) gate.publish(number);
  EXPECT_TRUE(gate.reached(kEnd - 2));
  EXPECT_FALSE(gate.reached(kEnd + 1));
  gate.publish(kEnd + 1);
  EXPECT_TRUE(gate.reached(kEnd - 1));
  EXPECT_TRUE(gate.reached(kEnd + 1));
  EXPECT_FALSE(gate.reached(kEnd + 2));
}

// Two threads hand a plain number to and fro; each loses it if a wake-up is lost.
void play_ping_pong(std::uint64_t spin_ns, std::uint32_t rounds) {
  Gate ping, pong;
  std::uint32_t ball = 0;
  std::jthread other([&] {
    for (std::uint32_t round = 1; round <= rounds; ++round) {
      ping.wait(round, spin_ns);
      ++ball;
      pong.publish(round);
    }
  });
  for (std::uint32_t round = 1; round <= rounds; ++round) {
    ++ball;
    ping.publish(round);
    pong.wait(round, spin_ns);
    ASSERT_EQ(ball, 2 * round);
  }
}

TEST(Gate, LosesNoWakeUpWhenWaitersSleepAtOnce) { play_ping_pong(kNoSpin, 5'000); }
TEST(Gate, LosesNoWakeUpWhenWaitersSpinFirst) { play_ping_pong(kSpin, 5'000); }
TEST(Gate, LosesNoWakeUpBetweenSpinningAndSleeping) { play_ping_pong(200, 5'000); }

TEST(Gate, WakesAllWhoSleep) {
  Gate gate;
  std::array<std::uint32_t, 4> seen{};
  std::uint32_t message = 0;
  {
    std::vector<std::jthread> sleepers;
    for (std::uint32_t& mine : seen) {
      sleepers.emplace_back([&gate, &message, &mine] {
        gate.wait(1, kNoSpin);
        mine = message;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    message = 42;
    gate.publish(1);
  }
  for (const std::uint32_t mine : seen) EXPECT_EQ(mine, 42u);
}

}  // namespace
}  // namespace anabranch::host
