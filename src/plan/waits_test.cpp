// SPDX-License-Identifier: Apache-2.0
#include "plan/waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "plan/order.h"
#include "plan/random_program.h"
#include "plan/waits_oracle.h"

namespace anabranch {

void PrintTo(const Wait& wait, std::ostream* out) {
  *out << index_of(wait.step) << " waits for " << index_of(wait.on);
}

namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A program of small buffers, with the streams D (ambient), A, B and C of the tests.
struct Draft {
  ProgramBuilder builder;
  StreamId d = kAmbient;
  StreamId a = builder.add_stream("A");
  StreamId b = builder.add_stream("B");
  StreamId c = builder.add_stream("C");
  EventId e = builder.add_event("e");

  BufferId buffer(const char* name, Role role = Role::kTemporary) {
    return builder.add_buffer({name, role, 64, 64});
  }
  StepId make(StreamId stream, BufferId to) {
    return builder.compute(stream, "make", {builder.write(to)});
  }
  StepId use(StreamId stream, BufferId from) {
    return builder.compute(stream, "use", {builder.read(from)});
  }
  StepId change(StreamId stream, BufferId buffer) {
    return builder.compute(stream, "change", {builder.read_write(buffer)});
  }
  Program program() const { return *builder.build(); }
  std::vector<Wait> waits() const { return *derive_waits(program(), make_order(program())); }
  std::vector<StepId> redundant() const { return find_redundant_waits(program(), waits()); }
};

RandomProgramOptions small_options(std::uint64_t seed) {
  RandomProgramOptions options;
  options.steps = 6 + static_cast<std::uint32_t>(seed % 25);
  options.streams = 1 + static_cast<std::uint32_t>(seed % 5);
  options.switches = 60;
  options.travels = 40;
  options.in_place = 30;
  options.views = 50;
  options.syncs = seed % 2 == 0 ? 0 : 25;
  options.window = 3;
  options.min_bytes = 16;
  options.max_bytes = 200;
  return options;
}

TEST(Waits, AreTheTransitiveReductionOfAllThatIsNeeded) {
  std::size_t waits_seen = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const Program program = random_program(seed, small_options(seed));
    const std::vector<StepId> order = make_order(program);
    const std::vector<Wait> waits = *derive_waits(program, order);
    const Relation needed =
        closure_of(join(find_needs(program), find_stream_order(program, order)));
    ASSERT_EQ(waits, reduction_of(program, order, needed)) << "seed " << seed;
    waits_seen += waits.size();
  }
  EXPECT_GT(waits_seen, 10'000u);
}

TEST(Waits, WithoutAnyOneOfThemSomethingNeededIsNotOrdered) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Program program = random_program(seed, small_options(seed));
    const std::vector<StepId> order = make_order(program);
    const std::vector<Wait> waits = *derive_waits(program, order);
    const Relation streams = find_stream_order(program, order);
    const Relation all = closure_of(join(streams, relation_of(program, waits)));
    for (std::size_t dropped = 0; dropped < waits.size(); ++dropped) {
      std::vector<Wait> rest = waits;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(dropped));
      ASSERT_NE(closure_of(join(streams, relation_of(program, rest))), all);
    }
  }
}

TEST(Waits, AreTheSameEachTime) {
  RandomProgramOptions options;
  options.steps = 2000;
  options.streams = 8;
  options.syncs = 5;
  const Program program = random_program(7, options);
  const std::vector<Wait> waits = *derive_waits(program, make_order(program));
  EXPECT_FALSE(waits.empty());
  EXPECT_EQ(*derive_waits(random_program(7, options), make_order(program)), waits);
}

TEST(Waits, OneStreamNeverWaits) {
  RandomProgramOptions options;
  options.streams = 1;
  options.syncs = 20;
  const Program program = random_program(1, options);
  EXPECT_THAT(*derive_waits(program, make_order(program)), IsEmpty());
}

// The write-back of a mutated input is an access where it stands: a join after it covers it, and a
// reader on another stream waits for it even without one.
TEST(Waits, AReaderWaitsForTheWriteBackOfAMutatedInput) {
  Draft draft;
  const BufferId x = draft.buffer("x", Role::kInput);
  const BufferId fresh = draft.buffer("fresh");
  draft.builder.compute(draft.a, "add", {draft.builder.read(x), draft.builder.write(fresh)});
  const StepId back =
      draft.builder.copy(draft.a, draft.builder.whole(x), draft.builder.whole(fresh));
  const StepId tail = draft.use(draft.d, x);
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{tail, back}));
}

