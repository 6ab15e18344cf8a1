// SPDX-License-Identifier: Apache-2.0
#include "plan/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace anabranch {
namespace {

TEST(Order, IsThatOfTheProgram) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId x = builder.add_buffer({"x", Role::kInput, 8, 8});
  const StepId first = builder.compute(side, "late", {builder.read(x)});
  const StepId second = builder.compute(kAmbient, "soon", {builder.read(x)});
  EXPECT_THAT(make_order(*builder.build()), testing::ElementsAre(first, second));
}

TEST(Order, OfAnEmptyProgramIsEmpty) {
  EXPECT_THAT(make_order(*ProgramBuilder().build()), testing::IsEmpty());
}

}  // namespace
}  // namespace anabranch
