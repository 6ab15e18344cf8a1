// SPDX-License-Identifier: Apache-2.0
#include "base/event_ring.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace anabranch {
namespace {

TraceEvent event_of_step(std::uint32_t step) {
  TraceEvent event;
  event.step = step;
  return event;
}

std::vector<std::uint32_t> steps_in(const EventRing& ring) {
  std::vector<std::uint32_t> steps;
  for (const TraceEvent& event : ring.events()) steps.push_back(event.step);
  return steps;
}

TEST(EventRing, KeepsTheOldestAndCountsWhatItDrops) {
  EventRing ring(3);
  for (std::uint32_t step = 0; step < 5; ++step) ring.write(event_of_step(step));
  EXPECT_THAT(steps_in(ring), testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(ring.dropped(), 2u);
}

TEST(EventRing, IsEmptyAndWritableAfterClear) {
  EventRing ring(2);
  for (std::uint32_t step = 0; step < 5; ++step) ring.write(event_of_step(step));
  ring.clear();
  EXPECT_TRUE(ring.events().empty());
  EXPECT_EQ(ring.dropped(), 0u);
  ring.write(event_of_step(7));
  EXPECT_THAT(steps_in(ring), testing::ElementsAre(7));
}

TEST(EventRing, OfCapacityZeroOnlyCounts) {
  EventRing ring(0);
  ring.write(event_of_step(1));
  EXPECT_TRUE(ring.events().empty());
  EXPECT_EQ(ring.dropped(), 1u);
}

TEST(EventRing, KeepsEveryEventOfSeveralWriters) {
  constexpr std::uint32_t kWriters = 4, kEvents = 1000;
  EventRing ring(kWriters * kEvents);
  {
    std::vector<std::jthread> writers;
    for (std::uint32_t writer = 0; writer < kWriters; ++writer) {
      writers.emplace_back([&ring, writer] {
        for (std::uint32_t i = 0; i < kEvents; ++i) ring.write(event_of_step(writer * kEvents + i));
      });
    }
  }
  std::vector<std::uint32_t> steps = steps_in(ring);
  std::sort(steps.begin(), steps.end());
  ASSERT_EQ(steps.size(), kWriters * kEvents);
  for (std::uint32_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], i);
}

}  // namespace
}  // namespace anabranch
