// SPDX-License-Identifier: Apache-2.0
#include "anabranch/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <sstream>

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

TEST(Status, IsWrittenAsItsMessage) {
  std::ostringstream out;
  out << Status() << ", " << Status(StatusCode::kBusy, "launch: no");
  EXPECT_EQ(out.str(), "ok, launch: no [E0401]");
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

TEST(Result, AnswersItsValueOrAnother) {
  const Result<int> value = 3;
  const Result<int> error = Status(StatusCode::kBusy, "no");
  EXPECT_EQ(value.value_or(7), 3);
  EXPECT_EQ(error.value_or(7), 7);
  const Result<std::string> name = Status(StatusCode::kBusy, "no");
  EXPECT_EQ(name.value_or("none"), "none");
  Result<std::unique_ptr<int>> owner = std::make_unique<int>(5);
  const std::unique_ptr<int> moved = std::move(owner).value_or(nullptr);
  ASSERT_TRUE(moved);
  EXPECT_EQ(*moved, 5);
}

}  // namespace
}  // namespace anabranch
