// SPDX-License-Identifier: Apache-2.0
#include "plan/reports.h"

#include <algorithm>
#include <string>
#include <vector>

#include "plan/overlap.h"
#include "plan/reports_testing.h"

namespace anabranch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- what each kind of report says

TEST(Reports, AReadThatNothingOrdersAfterItsWriteIsARaceFlow) {
  UserProgram p;
  const BufferId h = p.make(p.d, "mm");
  p.give(p.a, "add", {h});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: mm, add"));
  const SyncReport report = p.full_reports()[0];
  EXPECT_EQ(report.kind, ReportKind::kRaceFlow);
  EXPECT_EQ(report.severity, Severity::kWarning);
  EXPECT_EQ(report.buffer, h);
  EXPECT_EQ(report.begin_byte, 0u);
  EXPECT_EQ(report.end_byte, 4096u);
  EXPECT_TRUE(report.exact);
  EXPECT_EQ(report.missing, (Wait{StepId{1}, StepId{0}}));
  EXPECT_EQ(report.message,
            "race-flow: `add` (model.py:2, stream A) reads `mm` bytes 0..4096 while `mm` "
            "(model.py:1, stream ambient) may still write them; nothing orders the two and eager "
            "would race as well. Edge added. Remedy: A.wait_stream(ambient) before line 2.");
}

TEST(Reports, TheEdgeOfARaceFlowIsInThePlan) {
  UserProgram p;
  const BufferId h = p.make(p.d, "mm");
  p.give(p.a, "add", {h});
  const Result<Plan> plan = make_plan(p.program());
  EXPECT_THAT(plan->waits(), ElementsAre(Wait{StepId{1}, StepId{0}}));
  EXPECT_THAT(plan->exits(), ElementsAre(StepId{1}));
}

TEST(Reports, AWriteThatNothingOrdersWithAnEarlierReadIsARaceMutationWithBothOrders) {
  UserProgram p;
  const BufferId h = p.make(p.d, "mm");
  p.join(p.a, p.d);
  p.give(p.a, "add", {h});
  p.change(p.d, "relu_", h);
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-mutation: add, relu_"));
  const SyncReport report = p.full_reports()[0];
  EXPECT_EQ(report.severity, Severity::kError);
  EXPECT_EQ(report.message,
            "race-mutation: `relu_` (model.py:3, stream ambient) changes `mm` bytes 0..4096 while "
            "`add` (model.py:2, stream A) may still read them; nothing orders the two, and their "
            "order decides the result. For `add` first: ambient.wait_stream(A) before line 3. For "
            "`relu_` first: move it before line 2, with A.wait_stream(ambient) between them.");
}

TEST(Reports, TwoWritesThatNothingOrdersAreARaceMutation) {
  UserProgram p;
  const BufferId y = p.output("y");
  p.make_into(p.a, "first", y);
  p.make_into(p.b, "second", y);
  p.join(p.d, p.a);
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(), ElementsAre("race-mutation: first, second"));
}

TEST(Reports, AReadAfterAChangeInPlaceIsARaceMutationSinceItMayHaveMeantTheOldValue) {
  UserProgram p;
  const BufferId h = p.make(p.d, "mm");
  p.join(p.a, p.d);
  p.make_into(p.d, "overwrite", h);
  p.give(p.a, "add", {h});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-mutation: overwrite, add"));
}

TEST(Reports, AReadAfterTheFirstWriteOfOtherBytesIsARaceFlow) {
  UserProgram p;
  const BufferId h = p.temporary("h");
  p.step(p.d, "left", {{AccessMode::kWrite, {h, 0, 2048}}});
  p.join(p.a, p.d);
  p.step(p.d, "right", {{AccessMode::kWrite, {h, 2048, 2048}}});
  p.step(p.a, "add", {p.builder.read(h)});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: right, add"));
  EXPECT_EQ(p.full_reports()[0].begin_byte, 2048u);
}

TEST(Reports, AStreamThatIsNeverJoinedIsToldByItsLastStep) {
  UserProgram p;
  p.make(p.a, "mm");
  p.give(p.a, "add");
  p.record(p.event("done"), p.a);
  EXPECT_THAT(p.reports(), ElementsAre("unjoined: add, caller"));
  const SyncReport report = p.full_reports()[0];
  EXPECT_EQ(report.severity, Severity::kNote);
  EXPECT_EQ(report.message,
            "unjoined: `add` (model.py:2, stream A) ends the work of a stream that is never joined "
            "to ambient. Join added. Remedy: ambient.wait_stream(A) after line 2.");
}

TEST(Reports, OfUnjoinedStreamsOnlyThoseThatNoOtherWaitsForAreTold) {
  UserProgram p;
  p.make(p.a, "on a");
  p.join(p.b, p.a);
  p.make(p.b, "on b");
  EXPECT_THAT(p.reports(), ElementsAre("unjoined: on b, caller"));
}

