// SPDX-License-Identifier: Apache-2.0
#include "anabranch/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

#include "plan/random_program.h"

namespace anabranch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// D: fork; A: left; B: right; D: join.
Program diamond() {
  ProgramBuilder builder;
  const StreamId a = builder.add_stream("A");
  const StreamId b = builder.add_stream("B");
  const BufferId x = builder.add_buffer({"x", Role::kInput, 256, 64});
  const BufferId h = builder.add_buffer({"h", Role::kTemporary, 256, 64});
  const BufferId l = builder.add_buffer({"l", Role::kTemporary, 100, 64});
  const BufferId r = builder.add_buffer({"r", Role::kTemporary, 256, 64});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 256, 64});
  builder.compute(kAmbient, "fork", {builder.read(x), builder.write(h)});
  builder.compute(a, "left", {builder.read(h), builder.write(l)});
  builder.compute(b, "right", {builder.read(h), builder.write(r)});
  builder.compute(kAmbient, "join", {builder.read(l), builder.read(r), builder.write(y)});
  return *builder.build();
}

PlanParts parts_of(const Plan& plan) {
  return {{plan.order().begin(), plan.order().end()},
          {plan.waits().begin(), plan.waits().end()},
          plan.arena()};
}

TEST(Plan, HasOrderWaitsSlotsAndExits) {
  const Result<Plan> plan = make_plan(diamond());
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  EXPECT_THAT(plan->order(), ElementsAre(StepId{0}, StepId{1}, StepId{2}, StepId{3}));
  EXPECT_THAT(plan->waits(), ElementsAre(Wait{StepId{1}, StepId{0}}, Wait{StepId{2}, StepId{0}},
                                         Wait{StepId{3}, StepId{1}}, Wait{StepId{3}, StepId{2}}));
  ASSERT_EQ(plan->slots().size(), 2u);
  EXPECT_EQ(plan->slots()[0].buffer, BufferId{0});
  EXPECT_EQ(plan->slots()[1].buffer, BufferId{4});
  EXPECT_THAT(plan->exits(), IsEmpty());
  EXPECT_THAT(plan->redundant_waits(), IsEmpty());
}

TEST(Plan, OfAnEmptyProgramIsEmpty) {
  const Result<Plan> plan = make_plan(*ProgramBuilder().build());
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan->order(), IsEmpty());
  EXPECT_EQ(plan->arena().size_bytes, 0u);
}

TEST(Plan, OfEveryRandomProgramPassesItsOwnCheckerAndIsTheSameEachTime) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    RandomProgramOptions options;
    options.steps = 150;
    options.streams = 1 + static_cast<std::uint32_t>(seed % 8);
    options.syncs = seed % 2 == 0 ? 0 : 10;
    const Result<Plan> plan = make_plan(random_program(seed, options));
    ASSERT_TRUE(plan.ok()) << "seed " << seed << ": " << plan.error().message();
    const Result<Plan> again = make_plan(random_program(seed, options));
    ASSERT_EQ(dump_plan(*plan), dump_plan(*again)) << "seed " << seed;
  }
}

TEST(Plan, OutlivesItsProgramAndBuilder) {
  const Plan plan = *make_plan(diamond());
  EXPECT_EQ(plan.program().step(StepId{3}).name, "join");
}

TEST(PlanFromParts, TakesThePartsOfAPlanItMadeItself) {
  const Plan plan = *make_plan(diamond());
  const Result<Plan> copy = make_plan_from_parts(plan.program(), parts_of(plan));
  ASSERT_TRUE(copy.ok()) << copy.error().message();
  EXPECT_EQ(dump_plan(*copy), dump_plan(plan));
}

TEST(PlanFromParts, TakesMoreWaitsThanNeeded) {
  const Plan plan = *make_plan(diamond());
  PlanParts parts = parts_of(plan);
  parts.waits.insert(parts.waits.begin() + 1, {StepId{2}, StepId{0}});
  parts.waits[2] = {StepId{2}, StepId{1}};
  const Result<Plan> slower = make_plan_from_parts(plan.program(), std::move(parts));
  ASSERT_TRUE(slower.ok()) << slower.error().message();
  EXPECT_EQ(slower->waits().size(), 5u);
}

TEST(PlanFromParts, TakesAnotherOrderThatKeepsWhatIsNeeded) {
  const Plan plan = *make_plan(diamond());
  PlanParts parts = parts_of(plan);
  std::swap(parts.order[1], parts.order[2]);
  std::swap(parts.waits[0], parts.waits[1]);
  const Result<Plan> other = make_plan_from_parts(plan.program(), std::move(parts));
  EXPECT_TRUE(other.ok()) << other.error().message();
}

