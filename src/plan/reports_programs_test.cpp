// SPDX-License-Identifier: Apache-2.0
// Programs as users write them on streams of torch, each with the exact reports that it deserves:
// those that others' compilers got wrong, and correct ones, which must give none. An input that a
// stream uses is ready for it only after a join, as in eager; programs about something else make
// what they need.
#include <algorithm>
#include <string>
#include <vector>

#include "plan/reports_testing.h"

namespace anabranch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

bool share_arena(const Plan& plan, BufferId a, BufferId b) {
  const auto begin = [&](BufferId id) { return plan.arena().offsets[index_of(id)]; };
  const auto end = [&](BufferId id) { return begin(id) + plan.program().buffer(id).size_bytes; };
  return begin(a) < end(b) && begin(b) < end(a);
}

// ---- write-backs

TEST(UserStreams, AWriteBackBeforeTheUsersJoinIsCoveredByIt) {
  UserProgram p;
  const BufferId x = p.input("x");
  p.builder.synchronize_device();
  p.change(p.a, "x += 1", x);
  p.join(p.d, p.a);
  p.use(p.d, "observe", x);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, AWriteBackAfterTheUsersJoinIsReported) {
  UserProgram p;
  const BufferId x = p.input("x");
  p.join(p.a, p.d);
  const BufferId fresh = p.make(p.a, "add", {x});
  p.join(p.d, p.a);
  p.make_into(p.a, "write back", x, {fresh});
  p.use(p.d, "observe", x);
  EXPECT_THAT(p.reports(), ElementsAre("race-mutation: write back, observe"));
}

TEST(UserStreams, AnEventRecordedAfterAMutationCoversIt) {
  UserProgram p;
  const BufferId x = p.input("x");
  const EventId e = p.event("e");
  p.join(p.a, p.d);
  p.change(p.a, "x += 1", x);
  p.record(e, p.a);
  p.wait(e, p.c);
  p.use(p.c, "read", x);
  p.join(p.d, p.c);
  EXPECT_THAT(p.reports(), IsEmpty());
}

// ---- copies that a compiler puts in

TEST(UserStreams, AnAligningCopySharedByTwoStreamsIsReported) {
  UserProgram p;
  const BufferId x = p.input("x");
  p.join(p.a, p.d);
  p.join(p.b, p.d);
  const BufferId clone = p.make(p.a, "clone", {x});
  const BufferId left = p.make(p.a, "p", {clone});
  const BufferId right = p.make(p.b, "q", {clone});
  p.join(p.d, p.a);
  p.join(p.d, p.b);
  p.give(p.d, "p + q", {left, right});
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: clone, q"));
}

TEST(UserStreams, AnAligningCopyForEachStreamIsNot) {
  UserProgram p;
  const BufferId x = p.input("x");
  p.join(p.a, p.d);
  p.join(p.b, p.d);
  const BufferId left = p.make(p.a, "p", {p.make(p.a, "clone for A", {x})});
  const BufferId right = p.make(p.b, "q", {p.make(p.b, "clone for B", {x})});
  p.join(p.d, p.a);
  p.join(p.d, p.b);
  p.give(p.d, "p + q", {left, right});
  EXPECT_THAT(p.reports(), IsEmpty());
}

// ---- syncs without data

TEST(UserStreams, AHostThatWaitsForAStreamOrdersLaterWorkOfEveryStream) {
  for (const bool whole_device : {false, true}) {
    UserProgram p;
    const BufferId h = p.make(p.a, "heavy");
    whole_device ? p.builder.synchronize_device() : p.builder.synchronize(p.a);
    p.make(p.b, "use", {h});
    p.change(p.c, "change", p.make(p.b, "other"));
    p.join(p.d, p.b);
    p.join(p.d, p.c);
    EXPECT_THAT(p.reports(), ElementsAre("race-mutation: other, change"));
  }
}

TEST(UserStreams, AHostThatWaitsForAnotherStreamOrdersNothingOfThisOne) {
  UserProgram p;
  const BufferId h = p.make(p.a, "heavy");
  p.builder.synchronize(p.c);
  p.make(p.b, "use", {h});
  p.join(p.d, p.a);
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: heavy, use"));
}

TEST(UserStreams, AHostThatWaitsForAnEventOrdersWhatTheEventCoversAndNoMore) {
  UserProgram p;
  const EventId e = p.event("e");
  const BufferId covered = p.make(p.a, "covered");
  p.record(e, p.a);
  const BufferId later = p.make(p.a, "later");
  p.builder.synchronize_event(p.c, e);
  p.make(p.b, "use covered", {covered});
  p.make(p.b, "use later", {later});
  p.join(p.d, p.a);
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: later, use later"));
}