TEST(Reports, UnjoinedStreamsAreToldAsTheProgramEndsThem) {
  UserProgram p;
  p.make(p.a, "starts on a");
  p.make(p.b, "on b");
  p.make(p.a, "on a");
  EXPECT_THAT(p.reports(), ElementsAre("unjoined: on b, caller", "unjoined: on a, caller"));
}

TEST(Reports, AWaitForAnEventThatWasNeverRecordedIsToldAndKept) {
  UserProgram p;
  const EventId e = p.event("ready");
  p.wait(e, p.d);
  p.record(e, p.d);
  EXPECT_THAT(p.reports(), ElementsAre("unrecorded: caller, wait_event"));
  const SyncReport report = p.full_reports()[0];
  EXPECT_EQ(report.severity, Severity::kWarning);
  EXPECT_EQ(report.message,
            "unrecorded: `wait_event` (step 0, stream ambient) waits for event `ready`, which "
            "nothing before it records: a wait for nothing. Remedy: record the event before "
            "`wait_event`.");
  EXPECT_EQ(make_plan(p.program())->order().size(), 2u);
}

View hard_view(BufferId buffer, std::uint64_t offset, std::vector<std::int64_t> strides) {
  View view{buffer, offset, 1, {}};
  for (const std::int64_t stride : strides) view.dims.push_back({64, (1LL << 39) + stride});
  return view;
}

TEST(Reports, AnOverlapThatIsNotDecidableIsANoteAndAnEdge) {
  UserProgram p;
  const BufferId x = p.builder.add_buffer({"x", Role::kInput, kMaxBufferBytes});
  const View one = hard_view(x, 0, {1, 5'000'011, 700'000'001});
  const View other = hard_view(x, (20LL << 39) + 7'654'321'012, {97'003, 123'456'789, 999'999'937});
  ASSERT_EQ(find_overlap(make_bytes(one), make_bytes(other)), Overlap::kUnknown);
  p.join(p.a, p.d);
  p.step(p.d, "one", {{AccessMode::kWrite, one}});
  p.step(p.a, "other", {{AccessMode::kWrite, other}});
  p.join(p.d, p.a);
  for (const bool strict : {false, true}) {
    EXPECT_THAT(p.reports(strict), ElementsAre("inexact: one, other"));
    EXPECT_EQ(p.full_reports(strict)[0].severity, Severity::kNote);
  }
  EXPECT_FALSE(p.full_reports()[0].exact);
  EXPECT_THAT(p.full_reports()[0].message, HasSubstr("is not decidable. Edge added."));
  EXPECT_THAT(make_plan(p.program())->waits(), testing::Contains(Wait{StepId{3}, StepId{2}}));
}

TEST(Reports, AnInputIsTheCallersWriteOnTheAmbientStream) {
  UserProgram p;
  const BufferId x = p.input("x");
  p.make(p.a, "mm", {x});
  p.make(p.a, "again", {x});  // the first read's edge covers it
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: caller, mm"));
  EXPECT_EQ(p.full_reports()[0].first, kNoStep);
  EXPECT_EQ(p.full_reports()[0].message,
            "race-flow: `mm` (model.py:1, stream A) reads `x` bytes 0..4096 while the caller's "
            "work on stream ambient may still write them; nothing orders the two and eager would "
            "race as well. Edge added. Remedy: A.wait_stream(ambient) before line 1.");
}

