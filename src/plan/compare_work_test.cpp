// SPDX-License-Identifier: Apache-2.0
// Programs whose views lie across each other are refused after a stated amount of work; those that
// models have, by the thousand, are not.
#include "plan/compare_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/random_program.h"

namespace anabranch {
namespace {

// Eight dims without a common measure, so that only a search tells two of them apart.
View scattered_view(RandomNumbers& random, BufferId buffer) {
  View view{.buffer = buffer, .offset_bytes = random.below(100'000), .item_bytes = 1};
  for (std::uint64_t dim = 0; dim < 8; ++dim) {
    const std::uint64_t stride = 2 + random.below(1000) * (1 + 7 * dim * dim);
    view.dims.push_back({2 + random.below(2), static_cast<std::int64_t>(stride)});
  }
  return view;
}

Program scattered_program(std::uint32_t steps, StreamOrigin origin = StreamOrigin::kPlaced) {
  RandomNumbers random(1);
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side", origin);
  const BufferId x = builder.add_buffer({"x", Role::kOutput, std::uint64_t{1} << 30});
  for (std::uint32_t i = 0; i < steps; ++i) {
    builder.compute(side, "scatter", {{AccessMode::kWrite, scattered_view(random, x)}});
  }
  return *builder.build();
}

PlanParts parts_in_program_order(const Program& program) {
  PlanParts parts;
  parts.order.resize(program.steps().size());
  for (std::uint32_t i = 0; i < parts.order.size(); ++i) parts.order[i] = StepId{i};
  parts.arena.offsets.assign(program.buffers().size(), kNotInArena);
  return parts;
}

TEST(CompareWork, EndsTheCheckOfViewsThatLieAcrossEachOther) {
  const Program program = scattered_program(500);
  const Status status = check_plan(program, parts_in_program_order(program));
  EXPECT_EQ(status.code(), StatusCode::kTooManyComparisons);
  EXPECT_THAT(status.message(), testing::HasSubstr("check: the views of buffer 0 'x' lie across"));
  const auto plan = make_plan_from_parts(program, parts_in_program_order(program));
  EXPECT_EQ(plan.error().code(), StatusCode::kTooManyComparisons);
}

TEST(CompareWork, EndsWhateverElseComparesViews) {
  const Program program = scattered_program(500);
  EXPECT_EQ(make_plan(program).error().code(), StatusCode::kTooManyComparisons);
  EXPECT_EQ(find_regions(program).error().code(), StatusCode::kTooManyComparisons);
  const Program users = scattered_program(500, StreamOrigin::kUserSynchronised);
  EXPECT_EQ(find_reports(users).error().code(), StatusCode::kTooManyComparisons);
}

TEST(CompareWork, LeavesProgramsWithSomeOfThemAlone) {
  const Program program = scattered_program(50);
  EXPECT_TRUE(find_races(program, parts_in_program_order(program))->empty());
  EXPECT_TRUE(make_plan(program).ok());
}

// Each row and each column of a matrix, on streams in turn.
TEST(CompareWork, LeavesThousandsOfRowsAndColumnsAlone) {
  constexpr std::uint64_t kSide = 2000;
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId columns = builder.add_buffer({"columns", Role::kOutput, kSide * kSide});
  const BufferId rows = builder.add_buffer({"rows", Role::kOutput, kSide * kSide});
  for (std::uint64_t i = 0; i < kSide; ++i) {
    const View column{columns, i, 1, {{kSide, static_cast<std::int64_t>(kSide)}}};
    const View row{rows, i * kSide, kSide};
    builder.compute(i % 2 == 0 ? kAmbient : side, "f",
                    {{AccessMode::kWrite, column}, {AccessMode::kWrite, row}});
  }
  const Result<Plan> plan = make_plan(*builder.build());
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  EXPECT_TRUE(plan->waits().empty());
}

TEST(CompareWork, IsCountedAndNotTimed) {
  const Program program = scattered_program(3);
  CompareWork work(program);
  EXPECT_TRUE(work.spend(kMaxComparisons + 3 * kMaxComparisonsPerAccess));
  EXPECT_FALSE(work.exhausted());
  work.enter(BufferId{0});
  EXPECT_FALSE(work.spend(1));
  EXPECT_TRUE(work.exhausted());
  EXPECT_THAT(work.refusal("check").message(), testing::HasSubstr("67109632 comparisons"));
}

}  // namespace
}  // namespace anabranch