TEST(UserStreams, ASecondRecordWithNothingBetweenCoversTheSameWork) {
  UserProgram p;
  const EventId e1 = p.event("e1"), e2 = p.event("e2");
  const BufferId made = p.make(p.a, "a");
  p.record(e1, p.a);
  p.record(e2, p.a);
  p.wait(e2, p.b);
  p.make(p.b, "use", {made});
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, ARecordAfterAJoinHandsOnWhatWasJoined) {
  UserProgram p;
  const EventId e = p.event("e");
  const BufferId made = p.make(p.d, "made");
  p.join(p.a, p.d);
  p.record(e, p.a);
  p.wait(e, p.b);
  p.make(p.b, "use", {made});
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, TheLastRecordOfAnEventWins) {
  UserProgram p;
  const EventId e = p.event("e");
  const BufferId on_a = p.make(p.a, "on A");
  const BufferId on_b = p.make(p.b, "on B");
  p.record(e, p.a);
  p.record(e, p.b);
  p.wait(e, p.c);
  p.make(p.c, "use B's", {on_b});
  p.make(p.c, "use A's", {on_a});
  p.join(p.d, p.a);
  p.join(p.d, p.c);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: on A, use A's"));
}

TEST(UserStreams, RecordsKeepTheirPlaceAmongIndependentWork) {
  UserProgram p;
  const EventId e1 = p.event("e1"), e2 = p.event("e2");
  const BufferId first = p.make(p.a, "first");
  p.record(e1, p.a);
  const BufferId second = p.make(p.a, "second");
  p.record(e2, p.a);
  p.wait(e1, p.b);
  p.make(p.b, "use first", {first});
  p.make(p.b, "too early", {second});
  p.wait(e2, p.c);
  p.make(p.c, "use second", {second});
  p.join(p.d, p.b);
  p.join(p.d, p.c);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: second, too early"));
}

// ---- joins

UserProgram two_streams(bool joins, bool shares_data) {
  UserProgram p;
  const BufferId x = p.input("x"), y = p.constant("y");
  const BufferId a = p.make(p.d, "a = 2x", {x});
  if (joins) p.join(p.a, p.d);
  p.give(p.a, "b", {shares_data ? a : y});
  if (joins) p.join(p.d, p.a);
  return p;
}

TEST(UserStreams, AForkAndAJoinOrderWhatLiesBetween) {
  EXPECT_THAT(two_streams(true, true).reports(), IsEmpty());
}

TEST(UserStreams, WithoutForkAndJoinThePairAndTheStreamAreNamed) {
  EXPECT_THAT(two_streams(false, true).reports(),
              ElementsAre("race-flow: a = 2x, b", "unjoined: b, caller"));
}

TEST(UserStreams, AJoinOrdersWithoutSharedData) {
  const UserProgram p = two_streams(true, false);
  EXPECT_THAT(p.reports(), IsEmpty());
  // mul on D, record, wait on A, add on A, record, wait on D
  EXPECT_THAT(make_plan(p.program())->waits(),
              ElementsAre(Wait{StepId{2}, StepId{1}}, Wait{StepId{5}, StepId{4}}));
}

TEST(UserStreams, ARegionOfAJoinAloneKeepsItsWait) {
  UserProgram p;
  p.join(p.a, p.d);
  EXPECT_THAT(p.reports(), ElementsAre("unjoined: wait_event, caller"));
  EXPECT_THAT(make_plan(p.program())->waits(), ElementsAre(Wait{StepId{1}, StepId{0}}));
}

// ---- mutation across streams

UserProgram experts(bool user_orders_them) {
  UserProgram p;
  const BufferId x = p.input("x");
  const BufferId h = p.make(p.d, "norm", {x});
  p.join(p.a, p.d);
  if (!user_orders_them) p.change(p.d, "routed experts", h);
  const BufferId shared = p.make(p.a, "shared expert", {h});
  if (user_orders_them) {
    p.join(p.d, p.a);
    p.change(p.d, "routed experts", h);
  } else {
    p.join(p.d, p.a);
  }
  p.give(p.d, "sum", {h, shared});
  return p;
}

TEST(UserStreams, FlattenedExpertsThatChangeTheirInputAreRefused) {
  EXPECT_THAT(experts(false).reports(),
              ElementsAre("race-mutation: routed experts, shared expert"));
}

