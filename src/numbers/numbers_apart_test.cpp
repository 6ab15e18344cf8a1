// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "anabranch/experimental/number_program.h"
#include "numbers/trace_testing.h"

namespace anabranch::numbers {
namespace {

using ::testing::HasSubstr;
using namespace testing;

TEST(NumbersApart, EqualNumbersGetOthersThatAreNotNearTheirs) {
  const std::vector<double> now{1e-3, 1e-3, 0.5}, before{0.9e-3, 0.9e-3, 0.5};
  Trace trace(now);
  decay(trace);
  const auto other = find_numbers_apart(trace.entries, now, before);
  ASSERT_TRUE(other.ok());
  EXPECT_NE((*other)[0], (*other)[1]);
  for (std::size_t i = 0; i < now.size(); ++i) {
    EXPECT_GT(std::abs(now[i] - (*other)[i]), 0.003 * now[i]);
    EXPECT_GT((*other)[i], 0.49 * before[i]);
  }
}

TEST(NumbersApart, ANumberWhoseChangeLeadsAnotherWayHasNone) {
  const std::vector<double> now{0.5};
  Trace trace(now);
  trace.add(Operator::kEqual, of(0), constant(0.5), 1);
  const auto other = find_numbers_apart(trace.entries, now, now);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message(), HasSubstr("another way"));
}

TEST(NumbersApart, TheSameNumbersAreFoundEachTime) {
  const std::vector<double> now{0.1, 0.2};
  Trace trace(now);
  decay(trace);
  EXPECT_EQ(*find_numbers_apart(trace.entries, now, now),
            *find_numbers_apart(trace.entries, now, now));
}

}  // namespace
}  // namespace anabranch::numbers
