// SPDX-License-Identifier: Apache-2.0
#include "anabranch/program.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

namespace anabranch {
namespace {

TEST(Program, KeepsWhatTheBuilderWasGiven) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const StreamId users = builder.add_stream("A", StreamOrigin::kUserSynchronised, -2);
  const EventId event = builder.add_event("ready");
  const BufferId x = builder.add_buffer({"x", Role::kInput, 64, 64});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 64, 64});
  const StepId fill = builder.fill(kAmbient, builder.whole(y), 7);
  const StepId record = builder.record_event(kAmbient, event);
  const StepId wait = builder.wait_event(side, event);
  const StepId copy = builder.copy(side, builder.whole(y), builder.whole(x));
  const StepId compute = builder.compute(side, "double", {builder.read_write(y)});
  const StepId synchronize = builder.synchronize(side);
  const Result<Program> program = builder.build();
  ASSERT_TRUE(program.ok()) << program.error().message();

  EXPECT_EQ(program->streams()[0], "ambient");
  EXPECT_EQ(program->streams()[index_of(side)], "side");
  EXPECT_EQ(program->origins()[index_of(kAmbient)], StreamOrigin::kPlaced);
  EXPECT_EQ(program->origins()[index_of(side)], StreamOrigin::kPlaced);
  EXPECT_EQ(program->origins()[index_of(users)], StreamOrigin::kUserSynchronised);
  EXPECT_EQ(program->priorities()[index_of(side)], 0);
  EXPECT_EQ(program->priorities()[index_of(users)], -2);
  EXPECT_EQ(program->events()[index_of(event)], "ready");
  EXPECT_EQ(program->buffer(y).name, "y");
  EXPECT_EQ(program->steps().size(), 6u);
  EXPECT_EQ(program->step(fill).fill_byte, 7);
  EXPECT_EQ(program->step(record).event, event);
  EXPECT_EQ(program->step(wait).kind, StepKind::kWaitEvent);
  EXPECT_EQ(program->step(copy).accesses[0].view, builder.whole(y));
  EXPECT_EQ(program->step(compute).name, "double");
  EXPECT_EQ(program->step(compute).accesses[0].mode, AccessMode::kReadWrite);
  EXPECT_EQ(program->step(synchronize).stream, side);
}

TEST(Program, IsNotChangedByItsBuilderAfterwards) {
  ProgramBuilder builder;
  const BufferId x = builder.add_buffer({"x", Role::kInput, 64, 64});
  builder.compute(kAmbient, "first", {builder.read(x)});
  const Program program = *builder.build();
  builder.compute(kAmbient, "second", {builder.read(x)});
  EXPECT_EQ(program.steps().size(), 1u);
  EXPECT_EQ(builder.build()->steps().size(), 2u);
}

TEST(Program, SharesItsStepsWithItsCopies) {
  const Program program = *ProgramBuilder().build();
  const Program copy = program;
  EXPECT_EQ(copy.streams().data(), program.streams().data());
  static_assert(!std::is_default_constructible_v<Program>);
}

TEST(Program, WithoutStepsIsValid) {
  const Result<Program> program = ProgramBuilder().build();
  ASSERT_TRUE(program.ok());
  EXPECT_TRUE(program->steps().empty());
  EXPECT_EQ(program->streams().size(), 1u);
}

TEST(Program, BuilderIsLeftAsItWasByABuildThatFails) {
  ProgramBuilder builder;
  const BufferId x = builder.add_buffer({"x", Role::kTemporary, 64, 64});
  builder.compute(kAmbient, "use", {builder.read(x)});
  const std::string message = builder.build().error().message();
  EXPECT_EQ(builder.build().error().message(), message);
}

}  // namespace
}  // namespace anabranch