TEST(Waits, AJoinAfterAWriteBackCoversIt) {
  Draft draft;
  const BufferId x = draft.buffer("x", Role::kInput);
  draft.change(draft.a, x);
  const StepId record = draft.builder.record_event(draft.a, draft.e);
  const StepId wait = draft.builder.wait_event(draft.d, draft.e);
  draft.use(draft.d, x);
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{wait, record}));
}

TEST(Waits, AChangeWaitsForEarlierReadersOnOtherStreams) {
  Draft draft;
  const BufferId t = draft.buffer("t", Role::kInput);
  const StepId on_a = draft.use(draft.a, t);
  const StepId on_b = draft.use(draft.b, t);
  const StepId change = draft.change(draft.d, t);
  const StepId later = draft.use(draft.a, t);
  EXPECT_THAT(draft.waits(),
              ElementsAre(Wait{change, on_a}, Wait{change, on_b}, Wait{later, change}));
}

TEST(Waits, OfLongReaderListsOnlyTheLastOfEachStreamIsWaitedFor) {
  Draft draft;
  const BufferId t = draft.buffer("t", Role::kInput);
  StepId last{};
  for (int i = 0; i < 100; ++i) last = draft.use(draft.a, t);
  const StepId change = draft.change(draft.d, t);
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{change, last}));
}

TEST(Waits, TheLastRecordOfAnEventWins) {
  Draft draft;
  const BufferId x = draft.buffer("x");
  draft.make(draft.a, x);
  draft.builder.record_event(draft.a, draft.e);
  const StepId again = draft.builder.record_event(draft.b, draft.e);
  const StepId wait = draft.builder.wait_event(draft.c, draft.e);
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{wait, again}));
}

TEST(Waits, ASecondRecordWithoutWorkBetweenStillCoversTheFirst) {
  Draft draft;
  const EventId e2 = draft.builder.add_event("e2");
  const BufferId x = draft.buffer("x");
  draft.make(draft.a, x);
  draft.builder.record_event(draft.a, draft.e);
  const StepId second = draft.builder.record_event(draft.a, e2);
  const StepId wait = draft.builder.wait_event(draft.b, e2);
  draft.use(draft.b, x);
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{wait, second}));
}

TEST(Waits, ARecordBindsAtItsPlaceNotAtTheWait) {
  Draft draft;
  const BufferId x = draft.buffer("x");
  const BufferId y = draft.buffer("y");
  draft.make(draft.a, x);
  const StepId record = draft.builder.record_event(draft.a, draft.e);
  draft.make(draft.a, y);
  const StepId wait = draft.builder.wait_event(draft.b, draft.e);
  draft.use(draft.b, x);
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{wait, record}));
}

TEST(Waits, SyncsWithoutAnyWorkAreKept) {
  Draft draft;
  const StepId record = draft.builder.record_event(draft.a, draft.e);
  const StepId wait = draft.builder.wait_event(draft.b, draft.e);
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{wait, record}));
  EXPECT_THAT(draft.redundant(), IsEmpty());
}

TEST(Waits, ASynchronizeHoldsBackLaterWorkOfEveryStreamOnly) {
  Draft draft;
  const BufferId x = draft.buffer("x");
  const BufferId y = draft.buffer("y");
  const BufferId z = draft.buffer("z");
  draft.make(draft.a, x);
  draft.make(draft.b, y);  // not covered: stream A is synchronized
  const StepId sync = draft.builder.synchronize(draft.a);
  const StepId on_b = draft.make(draft.b, z);
  const StepId on_c = draft.use(draft.c, x);
  draft.use(draft.c, x);
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{on_b, sync}, Wait{on_c, sync}));
}

TEST(Waits, ASynchronizeOfAnEventHoldsBackLaterWorkByWhatTheEventCovers) {
  Draft draft;
  const StreamId host = draft.builder.add_stream("host", StreamOrigin::kUserSynchronised);
  draft.make(draft.a, draft.buffer("x"));
  const StepId record = draft.builder.record_event(draft.a, draft.e);
  draft.make(draft.a, draft.buffer("later"));  // not covered
  const StepId wait{index_of(record) + 2};
  const StepId sync = draft.builder.synchronize_event(host, draft.e);
  const StepId on_a = draft.make(draft.a, draft.buffer("y"));
  const StepId on_b = draft.make(draft.b, draft.buffer("z"));
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{wait, record}, Wait{on_a, sync}, Wait{on_b, sync}));
}

TEST(Waits, ASynchronizeOfTheDeviceHoldsBackLaterWorkByAllThereWas) {
  Draft draft;
  const BufferId x = draft.buffer("x");
  const StepId on_a = draft.make(draft.a, x);
  const StepId on_c = draft.make(draft.c, draft.buffer("y"));
  const StepId sync = draft.builder.synchronize_device();
  const StepId first{index_of(on_c) + 1};  // one a stream: D, A, B, C
  const StepId last = draft.use(draft.b, x);
  ASSERT_EQ(index_of(sync), index_of(first) + 3);
  const Program program = draft.program();
  const std::vector<StepId> order = make_order(program);
  const Relation before =
      closure_of(join(find_stream_order(program, order), relation_of(program, draft.waits())));
  for (const StepId work : {on_a, on_c}) EXPECT_TRUE(before[index_of(work)][index_of(last)]);
}

