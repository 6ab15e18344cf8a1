// SPDX-License-Identifier: Apache-2.0
#include "program/check_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

namespace anabranch {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::min();
constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();

// A builder with one buffer of each role.
struct Draft {
  ProgramBuilder builder;
  BufferId input = builder.add_buffer({"in", Role::kInput, 64, 64});
  BufferId output = builder.add_buffer({"out", Role::kOutput, 64, 64});
  BufferId constant = builder.add_buffer({"weight", Role::kConstant, 64, 64});
  BufferId temporary = builder.add_buffer({"temp", Role::kTemporary, 64, 64});
  EventId event = builder.add_event("ready");

  void use(View view, AccessMode mode = AccessMode::kRead) {
    builder.compute(kAmbient, "use", {{mode, std::move(view)}});
  }
  View part(std::uint64_t offset, std::uint64_t item, std::vector<Dim> dims = {}) const {
    return {input, offset, item, std::move(dims)};
  }
};

struct Case {
  const char* name;
  std::function<void(Draft&)> write;
  StatusCode code = StatusCode::kOk;
  const char* message = "";
};
std::ostream& operator<<(std::ostream& out, const Case& it) { return out << it.name; }
std::string name_of(const testing::TestParamInfo<Case>& it) { return it.param.name; }

class BuildRefuses : public testing::TestWithParam<Case> {};

TEST_P(BuildRefuses, NamingTheStepAndBothValues) {
  Draft draft;
  GetParam().write(draft);
  const Result<Program> program = draft.builder.build();
  ASSERT_FALSE(program.ok());
  EXPECT_EQ(program.error().code(), GetParam().code) << program.error().message();
  EXPECT_THAT(program.error().message(), HasSubstr(GetParam().message));
  EXPECT_THAT(program.error().message(), Not(HasSubstr("\n"))) << "one error, one line";
}

const Case kRefused[] = {
    {"AnUnknownStream", [](Draft& d) { d.builder.compute(StreamId{3}, "use", {}); },
     StatusCode::kUnknownId, "step 0 'use' runs on stream 3, the program has 1"},
    {"AnUnknownBuffer",
     [](Draft& d) { d.builder.compute(kAmbient, "use", {d.builder.read(BufferId{9})}); },
     StatusCode::kUnknownId, "step 0 'use' names buffer 9 at access 0, the program has 4"},
    {"AnUnknownEvent", [](Draft& d) { d.builder.record_event(kAmbient, EventId{5}); },
     StatusCode::kUnknownId, "step 0 'record_event' names event 5, the program has 1"},
    {"AWaitForAnEventNeverRecorded", [](Draft& d) { d.builder.wait_event(kAmbient, d.event); },
     StatusCode::kEventNeverRecorded, "waits for event 0 'ready', which no step before it records"},
    {"ARecordAfterTheWait",
     [](Draft& d) {
       d.builder.wait_event(kAmbient, d.event);
       d.builder.record_event(kAmbient, d.event);
     },
     StatusCode::kEventNeverRecorded, "step 0 'wait_event'"},
    {"AViewPastTheEnd",
     [](Draft& d) {
       d.use(d.part(32, 4, {{9, 4}}));
     },
     StatusCode::kViewOutsideBuffer,
     "step 0 'use' reaches at access 0 outside buffer 0 'in' of 64 bytes"},
    {"AViewBelowTheStart",
     [](Draft& d) {
       d.use(d.part(32, 4, {{10, -4}}));
     },
     StatusCode::kViewOutsideBuffer, "outside buffer 0 'in' of 64 bytes"},
    {"AnItemThatWrapsAround", [](Draft& d) { d.use(d.part(1, kHuge)); },
     StatusCode::kViewOutsideBuffer, "at offset 1"},
    {"AnOffsetPastTheEnd", [](Draft& d) { d.use(d.part(kHuge, 1)); },
     StatusCode::kViewOutsideBuffer, "at offset 18446744073709551615"},
    {"AStrideThatWrapsAround",
     [](Draft& d) {
       d.use(d.part(0, 1, {{3, kFar}}));
     },
     StatusCode::kViewOutsideBuffer, "outside buffer 0"},
    {"ASizeThatWrapsAround",
     [](Draft& d) {
       d.use(d.part(0, 1, {{kHuge, 1 << 20}}));
     },
     StatusCode::kViewOutsideBuffer, "outside buffer 0"},
    {"AnEmptyViewBeyondTheEnd",
     [](Draft& d) {
       d.use(d.part(65, 4, {{0, 4}}));
     },
     StatusCode::kViewOutsideBuffer, "at offset 65"},
    {"TooManyDims",
     [](Draft& d) {
       d.use(d.part(0, 1, std::vector<Dim>(kMaxViewDims + 1, Dim{1, 1})));
     },
     StatusCode::kLimitExceeded, "has 33 dims at access 0, the limit is 32"},
    {"AWriteOfAConstant", [](Draft& d) { d.use(d.builder.whole(d.constant), AccessMode::kWrite); },
     StatusCode::kRoleForbidsAccess, "step 0 'use' writes buffer 2 'weight', a constant"},
    {"AReadOfATemporaryNeverWritten", [](Draft& d) { d.use(d.builder.whole(d.temporary)); },
     StatusCode::kReadBeforeWrite,
     "reads bytes 0..64 of buffer 3 'temp', where no step before it writes"},
    {"AReadOfAnOutputNeverWritten", [](Draft& d) { d.use(d.builder.whole(d.output)); },
     StatusCode::kReadBeforeWrite, "buffer 1 'out', where no step before it writes"},
    {"AChangeOfATemporaryNeverWritten",
     [](Draft& d) { d.use(d.builder.whole(d.temporary), AccessMode::kReadWrite); },
     StatusCode::kReadBeforeWrite, "buffer 3 'temp'"},
    {"AReadOfTheHalfNeverWritten",
     [](Draft& d) {
       d.use({d.temporary, 0, 32}, AccessMode::kWrite);
       d.use({d.temporary, 32, 32});
     },
     StatusCode::kReadBeforeWrite, "step 1 'use' reads bytes 32..64 of buffer 3"},
    {"AReadOfWhatOnlyTheSameStepWrites",
     [](Draft& d) {
       const View view = d.builder.whole(d.temporary);
       d.builder.compute(kAmbient, "use", {{AccessMode::kWrite, view}, {AccessMode::kRead, view}});
     },
     StatusCode::kReadBeforeWrite, "step 0 'use'"},
    {"ACopyOfOtherItems",
     [](Draft& d) {
       d.builder.copy(kAmbient, {d.output, 0, 8}, d.part(0, 4));
     },
     StatusCode::kProgramInvalid,
     "copies items of 4 bytes in 0 dims to items of 8 bytes in 0 dims"},
    {"ACopyOfAnotherShape",
     [](Draft& d) {
       d.builder.copy(kAmbient, {d.output, 0, 4, {{4, 4}}}, d.part(0, 4, {{5, 4}}));
     },
     StatusCode::kProgramInvalid, "copies 5 items to 4 items in dim 0"},
    {"ACopyWithOneAccess",
     [](Draft& d) {
       d.builder.add_step({.kind = StepKind::kCopy, .accesses = {d.builder.write(d.output)}});
     },
     StatusCode::kProgramInvalid, "is a copy with 1 accesses"},
    {"AFillThatReads",
     [](Draft& d) {
       d.builder.add_step({.kind = StepKind::kFill, .accesses = {d.builder.read(d.input)}});
     },
     StatusCode::kProgramInvalid, "is a fill with 1 accesses; it takes one, a write"},
    {"ASyncWithAccesses",
     [](Draft& d) {
       d.builder.add_step({.kind = StepKind::kSynchronize, .accesses = {d.builder.read(d.input)}});
     },
     StatusCode::kProgramInvalid, "is a synchronize with 1 accesses; it takes none"},
    {"AComputeWithoutAName", [](Draft& d) { d.builder.compute(kAmbient, "", {}); },
     StatusCode::kProgramInvalid, "step 0 '' is a compute without a name"},
    {"AnUnknownKind",
     [](Draft& d) { d.builder.add_step({.kind = static_cast<StepKind>(7), .name = "odd"}); },
     StatusCode::kProgramInvalid, "step 0 'odd' has kind 7, there are 7"},
    {"AnUnknownMode", [](Draft& d) { d.use(d.builder.whole(d.input), static_cast<AccessMode>(0)); },
     StatusCode::kProgramInvalid, "has mode 0 at access 0"},
    {"AnUnknownRole",
     [](Draft& d) {
       d.builder.add_buffer({"odd", static_cast<Role>(7), 8, 8});
     },
     StatusCode::kProgramInvalid, "buffer 4 'odd' has role 7, there are 7"},
    {"ANumberOfAnUnknownKind",
     [](Draft& d) {
       d.builder.add_buffer({"odd", Role::kNumber, 8, 8, static_cast<NumberKind>(6)});
     },
     StatusCode::kProgramInvalid, "buffer 4 'odd' is a number of kind 6, there are 6"},
    {"ANumberWithoutAKind",
     [](Draft& d) {
       d.builder.add_buffer({"odd", Role::kNumber, 8, 8});
     },
     StatusCode::kProgramInvalid, "add numbers by add_number()"},
    {"AnInputWithAKindOfNumber",
     [](Draft& d) {
       d.builder.add_buffer({"odd", Role::kInput, 8, 8, NumberKind::kF64});
     },
     StatusCode::kProgramInvalid, "give no other buffer a kind"},
    {"ANumberOfAnotherSize",
     [](Draft& d) {
       d.builder.add_buffer({"odd", Role::kNumber, 4, 4, NumberKind::kF64});
     },
     StatusCode::kProgramInvalid, "buffer 4 'odd' has role 4, 4 bytes and a kind of number of 8"},
    {"ANumberBetweenNothing", [](Draft& d) { d.builder.add_number("odd", NumberKind::kF64, 2, 1); },
     StatusCode::kProgramInvalid, "number 4 'odd' lies between 2 and 1, where nothing does"},
    {"ANumberBetweenNans",
     [](Draft& d) { d.builder.add_number("odd", NumberKind::kF64, std::nan(""), 1); },
     StatusCode::kProgramInvalid, "where nothing does"},
    {"AWriteToANumber",
     [](Draft& d) {
       d.use(d.builder.whole(d.builder.add_number("n", NumberKind::kI64)), AccessMode::kReadWrite);
     },
     StatusCode::kRoleForbidsAccess, "writes number 4 'n', which regions alone may read"},
    {"ACopyOfANumber",
     [](Draft& d) {
       const BufferId n = d.builder.add_number("n", NumberKind::kI64);
       const BufferId out = d.builder.add_buffer({"out", Role::kOutput, 8, 8});
       d.builder.copy(kAmbient, d.builder.whole(out), d.builder.whole(n));
     },
     StatusCode::kRoleForbidsAccess, "copies number 4 'n', which regions alone may read"},
    {"ATableWithoutBytes", [](Draft& d) { d.builder.add_table("odd", 0); },
     StatusCode::kProgramInvalid, "table 4 'odd' has no bytes"},
    {"ATableBeyondTheLimit", [](Draft& d) { d.builder.add_table("odd", kMaxTableBytes + 1); },
     StatusCode::kLimitExceeded, "table 4 'odd' has 1048577 bytes and alignment 64"},
    {"ATableThatAsksForMuchAlignment", [](Draft& d) { d.builder.add_table("odd", 8, 1024); },
     StatusCode::kLimitExceeded, "table 4 'odd' has 8 bytes and alignment 1024"},
    {"ATableWithAKindOfNumber",
     [](Draft& d) {
       d.builder.add_buffer({"odd", Role::kTable, 8, 8, NumberKind::kF64});
     },
     StatusCode::kProgramInvalid, "give no other buffer a kind"},
    {"AWriteToATable",
     [](Draft& d) { d.use(d.builder.whole(d.builder.add_table("t", 8)), AccessMode::kReadWrite); },
     StatusCode::kRoleForbidsAccess, "writes buffer 4 't', a table"},
    {"AGridWithoutBlocks", [](Draft& d) { d.builder.add_grid("odd", 4, 0); },
     StatusCode::kProgramInvalid, "buffer 4 'odd' has role 6, 12 bytes and at most 4x0x1 blocks"},
    {"AGridWithoutAnyBlocks", [](Draft& d) { d.builder.add_grid("odd", 0, 0, 0); },
     StatusCode::kProgramInvalid, "add grids by add_grid(), with a block in each dimension"},
    {"AGridOfMoreBlocksThanThereAre", [](Draft& d) { d.builder.add_grid("odd", 1, 65536, 1); },
     StatusCode::kLimitExceeded, "grid 4 'odd' has at most 1x65536x1 blocks"},
    {"AGridOfAnotherSize",
     [](Draft& d) {
       Buffer odd{"odd", Role::kGrid, 8, 8};
       odd.most_blocks = {1, 1, 1};
       d.builder.add_buffer(odd);
     },
     StatusCode::kProgramInvalid, "buffer 4 'odd' has role 6, 8 bytes"},
    {"AnInputWithBlocks",
     [](Draft& d) {
       Buffer odd{"odd", Role::kInput, 12, 4};
       odd.most_blocks = {1, 1, 1};
       d.builder.add_buffer(odd);
     },
     StatusCode::kProgramInvalid, "give no other buffer any"},
    {"AWriteToAGrid",
     [](Draft& d) { d.use(d.builder.whole(d.builder.add_grid("g", 8)), AccessMode::kReadWrite); },
     StatusCode::kRoleForbidsAccess, "writes grid 4 'g', which regions alone may read"},
    {"AnAlignmentThatIsNoPowerOfTwo",
     [](Draft& d) {
       d.builder.add_buffer({"odd", Role::kInput, 8, 48});
     },
     StatusCode::kProgramInvalid, "buffer 4 'odd' has alignment 48"},
    {"AnAlignmentOfZero",
     [](Draft& d) {
       d.builder.add_buffer({"odd", Role::kInput, 8, 0});
     },
     StatusCode::kProgramInvalid, "has alignment 0"},
    {"ABufferTooLarge",
     [](Draft& d) {
       d.builder.add_buffer({"big", Role::kInput, kMaxBufferBytes + 1, 8});
     },
     StatusCode::kLimitExceeded,
     "buffer 4 'big' has 281474976710657 bytes, the limit is 281474976710656"},
    {"BuffersTooLargeTogether",
     [](Draft& d) {
       for (std::uint64_t i = 0; i <= kMaxTotalBytes / kMaxBufferBytes; ++i) {
         d.builder.add_buffer({"big", Role::kTemporary, kMaxBufferBytes, 8});
       }
     },
     StatusCode::kLimitExceeded, "has buffers of more than 1152921504606846976 bytes together"},
    {"TooManyStreams",
     [](Draft& d) {
       for (std::uint32_t i = 0; i < kMaxStreams; ++i)
         d.builder.add_stream(std::string(i + 1, 's'));
     },
     StatusCode::kLimitExceeded, "has 1025 streams, the limit is 1024"},
    {"AStreamWithoutAName", [](Draft& d) { d.builder.add_stream(""); }, StatusCode::kProgramInvalid,
     "stream 1 has no name"},
    {"AnUnknownOrigin",
     [](Draft& d) { d.builder.add_stream("side", static_cast<StreamOrigin>(2)); },
     StatusCode::kProgramInvalid, "stream 1 'side' has origin 2, there are 2"},
    {"TwoStreamsOfOneName", [](Draft& d) { d.builder.add_stream("ambient"); },
     StatusCode::kProgramInvalid, "streams 0 and 1 are both named 'ambient'"},
};
INSTANTIATE_TEST_SUITE_P(, BuildRefuses, testing::ValuesIn(kRefused), name_of);

class BuildTakes : public testing::TestWithParam<Case> {};

TEST_P(BuildTakes, WithoutAWord) {
  Draft draft;
  GetParam().write(draft);
  const Result<Program> program = draft.builder.build();
  EXPECT_TRUE(program.ok()) << program.error().message();
}

const Case kTaken[] = {
    {"AReversedViewFromTheLastItem",
     [](Draft& d) {
       d.use(d.part(60, 4, {{16, -4}}));
     }},
    {"AStrideOfZero",
     [](Draft& d) {
       d.use(d.part(60, 4, {{kHuge, 0}}));
     }},
    {"ALoneItemWithAnyStride",
     [](Draft& d) {
       d.use(d.part(60, 4, {{1, kFar}}));
     }},
    {"AnEmptyViewAtTheEnd",
     [](Draft& d) {
       d.use(d.part(64, 4, {{0, 4}}));
     }},
    {"AnEmptyReadOfWhatNothingWrote",
     [](Draft& d) {
       d.use({d.temporary, 0, 4, {{0, 4}}});
     }},
    {"ABufferWithoutBytes",
     [](Draft& d) {
       const BufferId none = d.builder.add_buffer({"none", Role::kTemporary, 0, 64});
       d.use(d.builder.whole(none), AccessMode::kReadWrite);
     }},
    {"AWriteOfAnInput", [](Draft& d) { d.use(d.builder.whole(d.input), AccessMode::kReadWrite); }},
    {"AReadOfWhatWasWrittenInPart",
     [](Draft& d) {
       d.use({d.temporary, 60, 4}, AccessMode::kWrite);
       d.use(d.builder.whole(d.temporary));
     }},
    {"AReadBetweenWhatTwoWritesJoin",
     [](Draft& d) {
       d.use({d.temporary, 0, 32}, AccessMode::kWrite);
       d.use({d.temporary, 32, 32}, AccessMode::kWrite);
       d.use({d.temporary, 16, 32});
     }},
    {"AnEventRecordedTwice",
     [](Draft& d) {
       d.builder.record_event(kAmbient, d.event);
       d.builder.record_event(kAmbient, d.event);
       d.builder.wait_event(kAmbient, d.event);
     }},
    {"AWaitForAnEventThatWasNeverRecordedWhereTheUserSynchronises",
     [](Draft& d) {
       const StreamId a = d.builder.add_stream("A", StreamOrigin::kUserSynchronised);
       d.builder.wait_event(a, d.event);
       d.builder.wait_event(kAmbient, d.event);
     }},
    {"BuffersOfOneName",
     [](Draft& d) {
       d.builder.add_buffer({"in", Role::kInput, 64, 64});
     }},
};
INSTANTIATE_TEST_SUITE_P(, BuildTakes, testing::ValuesIn(kTaken), name_of);

TEST(CheckProgram, ReportsAllErrorsALineEachUnderTheCodeOfTheFirst) {
  Draft draft;
  draft.builder.add_step(
      {.kind = StepKind::kCompute,
       .name = "add",
       .source = "model.py:88",
       .accesses = {draft.builder.write(draft.constant), draft.builder.read(draft.temporary)}});
  draft.builder.wait_event(StreamId{4}, draft.event);
  const Status status = draft.builder.build().error();
  EXPECT_EQ(status.code(), StatusCode::kRoleForbidsAccess);
  EXPECT_EQ(
      status.message(),
      "program: step 0 'add' (model.py:88) writes buffer 2 'weight', a constant; make it an "
      "input, or write another buffer\n"
      "program: step 0 'add' (model.py:88) reads bytes 0..64 of buffer 3 'temp', where "
      "no step before it writes; write there first, or make it an input\n"
      "program: step 1 'wait_event' runs on stream 4, the program has 1; add the stream first\n"
      "program: step 1 'wait_event' waits for event 0 'ready', which no step before it "
      "records; record it first [E0106]");
}

}  // namespace
}  // namespace anabranch