TEST(PlanFromParts, RefusesAPlanWithARace) {
  const Plan plan = *make_plan(diamond());
  for (std::size_t i = 0; i < plan.waits().size(); ++i) {
    PlanParts parts = parts_of(plan);
    parts.waits.erase(parts.waits.begin() + static_cast<std::ptrdiff_t>(i));
    const Result<Plan> raced = make_plan_from_parts(plan.program(), std::move(parts));
    ASSERT_FALSE(raced.ok()) << "without wait " << i;
    EXPECT_EQ(raced.error().code(), StatusCode::kRace);
  }
}

struct Refusal {
  const char* name;
  std::function<void(PlanParts&)> spoil;
  const char* message;
};

std::ostream& operator<<(std::ostream& out, const Refusal& refusal) { return out << refusal.name; }

class PlanFromPartsRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(PlanFromPartsRefuses, AndNamesBothValues) {
  const Plan plan = *make_plan(diamond());
  PlanParts parts = parts_of(plan);
  GetParam().spoil(parts);
  const Result<Plan> refused = make_plan_from_parts(plan.program(), std::move(parts));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), StatusCode::kPlanInvalid);
  EXPECT_THAT(refused.error().message(), HasSubstr(GetParam().message));
}

const Refusal kRefusals[] = {
    {"AStepLeftOut", [](PlanParts& p) { p.order.pop_back(); },
     "the order has 3 steps, the program 4"},
    {"AStepNamedTwice", [](PlanParts& p) { p.order[3] = p.order[1]; },
     "names step 1 at places 1 and 3"},
    {"AnUnknownStep", [](PlanParts& p) { p.order[3] = StepId{9}; },
     "place 3 of the order names step 9, the program has 4"},
    {"AWaitForAnUnknownStep", [](PlanParts& p) { p.waits[0].on = StepId{7}; },
     "step 1 waits for step 7, the program has 4"},
    {"AnUnknownStepThatWaits", [](PlanParts& p) { p.waits[0].step = StepId{8}; },
     "step 8 waits for step 0, the program has 4"},
    {"AWaitOnItsOwnStream",
     [](PlanParts& p) {
       p.waits[2] = {StepId{3}, StepId{0}};
     },
     "step 3 waits for step 0 of its own stream 0"},
    {"ACycle",
     [](PlanParts& p) {
       p.waits[0] = {StepId{0}, StepId{1}};
     },
     "step 0 at place 0 waits for step 1 at place 1"},
    {"WaitsOutOfOrder", [](PlanParts& p) { std::swap(p.waits[2], p.waits[3]); },
     "wait 3 (step 3 for step 1) comes after wait 2 (step 3 for step 2)"},
    {"AWaitGivenTwice", [](PlanParts& p) { p.waits[1] = p.waits[0]; }, "wait 1 (step 1"},
    {"TooFewOffsets", [](PlanParts& p) { p.arena.offsets.pop_back(); },
     "the arena has 4 offsets, the program 5"},
    {"ATemporaryWithoutAPlace", [](PlanParts& p) { p.arena.offsets[2] = kNotInArena; },
     "temporary 2 'l' of 100 bytes has no place"},
    {"ACallersBufferInTheArena", [](PlanParts& p) { p.arena.offsets[0] = 0; },
     "buffer 0 'x' of the caller is at arena offset 0"},
    {"ATemporaryThatLeavesTheArena", [](PlanParts& p) { p.arena.offsets[2] = p.arena.size_bytes; },
     "temporary 2 'l' of 100 bytes at offset"},
    {"AnOffsetThatWrapsAround", [](PlanParts& p) { p.arena.offsets[2] = kNotInArena - 63; },
     "temporary 2 'l' of 100 bytes at offset"},
    {"AMisalignedTemporary",
     [](PlanParts& p) {
       p.arena.offsets[2] += 4;
       p.arena.size_bytes += 4;
     },
     "no multiple of its alignment 64"},
    {"AnArenaWithoutEnd", [](PlanParts& p) { p.arena.size_bytes = ~std::uint64_t{0}; },
     "the arena has 18446744073709551615 bytes, the limit is"},
};

INSTANTIATE_TEST_SUITE_P(, PlanFromPartsRefuses, testing::ValuesIn(kRefusals),
                         [](const auto& refusal) { return std::string(refusal.param.name); });

TEST(DumpPlan, ShowsStreamsSideBySideWithWaitsSlotsAndMemory) {
  EXPECT_EQ(dump_plan(*make_plan(diamond())),
            "plan: 4 steps, 3 streams, 4 waits\n"
            "  step  ambient  A     B      waits for\n"
            "     0  fork\n"
            "     1           left         0\n"
            "     2                 right  0\n"
            "     3  join                  1, 2\n"
            "slots: 2\n"
            "     0  input              256 bytes  x\n"
            "     1  output             256 bytes  y\n"
            "arena: 612 bytes (live at once 612, without sharing 640)\n"
            "  at            0           256 bytes  h\n"
            "  at          256           256 bytes  r\n"
            "  at          512           100 bytes  l\n");
}