TEST(Waits, AWaitForAnEventThatWasNeverRecordedWaitsForNothingAndIsRedundant) {
  Draft draft;
  draft.builder.add_stream("users", StreamOrigin::kUserSynchronised);
  draft.make(draft.a, draft.buffer("x"));
  const StepId wait = draft.builder.wait_event(draft.b, draft.e);
  EXPECT_THAT(draft.waits(), IsEmpty());
  EXPECT_THAT(draft.redundant(), ElementsAre(wait));
}

TEST(Waits, AWaitForWhatIsKnownIsRedundant) {
  Draft draft;
  const BufferId x = draft.buffer("x");
  draft.make(draft.a, x);
  draft.builder.record_event(draft.a, draft.e);
  const StepId own = draft.builder.wait_event(draft.a, draft.e);
  draft.builder.wait_event(draft.b, draft.e);
  const StepId again = draft.builder.wait_event(draft.b, draft.e);
  EXPECT_THAT(draft.redundant(), ElementsAre(own, again));
}

TEST(Waits, DisjointColumnsOnTwoStreamsDoNotWait) {
  Draft draft;
  const BufferId x = draft.builder.add_buffer({"x", Role::kInput, 4096, 64});
  const View left{x, 0, 4, {{16, 256}, {32, 4}}};
  const View right{x, 128, 4, {{16, 256}, {32, 4}}};
  const StepId on_a = draft.builder.compute(draft.a, "left", {{AccessMode::kWrite, left}});
  draft.builder.compute(draft.b, "right", {{AccessMode::kWrite, right}});
  const View middle{x, 124, 4, {{16, 256}, {1, 4}}};
  const StepId on_b = draft.builder.compute(draft.b, "middle", {{AccessMode::kWrite, middle}});
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{on_b, on_a}));
}

TEST(Waits, WhatCannotBeDecidedIsOrdered) {
  Draft draft;
  const BufferId x = draft.builder.add_buffer({"x", Role::kInput, std::uint64_t{1} << 40, 64});
  const View one{x, 0, 1, {{99, 1'000'003}, {97, 1'000'033}, {95, 1'000'037}}};
  const View other{x, 777, 1, {{89, 1'000'039}, {87, 1'000'081}, {85, 1'000'099}}};
  ASSERT_EQ(find_overlap(make_bytes(one), make_bytes(other)), Overlap::kUnknown);
  const StepId first = draft.builder.compute(draft.a, "one", {{AccessMode::kWrite, one}});
  const StepId second = draft.builder.compute(draft.b, "other", {{AccessMode::kRead, other}});
  EXPECT_THAT(draft.waits(), ElementsAre(Wait{second, first}));
}

TEST(Waits, ExitsAreTheEndsOfSideStreamsThatNothingWaitsFor) {
  Draft draft;
  const BufferId x = draft.buffer("x");
  const BufferId y = draft.buffer("y");
  draft.make(draft.a, x);
  draft.use(draft.b, x);
  const StepId end = draft.use(draft.b, x);
  draft.make(draft.c, y);
  draft.use(draft.d, y);
  const Program program = draft.program();
  EXPECT_THAT(find_exits(program, make_order(program), draft.waits()), ElementsAre(end));
}

TEST(Waits, EveryStepComesBeforeAnExitOrTheEndOfTheAmbientStream) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Program program = random_program(seed, small_options(seed));
    const std::vector<StepId> order = make_order(program);
    const std::vector<Wait> waits = *derive_waits(program, order);
    const Relation before =
        closure_of(join(find_stream_order(program, order), relation_of(program, waits)));
    std::vector<StepId> ends = find_exits(program, order, waits);
    for (const StepId exit : ends) {
      for (const StepId other : ends) ASSERT_FALSE(before[index_of(exit)][index_of(other)]);
    }
    for (const StepId step : order) {
      const bool ambient = program.step(step).stream == kAmbient;
      const auto covered = [&](StepId end) {
        return end == step || before[index_of(step)][index_of(end)];
      };
      bool found = ambient || std::any_of(ends.begin(), ends.end(), covered);
      for (const StepId end : order) found |= program.step(end).stream == kAmbient && covered(end);
      ASSERT_TRUE(found) << "seed " << seed << ", step " << index_of(step);
    }
  }
}

}  // namespace
}  // namespace anabranch