TEST(UserStreams, ExpertsThatTheUserOrderedAreNot) {
  EXPECT_THAT(experts(true).reports(), IsEmpty());
}

TEST(UserStreams, AChangeAfterAReadOnAnotherStreamNeedsTheUsersEdge) {
  for (const bool has_edge : {false, true}) {
    UserProgram p;
    const BufferId t = p.make(p.d, "t");
    p.join(p.a, p.d);
    p.make(p.a, "f(t)", {t});
    if (has_edge) p.join(p.d, p.a);
    p.change(p.d, "t += 1", t);
    p.make(p.d, "g(t)", {t});
    if (!has_edge) p.join(p.d, p.a);
    if (has_edge) {
      EXPECT_THAT(p.reports(), IsEmpty());
    } else {
      EXPECT_THAT(p.reports(), ElementsAre("race-mutation: f(t), t += 1"));
    }
  }
}

TEST(UserStreams, OnPlacedStreamsTheSameChangeIsOrderedByThePlan) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId t = builder.add_buffer({"t", Role::kInput, 64});
  const StepId f = builder.compute(side, "f(t)", {builder.read(t)});
  const StepId add = builder.compute(kAmbient, "t += 1", {builder.read_write(t)});
  builder.compute(kAmbient, "g(t)", {builder.read(t)});
  EXPECT_THAT(*find_reports(*builder.build()), IsEmpty());
  EXPECT_THAT(make_plan(*builder.build())->waits(), ElementsAre(Wait{add, f}));
}

// ---- events

TEST(UserStreams, AnEventWaitedForAfterAGraphBreakBindsToItsRecord) {
  UserProgram p;
  const EventId e = p.event("e");
  const BufferId h = p.make(p.a, "heavy");
  p.record(e, p.a);
  p.make(p.d, "after the break");
  p.wait(e, p.b);
  p.make(p.b, "consume", {h});
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, AnEventThatWasLostOnTheWayIsToldBesideTheRace) {
  UserProgram p;
  const EventId e = p.event("e"), lost = p.event("lost");
  const BufferId h = p.make(p.a, "heavy");
  p.record(e, p.a);
  p.wait(lost, p.b);
  p.make(p.b, "consume", {h});
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(),
              ElementsAre("unrecorded: caller, wait_event", "race-flow: heavy, consume"));
}

TEST(UserStreams, ARecordAndAWaitHaveNoOutputAndOrderAllTheSame) {
  UserProgram p;
  const EventId e = p.event("e");
  const BufferId h = p.make(p.a, "heavy");
  p.record(e, p.a);
  p.wait(e, p.d);
  p.give(p.d, "consume", {h});
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, PingPongBetweenTwoStreamsByTwoEventsIsOrdered) {
  UserProgram p;
  const EventId e1 = p.event("e1"), e2 = p.event("e2");
  BufferId h = p.make(p.a, "start");
  for (int turn = 0; turn < 3; ++turn) {
    p.record(e1, p.a);
    p.wait(e1, p.b);
    h = p.make(p.b, "on B", {h});
    p.record(e2, p.b);
    p.wait(e2, p.a);
    h = p.make(p.a, "on A", {h});
  }
  p.join(p.d, p.a);
  p.give(p.d, "end", {h});
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, TheForwardOfATrainedRegionIsOrdered) {
  UserProgram p;
  const BufferId x = p.input("x"), w = p.input("w");
  const EventId e = p.event("e");
  p.join(p.a, p.d);
  p.give(p.a, "h = x @ w", {x, w});
  p.record(e, p.a);
  p.wait(e, p.d);
  EXPECT_THAT(p.reports(), IsEmpty());
}

// ---- programs that were racy themselves

TEST(UserStreams, InputsOfTheAmbientStreamThatASideStreamReadsAtOnceAreReported) {
  UserProgram p;
  const BufferId x = p.input("x"), y = p.input("y");
  p.make(p.a, "add", {x, y});
  p.make(p.b, "mul", {y});
  p.join(p.d, p.a);
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: caller, add", "race-flow: caller, mul"));
}

TEST(UserStreams, AnInputMadeInTheProgramIsReportedByItsMaker) {
  UserProgram p;
  const BufferId x = p.make(p.d, "randn");
  p.make(p.a, "use", {x});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: randn, use"));
}

// ---- lifetimes: a block's bytes have another owner only after the last access of this one

struct Lifetime {
  UserProgram p;
  BufferId t = p.make(p.d, "t");
  BufferId next{};
};