TEST(DumpPlan, NamesTheStreamsThatTheUserSynchronises) {
  ProgramBuilder builder;
  builder.add_stream("A", StreamOrigin::kUserSynchronised);
  builder.add_stream("side");
  builder.add_stream("B", StreamOrigin::kUserSynchronised);
  EXPECT_THAT(dump_plan(*make_plan(*builder.build())),
              HasSubstr("synchronised by the user: A B\n"));
}

TEST(DumpPlan, PutsManyStreamsIntoOneColumn) {
  ProgramBuilder builder;
  const BufferId x = builder.add_buffer({"x", Role::kInput, 64, 64});
  StreamId last{};
  for (const char* name : {"s1", "s2", "s3", "s4", "s5", "s6"}) last = builder.add_stream(name);
  builder.compute(last, "use", {builder.read(x)});
  const std::string text = dump_plan(*make_plan(*builder.build()));
  EXPECT_THAT(text, HasSubstr("     0  s6: use\n"));
  EXPECT_THAT(text, HasSubstr("end waits for: 0\n"));
}

// Every name of it would clear a terminal, ring its bell and begin a line of its own.
ProgramBuilder hostile_builder(StreamOrigin origin, std::uint32_t more_streams = 0) {
  const std::string evil = "a\x1b[2J\x07\nno race\r\xc2\x9b\xff";
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("S" + evil, origin, -1);
  while (more_streams-- > 0) builder.add_stream(std::to_string(more_streams) + evil);
  const EventId event = builder.add_event("E" + evil);
  const BufferId h = builder.add_buffer({"h" + evil, Role::kTemporary, 64});
  const BufferId y = builder.add_buffer({"y" + evil, Role::kOutput, 64});
  builder.add_step({.name = "f" + evil, .source = "m" + evil, .accesses = {builder.write(h)}});
  builder.record_event(kAmbient, event);
  builder.wait_event(side, event);
  builder.add_step({.stream = side,
                    .name = "g" + evil,
                    .source = "m" + evil,
                    .accesses = {builder.read(h), builder.write(y)}});
  return builder;
}

void expect_printable(const std::string& text) {
  EXPECT_FALSE(text.empty());
  for (const char byte : text) {
    EXPECT_TRUE(byte == '\n' || (byte >= ' ' && byte <= '~')) << text;
  }
  EXPECT_THAT(text, testing::Not(HasSubstr("\nno race"))) << text;
}

TEST(NamesOfAPlan, ReachNoTextRaw) {
  for (const std::uint32_t more_streams : {0u, 8u}) {
    const Program program = *hostile_builder(StreamOrigin::kPlaced, more_streams).build();
    const Plan plan = *make_plan(program);
    expect_printable(dump_plan(plan));
    PlanParts parts = parts_of(plan);
    parts.waits.clear();
    expect_printable(check_plan(program, parts).message());
    parts = parts_of(plan);
    parts.arena.offsets[0] = 1;
    parts.arena.size_bytes += 64;
    expect_printable(make_plan_from_parts(program, parts).error().message());
  }
}

TEST(NamesOfAPlan, ReachNoReportRaw) {
  ProgramBuilder builder = hostile_builder(StreamOrigin::kUserSynchronised);
  builder.add_step({.name = "late\n", .source = "m\n", .accesses = {builder.write(BufferId{1})}});
  builder.wait_event(kAmbient, builder.add_event("never\n"));
  const std::vector<SyncReport> reports = *find_reports(*builder.build());
  EXPECT_GE(reports.size(), 2u);
  for (const SyncReport& report : reports) {
    expect_printable(report.message);
    EXPECT_THAT(report.message, testing::Not(HasSubstr("\n")));
  }
}

TEST(NamesOfAPlan, ReachNoErrorOfTheBuilderRaw) {
  ProgramBuilder builder = hostile_builder(StreamOrigin::kPlaced);
  builder.add_stream("twice\n");
  builder.add_stream("twice\n");
  builder.add_buffer({.name = "b\n", .alignment = 3});
  const BufferId temporary = builder.add_buffer({.name = "t\n", .size_bytes = 8});
  builder.add_step({.name = "r\n", .source = "m\n", .accesses = {builder.read(temporary)}});
  const std::string message = builder.build().error().message();
  expect_printable(message);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
}

}  // namespace
}  // namespace anabranch
