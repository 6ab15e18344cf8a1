// SPDX-License-Identifier: Apache-2.0
#include "anabranch/status.h"

#include <gtest/gtest.h>

namespace anabranch {
namespace {

TEST(Status, EndsItsMessageWithTheCode) {
  const Status status(StatusCode::kBusy, "launch: the recording is running");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "launch: the recording is running [E0401]");
}

TEST(Status, IsOkByDefault) {
  EXPECT_TRUE(Status().ok());
  EXPECT_TRUE(Status(StatusCode::kOk, "unused").message().empty());
}

TEST(Status, EveryCodeHasAMeaning) {
#define ANABRANCH_CODE(name, number, meaning) EXPECT_EQ(code_meaning(StatusCode::name), meaning);
#include "anabranch/codes.inc"
#undef ANABRANCH_CODE
}

TEST(Result, HoldsAValueOrAnError) {
  Result<int> value = 3;
  Result<int> error = Status(StatusCode::kBusy, "no");
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, 3);
  ASSERT_FALSE(error.ok());
  EXPECT_EQ(error.error().code(), StatusCode::kBusy);
}

}  // namespace
}  // namespace anabranch