// `readers` read t on A (and B), then D reads it and owns its bytes anew.
Lifetime read_aside(bool has_edge, bool on_b_too, bool last_at_home) {
  Lifetime life;
  UserProgram& p = life.p;
  if (has_edge) p.join(p.a, p.d);
  p.give(p.a, "slow", {life.t});
  if (on_b_too && has_edge) p.join(p.b, p.d);
  if (on_b_too) p.give(p.b, "fast", {life.t});
  if (last_at_home) p.give(p.d, "last", {life.t});
  life.next = p.make(p.d, "next");
  p.give(p.d, "end", {life.next});
  p.join(p.d, p.a);
  if (on_b_too) p.join(p.d, p.b);
  return life;
}

TEST(UserStreams, ABlockReadAsideAndThenAtHomeIsNotReusedUnderTheReader) {
  const Lifetime life = read_aside(true, false, true);
  EXPECT_THAT(life.p.reports(), IsEmpty());
  EXPECT_FALSE(share_arena(*make_plan(life.p.program()), life.t, life.next));
  EXPECT_THAT(read_aside(false, false, true).p.reports(), ElementsAre("race-flow: t, slow"));
}

TEST(UserStreams, ABlockReadOnTwoSideStreamsIsNotReusedUnderEither) {
  const Lifetime life = read_aside(true, true, false);
  EXPECT_THAT(life.p.reports(), IsEmpty());
  EXPECT_FALSE(share_arena(*make_plan(life.p.program()), life.t, life.next));
  EXPECT_THAT(read_aside(false, true, false).p.reports(),
              ElementsAre("race-flow: t, slow", "race-flow: t, fast"));
}

TEST(UserStreams, ABlockThatGoesOutOfScopeInTheForwardKeepsTheSameRule) {
  const Lifetime life = read_aside(true, true, true);
  EXPECT_THAT(life.p.reports(), IsEmpty());
  EXPECT_FALSE(share_arena(*make_plan(life.p.program()), life.t, life.next));
  EXPECT_THAT(read_aside(false, true, true).p.reports(),
              ElementsAre("race-flow: t, slow", "race-flow: t, fast"));
}

// ---- correct programs

enum class Sync { kJoin, kEvent };

TEST(UserStreams, EveryFormOfSyncOrdersAForkAndAHostThatWaits) {
  for (const Sync form : {Sync::kJoin, Sync::kEvent}) {
    UserProgram p;
    const EventId e = p.event("e");
    const BufferId z = p.make(p.d, "z = x + y", {p.input("x"), p.input("y")});
    if (form == Sync::kJoin) {
      p.join(p.a, p.d);
    } else {
      p.record(e, p.d);
      p.wait(e, p.a);
    }
    const BufferId w = p.make(p.a, "w = 2z", {z});
    p.builder.synchronize(p.a);
    p.give(p.d, "w + 1", {w});
    EXPECT_THAT(p.reports(), IsEmpty());
  }
}

TEST(UserStreams, ChainsOverStreamsByEventsAreOrdered) {
  for (const std::vector<int>& way : {std::vector<int>{1, 2, 0}, {1, 2, 1}, {1, 2, 3}, {0, 1, 0}}) {
    UserProgram p;
    const StreamId streams[] = {p.d, p.a, p.b, p.c};
    StreamId last = p.d;
    BufferId h = p.input("x");
    for (const int number : way) {
      const EventId e = p.event("e");
      p.record(e, last);
      p.wait(e, streams[number]);
      last = streams[number];
      h = p.make(last, "step", {h});
    }
    p.join(p.d, last);
    EXPECT_THAT(p.reports(), IsEmpty());
  }
}

TEST(UserStreams, BranchesThatJoinOnTheAmbientOrOnAThirdStreamAreOrdered) {
  for (const bool on_side : {false, true}) {
    UserProgram p;
    const BufferId fan = p.make(p.d, "fan", {p.input("x")});
    p.join(p.a, p.d);
    p.join(p.b, p.d);
    const BufferId l = p.make(p.a, "left", {fan});
    const BufferId r = p.make(p.b, "right", {fan});
    const StreamId end = on_side ? p.c : p.d;
    p.join(end, p.a);
    p.join(end, p.b);
    p.give(end, "sum", {l, r, fan});
    if (on_side) p.join(p.d, p.c);
    EXPECT_THAT(p.reports(), IsEmpty());
  }
}

