// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "anabranch/plan.h"
#include "plan/check_overlap.h"
#include "plan/overlap.h"
#include "plan/random_program.h"
#include "plan/waits_oracle.h"

namespace anabranch {
namespace {

using ::testing::HasSubstr;

// A program under construction and a plan for it in program order, without waits or arena.
class Case {
 public:
  explicit Case(int side_streams = 1) {
    for (int i = 0; i < side_streams; ++i) {
      streams.push_back(builder.add_stream("side" + std::to_string(i)));
    }
  }
  BufferId add(std::string name, Role role = Role::kInput, std::uint64_t size = 256) {
    return builder.add_buffer({std::move(name), role, size, 1});
  }
  StepId step(StreamId stream, std::vector<Access> accesses) {
    return builder.compute(stream, "work", std::move(accesses));
  }
  Program build() {
    Result<Program> program = builder.build();
    if (!program) ADD_FAILURE() << program.error().message();
    for (std::uint32_t i = 0; i < program->steps().size(); ++i) parts.order.push_back(StepId{i});
    parts.arena.offsets.resize(program->buffers().size(), kNotInArena);
    return *program;
  }

  ProgramBuilder builder;
  std::vector<StreamId> streams{kAmbient};
  PlanParts parts;
};

void expect_race(const std::vector<Race>& races, StepId first, StepId second) {
  ASSERT_EQ(races.size(), 1u);
  EXPECT_EQ(races[0].first, first);
  EXPECT_EQ(races[0].second, second);
  EXPECT_EQ(races[0].missing, (Wait{second, first}));
}

TEST(PlanCheck, AcceptsAnEmptyPlan) {
  Case empty;
  const Program program = empty.build();
  EXPECT_TRUE(find_races(program, empty.parts)->empty());
  EXPECT_TRUE(check_plan(program, empty.parts).ok());
}

TEST(PlanCheck, ReportsEveryConflictThatNothingOrdersAndNoPairOfReads) {
  for (const AccessMode first : {AccessMode::kRead, AccessMode::kWrite, AccessMode::kReadWrite}) {
    for (const AccessMode second :
         {AccessMode::kRead, AccessMode::kWrite, AccessMode::kReadWrite}) {
      Case test;
      const View x = test.builder.whole(test.add("x"));
      const StepId a = test.step(test.streams[0], {{first, x}});
      const StepId b = test.step(test.streams[1], {{second, x}});
      const Program program = test.build();
      if (first == AccessMode::kRead && second == AccessMode::kRead) {
        EXPECT_TRUE(find_races(program, test.parts)->empty());
        continue;
      }
      expect_race(*find_races(program, test.parts), a, b);
      test.parts.waits = {{b, a}};
      EXPECT_TRUE(find_races(program, test.parts)->empty());
    }
  }
}

TEST(PlanCheck, FollowsWaitsThroughOtherStreams) {
  Case test(2);
  const BufferId x = test.add("x");
  const StepId write = test.step(test.streams[0], {test.builder.write(x)});
  const StepId relay = test.step(test.streams[1], {});
  const StepId later_relay = test.step(test.streams[1], {});
  const StepId read = test.step(test.streams[2], {test.builder.read(x)});
  const Program program = test.build();
  test.parts.waits = {{relay, write}, {read, later_relay}};
  EXPECT_TRUE(find_races(program, test.parts)->empty());
  test.parts.waits = {{later_relay, write}, {read, relay}};
  expect_race(*find_races(program, test.parts), write, read);
}

TEST(PlanCheck, SeesWhichPartsOfABufferAreShared) {
  Case test;
  const BufferId x = test.add("x");
  const View left{x, 0, 4, {{8, 32}}};    // bytes 0..4 of each row of 32
  const View right{x, 16, 4, {{8, 32}}};  // bytes 16..20
  const View middle{x, 2, 16, {{8, 32}}};
  test.step(test.streams[0], {{AccessMode::kWrite, left}});
  const StepId a = test.step(test.streams[0], {{AccessMode::kWrite, middle}});
  const StepId b = test.step(test.streams[1], {{AccessMode::kWrite, right}});
  const std::vector<Race> races = *find_races(test.build(), test.parts);
  expect_race(races, a, b);
  EXPECT_TRUE(races[0].exact);
  EXPECT_EQ(races[0].begin_byte, 16u);
  EXPECT_EQ(races[0].end_byte, 242u);
}

TEST(PlanCheck, AWriteOfOnePartDoesNotHideEarlierAccessesOfAnother) {
  Case test(2);
  const BufferId x = test.add("x");
  const StepId whole = test.step(test.streams[0], {test.builder.write(x)});
  const StepId part = test.step(test.streams[1], {{AccessMode::kWrite, {x, 0, 128, {}}}});
  const StepId other = test.step(test.streams[2], {{AccessMode::kRead, {x, 128, 128, {}}}});
  const Program program = test.build();
  test.parts.waits = {{part, whole}};
  expect_race(*find_races(program, test.parts), whole, other);
}

TEST(PlanCheck, ReportsTheOrderThatTheProgramDoesNotHave) {
  Case test;
  const BufferId x = test.add("x");
  const StepId write = test.step(kAmbient, {test.builder.write(x)});
  const StepId read = test.step(kAmbient, {test.builder.read(x)});
  const Program program = test.build();
  test.parts.order = {read, write};
  expect_race(*find_races(program, test.parts), write, read);
  EXPECT_THAT(check_plan(program, test.parts).message(), HasSubstr("move step 0 before it"));
}

TEST(PlanCheck, AWaitForAStepThatComesLaterGivesNoOrder) {
  Case test;
  const BufferId x = test.add("x");
  const StepId a = test.step(test.streams[0], {test.builder.write(x)});
  const StepId b = test.step(test.streams[1], {test.builder.read(x)});
  const Program program = test.build();
  test.parts.waits = {{a, b}, {a, a}, {b, b}};
  expect_race(*find_races(program, test.parts), a, b);
}

TEST(PlanCheck, SurvivesIdsOutsideTheProgram) {
  Case test;
  const BufferId x = test.add("x");
  const StepId a = test.step(test.streams[0], {test.builder.write(x)});
  const StepId b = test.step(test.streams[1], {test.builder.read(x)});
  const Program program = test.build();
  test.parts.order = {StepId{7}, a, a, StepId{~0u}};
  test.parts.waits = {{b, StepId{9}}, {StepId{9}, a}};
  test.parts.arena.offsets = {~std::uint64_t{0} - 1, 3, 4};
  expect_race(*find_races(program, test.parts), a, b);
}

TEST(PlanCheck, ReportsTenantsOfTheSameBytesThatMayLiveTogether) {
  Case test;
  const BufferId x = test.add("x", Role::kTemporary, 64);
  const BufferId y = test.add("y", Role::kTemporary, 64);
  const StepId write_x = test.step(test.streams[0], {test.builder.write(x)});
  const StepId read_x = test.step(test.streams[0], {test.builder.read(x)});
  const StepId write_y = test.step(test.streams[1], {test.builder.write(y)});
  const Program program = test.build();
  test.parts.arena.offsets = {0, 48};
  for (const std::vector<Wait>& waits : {std::vector<Wait>{}, {{write_y, write_x}}}) {
    test.parts.waits = waits;
    const std::vector<Race> races = *find_races(program, test.parts);
    expect_race(races, read_x, write_y);
    EXPECT_EQ(races[0].buffer, x);
    EXPECT_EQ(races[0].other_buffer, y);
    EXPECT_EQ(races[0].begin_byte, 48u);
    EXPECT_EQ(races[0].end_byte, 64u);
  }
  test.parts.waits = {{write_y, read_x}};
  EXPECT_TRUE(find_races(program, test.parts)->empty());
  test.parts.waits.clear();
  test.parts.arena.offsets = {0, 64};
  EXPECT_TRUE(find_races(program, test.parts)->empty());
}

TEST(PlanCheck, ReportsAStepThatUsesTwoTenantsOfTheSameBytes) {
  Case test;
  const BufferId x = test.add("x", Role::kTemporary, 64);
  const BufferId y = test.add("y", Role::kTemporary, 64);
  test.step(kAmbient, {test.builder.write(x)});
  const StepId both = test.step(kAmbient, {test.builder.read(x), test.builder.write(y)});
  const Program program = test.build();
  test.parts.arena.offsets = {0, 0};
  expect_race(*find_races(program, test.parts), both, both);
  EXPECT_THAT(check_plan(program, test.parts).message(), HasSubstr("different bytes"));
}

TEST(PlanCheck, AWaitEventComesAfterTheLatestRecord) {
  Case test(2);
  const EventId event = test.builder.add_event("e");
  const StepId old_record = test.builder.record_event(test.streams[0], event);
  const StepId record = test.builder.record_event(test.streams[1], event);
  const StepId wait = test.builder.wait_event(test.streams[2], event);
  const Program program = test.build();
  test.parts.waits = {{wait, old_record}};
  const std::vector<Race> races = *find_races(program, test.parts);
  expect_race(races, record, wait);
  EXPECT_EQ(races[0].buffer, kNoBuffer);
  EXPECT_THAT(check_plan(program, test.parts).message(), HasSubstr("must come after step 1"));
  test.parts.waits = {{wait, record}};
  EXPECT_TRUE(find_races(program, test.parts)->empty());
}

TEST(PlanCheck, WorkStaysOnItsSideOfRecordsAndWaits) {
  Case test;
  const EventId event = test.builder.add_event("e");
  const StepId work = test.step(kAmbient, {});
  const StepId record = test.builder.record_event(kAmbient, event);
  const StepId wait = test.builder.wait_event(kAmbient, event);
  const StepId later = test.step(kAmbient, {});
  const Program program = test.build();
  EXPECT_TRUE(find_races(program, test.parts)->empty());
  test.parts.order = {record, work, wait, later};
  expect_race(*find_races(program, test.parts), work, record);
  test.parts.order = {work, record, later, wait};
  expect_race(*find_races(program, test.parts), wait, later);
}

TEST(PlanCheck, ASynchronizeComesBeforeLaterStepsOfEveryStream) {
  Case test;
  test.step(test.streams[1], {});
  const StepId barrier = test.builder.synchronize(test.streams[0]);
  const StepId later = test.step(test.streams[1], {});
  test.step(test.streams[1], {});
  const Program program = test.build();
  expect_race(*find_races(program, test.parts), barrier, later);
  test.parts.waits = {{later, barrier}};
  EXPECT_TRUE(find_races(program, test.parts)->empty());
}

TEST(PlanCheck, AWaitForAnEventThatWasNeverRecordedDemandsNothing) {
  Case test;
  const EventId event = test.builder.add_event("e");
  test.builder.add_stream("users", StreamOrigin::kUserSynchronised);
  test.step(test.streams[0], {});
  test.builder.wait_event(test.streams[1], event);
  const Program program = test.build();
  EXPECT_TRUE(find_races(program, test.parts)->empty());
}

TEST(PlanCheck, ASynchronizeOfAnEventComesAfterItsRecordAndBeforeLaterStepsOfEveryStream) {
  Case test(2);
  const EventId event = test.builder.add_event("e");
  const StepId record = test.builder.record_event(test.streams[0], event);
  const StepId sync = test.builder.synchronize_event(test.streams[1], event);
  const StepId wait{index_of(sync) - 1};
  const StepId later = test.step(test.streams[2], {});
  const Program program = test.build();
  test.parts.waits = {{wait, record}, {later, sync}};
  EXPECT_TRUE(find_races(program, test.parts)->empty());
  test.parts.waits = {{later, sync}};
  expect_race(*find_races(program, test.parts), record, wait);
  test.parts.waits = {{wait, record}};
  expect_race(*find_races(program, test.parts), sync, later);
}

TEST(PlanCheck, ReportsAtMostTheLimitInProgramOrder) {
  Case test(4);
  const BufferId x = test.add("x");
  for (int i = 0; i < 5; ++i) test.step(test.streams[i], {test.builder.write(x)});
  const Program program = test.build();
  const std::vector<Race> races = *find_races(program, test.parts, 3);
  ASSERT_EQ(races.size(), 3u);
  EXPECT_EQ(races[0].second, StepId{1});
  EXPECT_EQ(races[1].second, StepId{2});
  EXPECT_EQ(races[2].second, StepId{3});
  EXPECT_TRUE(find_races(program, test.parts, 0)->empty());
}

TEST(PlanCheck, NamesStepsSourcesStreamsBytesAndRemedy) {
  Case test;
  const BufferId h = test.add("h", Role::kInput, 4096);
  test.builder.add_step(
      {.name = "mm", .source = "model.py:38", .accesses = {test.builder.write(h)}});
  test.builder.add_step({.stream = test.streams[1],
                         .name = "add",
                         .source = "model.py:41",
                         .accesses = {test.builder.read(h)}});
  const Program program = test.build();
  const Status status = check_plan(program, test.parts);
  EXPECT_EQ(status.code(), StatusCode::kRace);
  EXPECT_EQ(status.message(),
            "check: step 1 'add' (model.py:41, stream 'side0') reads 'h' bytes 0..4096 while step "
            "0 'mm' (model.py:38, stream '" +
                program.streams()[0] +
                "') may still write them; nothing orders the two. Remedy: let step 1 wait for "
                "step 0. [E0201]");
}

// Strides that differ by little and without a common measure: sums that come close are many, and
// hardly any two of them share more.
View hard_view(BufferId buffer, std::uint64_t offset, std::vector<std::int64_t> strides) {
  View view{buffer, offset, 1, {}};
  for (const std::int64_t stride : strides) view.dims.push_back({64, (1LL << 39) + stride});
  return view;
}

TEST(PlanCheck, ReportsAnOverlapThatCannotBeDecidedAndMarksIt) {
  Case test;
  const BufferId x = test.add("x", Role::kInput, kMaxBufferBytes);
  const View a = hard_view(x, 0, {1, 5'000'011, 700'000'001});
  const View b = hard_view(x, (20LL << 39) + 7'654'321'012, {97'003, 123'456'789, 999'999'937});
  const StepId first = test.step(test.streams[0], {{AccessMode::kWrite, a}});
  const StepId second = test.step(test.streams[1], {{AccessMode::kWrite, b}});
  const Program program = test.build();
  const std::vector<Race> races = *find_races(program, test.parts);
  expect_race(races, first, second);
  EXPECT_FALSE(races[0].exact);
  EXPECT_THAT(check_plan(program, test.parts).message(), HasSubstr("(overlap not decidable)"));
}

View random_part(RandomNumbers& random, std::uint64_t size) {
  if (random.chance(60)) return random_view(random, BufferId{}, size);
  // Any strides, also such that the view steps over itself.
  View view{BufferId{}, 0, 1 + random.below(5), {}};
  std::uint64_t room = size - view.item_bytes;
  for (std::uint64_t dims = random.below(4); dims > 0; --dims) {
    const std::uint64_t count = 1 + random.below(6);
    const std::uint64_t stride = random.below(room / count + 1);
    room -= stride * (count - 1);
    view.dims.push_back({count, static_cast<std::int64_t>(stride)});
    if (!random.chance(20)) continue;
    view.dims.back().stride_bytes = -view.dims.back().stride_bytes;
    view.offset_bytes += stride * (count - 1);
  }
  view.offset_bytes += random.below(room + 1);
  return view;
}

TEST(PlanCheckOverlap, IsThatOfTheBytesOneByOne) {
  constexpr std::uint64_t kSize = 400;
  RandomNumbers random(1);
  int shared = 0;
  for (int i = 0; i < 20'000; ++i) {
    const View a = random_part(random, kSize);
    const View b = random_part(random, kSize);
    const std::vector<bool> bytes_a = bytes_of(a, kSize);
    const std::vector<bool> bytes_b = bytes_of(b, kSize);
    bool expected = false;
    for (std::size_t k = 0; k < kSize; ++k) expected = expected || (bytes_a[k] && bytes_b[k]);
    const auto found = check::find_overlap(check::make_byte_set(a), check::make_byte_set(b));
    ASSERT_EQ(found, expected ? check::Overlap::kShared : check::Overlap::kNone) << "pair " << i;
    shared += expected ? 1 : 0;
  }
  EXPECT_GT(shared, 5'000);
  EXPECT_LT(shared, 15'000);
}

TEST(PlanCheckOverlap, EqualNormalFormsAreEqualBytes) {
  constexpr std::uint64_t kSize = 64;
  RandomNumbers random(2);
  int equal = 0;
  for (int i = 0; i < 20'000; ++i) {
    const View a = random_part(random, kSize);
    const View b = random_part(random, kSize);
    const check::ByteSet set_a = check::make_byte_set(a);
    const check::ByteSet set_b = check::make_byte_set(b);
    const std::vector<bool> bytes_a = bytes_of(a, kSize);
    const std::vector<bool> bytes_b = bytes_of(b, kSize);
    if (set_a.surely_covers(set_b)) {
      for (std::size_t k = 0; k < kSize; ++k) ASSERT_TRUE(bytes_a[k] || !bytes_b[k]);
    }
    if (set_a != set_b) continue;
    ++equal;
    ASSERT_EQ(bytes_a, bytes_b);
  }
  EXPECT_GT(equal, 20);
}

// Where the deriver of waits finds two views apart it makes no wait; were the checker less sure, a
// good plan would be refused.
TEST(PlanCheckOverlap, IsNeverLessSureThanTheDeriverOfWaits) {
  constexpr std::uint64_t kSize = std::uint64_t{1} << 24;
  RandomNumbers random(3);
  for (int i = 0; i < 20'000; ++i) {
    const View a = random_part(random, kSize);
    const View b = random_part(random, kSize);
    const auto mine = check::find_overlap(check::make_byte_set(a), check::make_byte_set(b));
    switch (find_overlap(make_bytes(a), make_bytes(b))) {
      case Overlap::kDisjoint:
        ASSERT_EQ(mine, check::Overlap::kNone) << "pair " << i;
        break;
      case Overlap::kOverlap:
        ASSERT_EQ(mine, check::Overlap::kShared) << "pair " << i;
        break;
      case Overlap::kUnknown:
        break;
    }
  }
}

}  // namespace
}  // namespace anabranch