TEST(Reports, AConstantWasWrittenLongAgo) {
  UserProgram p;
  p.make(p.a, "mm", {p.constant("w")});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(Reports, ACopyToTheHostThatTheHostReadsAtOnceIsARaceFlow) {
  UserProgram p;
  const BufferId x = p.make(p.a, "mm");
  const BufferId pinned = p.temporary("pinned");
  p.make_into(p.a, "copy", pinned, {x});
  p.host(p.a, "read", {p.builder.read(pinned)});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: copy, read"));
  EXPECT_THAT(p.full_reports()[0].message, HasSubstr("Remedy: A.synchronize() before line 3."));
}

TEST(Reports, WhatTheHostWroteComesBeforeAllThatIsLaunchedLater) {
  UserProgram p;
  const BufferId pinned = p.temporary("pinned");
  p.host(p.b, "fill", {p.builder.write(pinned)});
  p.make(p.a, "copy", {pinned});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(Reports, AHostStepDoesNotStandForEarlierWorkOfTheStreamItIsOn) {
  UserProgram p;
  const BufferId h = p.make(p.a, "mm");
  p.builder.synchronize(p.a);
  p.use(p.a, "last use", h);
  p.host(p.a, "log", {p.builder.read(h)});
  p.change(p.b, "relu_", h);
  p.join(p.d, p.a);
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(), ElementsAre("race-mutation: last use, relu_"));
}

TEST(Reports, AHostStepUnderAPlacedStreamIsInTheOrderOfThatStream) {
  UserProgram p;
  const BufferId pinned = p.make(p.d, "copy");
  p.host(p.d, "change", {p.builder.read_write(pinned)});
  p.make(p.a, "copy back", {pinned});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-mutation: change, copy back"));
}

TEST(Reports, AJoinWithTheAmbientStreamCoversTheWorkOfPlacedStreams) {
  UserProgram p;
  const StreamId placed = p.builder.add_stream("placed");
  const BufferId h = p.make(placed, "mm");
  p.join(p.a, p.d);
  p.make(p.a, "add", {h});
  p.join(p.d, p.a);
  p.make(placed, "mul", {h});
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(Reports, WorkOfAPlacedStreamRacesAsTheAmbientStreamsWould) {
  UserProgram p;
  const BufferId h = p.make(p.builder.add_stream("placed"), "mm");
  p.make(p.a, "add", {h});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: mm, add"));
  EXPECT_THAT(p.full_reports()[0].message, HasSubstr("Remedy: A.wait_stream(ambient)"));
}

TEST(Reports, OfPlacedStreamsAloneThereAreNone) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId x = builder.add_buffer({"x", Role::kInput, 64});
  builder.compute(kAmbient, "change", {builder.read_write(x)});
  builder.compute(side, "read", {builder.read(x)});
  builder.compute(kAmbient, "change", {builder.read_write(x)});
  EXPECT_THAT(*find_reports(*builder.build()), IsEmpty());
  EXPECT_TRUE(make_plan(*builder.build(), {.strict = true}).ok());
}

TEST(Reports, AMissingSyncIsToldOnceHoweverManyStepsNeedIt) {
  UserProgram p;
  std::vector<BufferId> made;
  for (int i = 0; i < 5; ++i) made.push_back(p.make(p.d, "made " + std::to_string(i)));
  for (const BufferId buffer : made) p.make(p.a, "use", {made[0], buffer, made[4]});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: made 4, use"));
}

TEST(Reports, AWarningDoesNotHideAnErrorThatItsEdgeWouldMend) {
  UserProgram p;
  const BufferId g = p.make(p.d, "g");
  p.join(p.a, p.d);
  p.use(p.d, "reader", g);
  const BufferId h = p.make(p.d, "h");
  p.make(p.a, "flow", {h});
  p.change(p.a, "mutation", g);
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: h, flow", "race-mutation: reader, mutation"));
}

TEST(Reports, StrictTurnsWarningsIntoErrorsAndTheUnjoinedIntoAWarning) {
  UserProgram p;
  p.wait(p.event("ready"), p.a);
  const BufferId h = p.make(p.d, "mm");
  p.give(p.a, "add", {h});
  EXPECT_THAT(p.reports(true), ElementsAre("unrecorded: caller, wait_event", "race-flow: mm, add",
                                           "unjoined: add, caller"));
  const std::vector<SyncReport> reports = p.full_reports(true);
  EXPECT_EQ(reports[0].severity, Severity::kError);
  EXPECT_EQ(reports[1].severity, Severity::kError);
  EXPECT_EQ(reports[2].severity, Severity::kWarning);
  EXPECT_THAT(reports[1].message, testing::Not(HasSubstr("Edge added")));
  const Status status = make_plan(p.program(), {.strict = true}).error();
  EXPECT_THAT(status.message(), HasSubstr("plan: unrecorded: "));
  EXPECT_THAT(status.message(), HasSubstr("\nplan: race-flow: "));
  EXPECT_THAT(status.message(), HasSubstr("[E0203]"));
}

TEST(Reports, OfManyErrorsTheFirstFourAreShown) {
  UserProgram p;
  for (int i = 0; i < 6; ++i) {
    const BufferId y = p.output("y" + std::to_string(i));
    p.make_into(p.a, "first", y);
    p.make_into(p.b, "second", y);
  }
  const Status status = make_plan(p.program()).error();
  EXPECT_EQ(std::count(status.message().begin(), status.message().end(), '\n'), 4);
  EXPECT_THAT(status.message(), HasSubstr("plan: more follow these."));
}

TEST(Reports, APlanMadeElsewhereIsTakenWhateverTheUserLeftOpen) {
  UserProgram p;
  const BufferId y = p.output("y");
  p.make_into(p.a, "first", y);
  p.make_into(p.b, "second", y);
  PlanParts parts{{StepId{0}, StepId{1}}, {{StepId{1}, StepId{0}}}, {}};
  parts.arena.offsets = {kNotInArena};
  EXPECT_TRUE(make_plan_from_parts(p.program(), parts).ok());
}

}  // namespace
}  // namespace anabranch