TEST(UserStreams, NestedContextsAreOrdered) {
  UserProgram p;
  const BufferId x = p.input("x");
  p.join(p.a, p.d);
  p.join(p.b, p.d);
  const BufferId outer = p.make(p.a, "outer", {x});
  const BufferId inner = p.make(p.b, "inner", {x});
  const BufferId again = p.make(p.a, "again", {x});
  p.join(p.d, p.a);
  p.join(p.d, p.b);
  p.give(p.d, "sum of three", {outer, inner, again});
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, ALoopThatReusesOneEventIsOrdered) {
  UserProgram p;
  const EventId e = p.event("e");
  BufferId h = p.input("x");
  p.join(p.a, p.d);
  for (int turn = 0; turn < 3; ++turn) {
    h = p.make(p.a, "turn", {h});
    p.record(e, p.a);
    p.wait(e, p.d);
    p.use(p.d, "look", h);
  }
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, AHostThatWaitsFirstMakesInputsReady) {
  UserProgram p;
  const BufferId x = p.input("x");
  p.builder.synchronize(p.d);
  const BufferId a = p.make(p.a, "a = x + 1", {x});
  p.builder.synchronize(p.a);
  p.give(p.d, "b = 2a", {a});
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, CopiesToTheHostWithAnEventEachAreOrderedByWaitingForTheEvents) {
  UserProgram p;
  const StreamId waiter = p.builder.add_stream("waiter", StreamOrigin::kUserSynchronised);
  std::vector<Access> parts{p.builder.write(p.output("all"))};
  std::vector<EventId> events;
  for (int i = 0; i < 10; ++i) {
    const BufferId pinned = p.make(p.d, "copy", {p.input("x")});
    parts.push_back(p.builder.read(pinned));
    events.push_back(p.event("done"));
    p.record(events.back(), p.d);
  }
  for (const EventId event : events) p.builder.synchronize_event(waiter, event);
  p.host(waiter, "concatenate", parts);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, CopiesToTheHostThatNobodyWaitedForAreReportedByTheLast) {
  UserProgram p;
  const BufferId one = p.make(p.d, "one"), other = p.make(p.d, "other");
  p.host(p.a, "concatenate", {p.builder.read(one), p.builder.read(other)});
  EXPECT_THAT(p.reports(), ElementsAre("race-flow: other, concatenate"));
}

TEST(UserStreams, WaitsWithoutWorkAreKeptAndGiveNoReport) {
  UserProgram p;
  p.join(p.a, p.d);
  p.join(p.b, p.a);
  p.join(p.d, p.b);
  EXPECT_THAT(p.reports(), IsEmpty());
  EXPECT_EQ(make_plan(p.program())->waits().size(), 3u);
}

TEST(UserStreams, DisjointColumnsOnTwoStreamsGiveNoReport) {
  UserProgram p;
  const BufferId x = p.input("x");
  p.join(p.a, p.d);
  p.step(p.a, "left", {{AccessMode::kReadWrite, {x, 0, 4, {{16, 256}, {32, 4}}}}});
  p.step(p.d, "right", {{AccessMode::kReadWrite, {x, 128, 4, {{16, 256}, {32, 4}}}}});
  p.join(p.d, p.a);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, AChangeInPlaceOnAnotherStreamThatTheHostWaitsForIsOrdered) {
  UserProgram p;
  const BufferId a = p.give(p.d, "a = 2x", {p.input("x")});
  p.join(p.a, p.d);
  p.change(p.a, "a += 1", a);
  p.builder.synchronize(p.a);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, ATensorOnFourStreamsChainedByOneEventIsOrdered) {
  UserProgram p;
  const EventId e = p.event("e");
  const BufferId y = p.make(p.d, "y", {p.input("x")});
  StreamId last = p.d;
  for (const StreamId next : {p.a, p.b, p.c}) {
    p.record(e, last);
    p.wait(e, next);
    p.give(next, "out", {y});
    last = next;
  }
  p.record(e, last);
  p.wait(e, p.d);
  EXPECT_THAT(p.reports(), IsEmpty());
}

TEST(UserStreams, APipelineOfFourStagesIsOrdered) {
  UserProgram p;
  const StreamId stages[] = {p.d, p.a, p.b, p.c};
  const BufferId x = p.input("x");
  std::vector<BufferId> ends;
  for (int batch = 0; batch < 4; ++batch) {
    BufferId h = x;
    for (int stage = 0; stage < 4; ++stage) {
      if (stage > 0) p.join(stages[stage], stages[stage - 1]);
      h = p.make(stages[stage], "stage", {h});
    }
    ends.push_back(h);
  }
  p.join(p.d, p.c);
  ends.push_back(x);
  p.give(p.d, "h + x", ends);
  EXPECT_THAT(p.reports(), IsEmpty());
}

}  // namespace
}  // namespace anabranch
