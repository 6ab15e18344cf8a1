// SPDX-License-Identifier: Apache-2.0
#include "anabranch/record.h"

#include <gmock/gmock.h>

#include "base/inside.h"
#include "record/host/host_recording.h"
#include "record/record_testing.h"

// Sanitizers end the program at an allocation of this size unless they are told not to.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace anabranch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::must;
using testing::plan_of;
using testing::Regions;

Device device_of(std::uint32_t lanes) {
  HostOptions options;
  options.max_lanes = lanes;
  return Device::host(options);
}

std::int32_t do_nothing(const RegionCall&) { return 0; }

TEST(Record, NamesAStepWhoseRegionIsMissing) {
  ProgramBuilder builder;
  builder.compute(kAmbient, "here", {});
  Step step;
  step.name = "gelu";
  step.source = "model.py:88";
  builder.add_step(step);
  Regions regions;
  regions.add("here", do_nothing);
  const Result<Recording> result = record(plan_of(builder), device_of(1), regions.table());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), StatusCode::kRegionMissing);
  EXPECT_THAT(result.error().message(),
              AllOf(HasSubstr("step 1 'gelu' (model.py:88)"), HasSubstr("has 1 region.")));
}

TEST(Record, TreatsARegionWithoutFunctionAsMissing) {
  ProgramBuilder builder;
  builder.compute(kAmbient, "f", {});
  const Result<Recording> result = record(plan_of(builder), device_of(1), {{"f", {}}});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), StatusCode::kRegionMissing);
}

TEST(Record, CountsTheCallersThreadAndTheWorkers) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  builder.compute(kAmbient, "f", {});
  builder.compute(side, "f", {});
  Regions regions;
  regions.add("f", do_nothing);
  EXPECT_EQ(must(record(plan_of(builder), device_of(4), regions.table())).lane_count(), 2u);
  EXPECT_EQ(must(record(plan_of(builder), device_of(1), regions.table())).lane_count(), 1u);
}

TEST(Record, AlignsTheArenaToItsMostAlignedBuffer) {
  ProgramBuilder builder;
  const BufferId t = builder.add_buffer({"t", Role::kTemporary, 100, 4096});
  builder.compute(kAmbient, "f", {builder.write(t)});
  Regions regions;
  regions.add("f", do_nothing);
  const Recording recording = must(record(plan_of(builder), device_of(1), regions.table()));
  const void* address = detail::Inside::host(recording)->addresses().data()[0];
  ASSERT_NE(address, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 4096, 0u);
}

TEST(Record, RefusesAnArenaThatCannotBeAllocated) {
  ProgramBuilder builder;
  for (int i = 0; i < 2; ++i) {
    const BufferId t = builder.add_buffer({"t", Role::kTemporary, kMaxBufferBytes, 64});
    builder.compute(kAmbient, "f", {builder.write(t)});
  }
  Regions regions;
  regions.add("f", do_nothing);
  const Result<Recording> result = record(plan_of(builder), device_of(1), regions.table());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), StatusCode::kRecordFailed);
  EXPECT_THAT(result.error().message(), HasSubstr("281474976710656 bytes"));
}

}  // namespace
}  // namespace anabranch
