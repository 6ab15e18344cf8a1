// SPDX-License-Identifier: Apache-2.0
// Random programs of the user's streams, correct ones and the same less one sync, against every
// pair of their steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "plan/random_program.h"
#include "plan/reports_oracle.h"

namespace anabranch {
namespace {

using Race = ReportsOracle::Race;

constexpr std::uint32_t kPlaced = 1;  // streams: D, one placed, three of the user's
constexpr std::uint32_t kStreams = 5;
constexpr std::uint32_t kInputs = 2, kBuffers = 7, kEvents = 60;
constexpr std::uint64_t kBytes = 96;

bool is_sync(const Step& step) {
  return step.kind == StepKind::kRecordEvent || step.kind == StepKind::kWaitEvent ||
         step.kind == StepKind::kSynchronize;
}

Program build(const std::vector<Step>& steps) {
  ProgramBuilder builder;
  for (std::uint32_t i = 1; i < kStreams; ++i) {
    builder.add_stream("s" + std::to_string(i),
                       i == kPlaced ? StreamOrigin::kPlaced : StreamOrigin::kUserSynchronised);
  }
  for (std::uint32_t i = 0; i < kEvents; ++i) builder.add_event("e");
  for (std::uint32_t i = 0; i < kBuffers; ++i) {
    builder.add_buffer(
        {"b" + std::to_string(i), i < kInputs ? Role::kInput : Role::kOutput, kBytes});
  }
  for (const Step& step : steps) builder.add_step(step);
  const Result<Program> program = builder.build();
  if (!program) ADD_FAILURE() << program.error().message();
  return *program;
}

// Adds steps and, before each, the syncs without which it would race.
class Writer {
 public:
  explicit Writer(std::uint64_t seed) : random_(seed) {}

  std::vector<Step> write() {
    const std::uint64_t count = 4 + random_.below(10);
    for (std::uint64_t i = 0; i < count; ++i) {
      add_work();
      if (random_.chance(15)) add_any_sync();
    }
    join_all();
    return std::move(steps_);
  }

 private:
  StreamId any_stream() { return StreamId{static_cast<std::uint32_t>(random_.below(kStreams))}; }
  EventId any_event() {
    if (next_event_ < kEvents && random_.chance(70)) return EventId{next_event_++};
    return EventId{static_cast<std::uint32_t>(random_.below(std::max(next_event_, 1u)))};
  }
  Access any_access();
  void add_work();
  void order(StreamId from, const Step& to);
  void join(StreamId to, StreamId from);
  void add_any_sync();
  void join_all();

  RandomNumbers random_;
  std::uint32_t next_event_ = 0;
  std::vector<Step> steps_;
  std::vector<std::uint32_t> written_;  // outputs whose every byte was written
};

Access Writer::any_access() {
  const auto buffer = static_cast<std::uint32_t>(random_.below(kBuffers));
  const bool readable =
      buffer < kInputs || std::count(written_.begin(), written_.end(), buffer) > 0;
  if (!readable) {
    written_.push_back(buffer);
    return {AccessMode::kWrite, {BufferId{buffer}, 0, kBytes, {}}};
  }
  const AccessMode mode = random_.chance(60)   ? AccessMode::kRead
                          : random_.chance(50) ? AccessMode::kWrite
                                               : AccessMode::kReadWrite;
  if (random_.chance(50)) return {mode, {BufferId{buffer}, 0, kBytes, {}}};
  return {mode, random_view(random_, BufferId{buffer}, kBytes)};
}

void Writer::add_work() {
  Step step{.kind = random_.chance(15) ? StepKind::kHost : StepKind::kCompute,
            .stream = any_stream(),
            .name = "work"};
  for (std::uint64_t left = 1 + random_.below(3); left > 0; --left) {
    const Access access = any_access();
    const auto same = [&](const Access& other) { return other.view.buffer == access.view.buffer; };
    if (std::none_of(step.accesses.begin(), step.accesses.end(), same)) {
      step.accesses.push_back(access);
    }
  }
  for (;;) {  // each turn orders the step after all earlier work of one more stream
    std::vector<Step> with = steps_;
    with.push_back(step);
    const Program program = build(with);
    const ReportsOracle oracle(program);
    const std::size_t last = with.size();
    const auto ended = oracle.ended_before();
    std::size_t first = last;
    while (first > 0 &&
           (ended[last][first - 1] || oracle.conflict(first - 1, last) == Race::kNone)) {
      --first;
    }
    if (first == 0) break;
    order(first == 1 ? kAmbient : steps_[first - 2].stream, step);
  }
  steps_.push_back(std::move(step));
}

void Writer::order(StreamId from, const Step& to) {
  const bool is_callers = to.kind == StepKind::kHost && index_of(to.stream) > kPlaced;
  if (is_callers || random_.chance(15)) {
    steps_.push_back({.kind = StepKind::kSynchronize, .stream = from, .name = "sync"});
  } else {
    join(to.stream, from);
  }
}

void Writer::join(StreamId to, StreamId from) {
  const EventId event = any_event();
  steps_.push_back(
      {.kind = StepKind::kRecordEvent, .stream = from, .name = "record", .event = event});
  steps_.push_back({.kind = StepKind::kWaitEvent, .stream = to, .name = "wait", .event = event});
}

void Writer::add_any_sync() {
  if (random_.chance(30)) {
    steps_.push_back({.kind = StepKind::kSynchronize, .stream = any_stream(), .name = "sync"});
  } else {
    join(any_stream(), any_stream());
  }
}

void Writer::join_all() {
  for (std::uint32_t stream = kPlaced + 1; stream < kStreams; ++stream) {
    join(kAmbient, StreamId{stream});
  }
}

// Compares the reports of one program with all its pairs; answers whether there was one.
class Comparison {
 public:
  explicit Comparison(const Program& program)
      : program_(program), oracle_(program), reports_(*find_reports(program)) {}

  bool run() {
    for (const SyncReport& report : reports_) {
      if (is_race(report)) expect_open(report);
      edges_by_level_[level(report)].push_back(edge(report));
    }
    expect_nothing_missing();
    expect_ends();
    expect_unrecorded();
    const Result<Plan> plan = make_plan(program_);
    const bool has_error = !edges_by_level_[0].empty();
    EXPECT_EQ(plan ? StatusCode::kOk : plan.error().code(),
              has_error ? StatusCode::kUnsynchronised : StatusCode::kOk);
    return !reports_.empty();
  }

 private:
  static bool is_race(const SyncReport& report) { return report.buffer != kNoBuffer; }
  static std::size_t level(const SyncReport& report) {
    return is_race(report) ? report.kind == ReportKind::kRaceMutation ? 0 : 1 : 2;
  }
  static std::size_t number(StepId step) { return step == kNoStep ? 0 : index_of(step) + 1; }
  static std::pair<std::size_t, std::size_t> edge(const SyncReport& report) {
    return {number(report.first), number(report.second)};
  }

  // The two do conflict, and neither the user nor an earlier report of its kind orders them.
  void expect_open(const SyncReport& report) const {
    const auto [first, second] = edge(report);
    const Race race = oracle_.conflict(first, second);
    EXPECT_EQ(report.kind,
              race == Race::kMutation ? ReportKind::kRaceMutation : ReportKind::kRaceFlow);
    EXPECT_NE(race, Race::kNone);
    EXPECT_EQ(report.missing, (Wait{report.second, report.first}));
    ReportsOracle::Edges others;
    for (const SyncReport& other : reports_) {
      if (is_race(other) && &other != &report && level(other) <= level(report)) {
        others.push_back(edge(other));
      }
    }
    EXPECT_FALSE(oracle_.ended_before(others)[second][first]);
  }

  // With the edges that were reported nothing is left open; and errors mend errors alone.
  void expect_nothing_missing() const {
    ReportsOracle::Edges edges;
    for (std::size_t level = 0; level < 2; ++level) {
      edges.insert(edges.end(), edges_by_level_[level].begin(), edges_by_level_[level].end());
      const auto ended = oracle_.ended_before(edges);
      for (std::size_t b = 1; b < oracle_.exit(); ++b) {
        for (std::size_t a = 0; a < b; ++a) {
          const Race race = oracle_.conflict(a, b);
          if (race == Race::kNone || (level == 0 && race == Race::kFlow)) continue;
          EXPECT_TRUE(ended[b][a]) << "step " << a << " and step " << b;
        }
      }
    }
  }

  void expect_ends() const {
    ReportsOracle::Edges edges = edges_by_level_[0];
    edges.insert(edges.end(), edges_by_level_[1].begin(), edges_by_level_[1].end());
    const auto ended = oracle_.ended_before(edges);
    std::vector<std::size_t> expected;
    const std::vector<std::size_t> ends = oracle_.ends_of_streams();
    for (const std::size_t end : ends) {
      const auto after = [&](std::size_t other) { return ended[other][end]; };
      if (after(oracle_.exit())) continue;
      if (std::none_of(ends.begin(), ends.end(), after)) expected.push_back(end);
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_THAT(steps_of(ReportKind::kUnjoined, &SyncReport::first),
                testing::ElementsAreArray(expected));
  }

  void expect_unrecorded() const {
    std::vector<std::size_t> expected;
    for (std::size_t step = 1; step < oracle_.exit(); ++step) {
      if (oracle_.is_unrecorded(step)) expected.push_back(step);
    }
    EXPECT_THAT(steps_of(ReportKind::kUnrecorded, &SyncReport::second),
                testing::ElementsAreArray(expected));
  }
  std::vector<std::size_t> steps_of(ReportKind kind, StepId SyncReport::*which) const {
    std::vector<std::size_t> steps;
    for (const SyncReport& report : reports_) {
      if (report.kind == kind) steps.push_back(number(report.*which));
    }
    return steps;
  }

  const Program& program_;
  ReportsOracle oracle_;
  std::vector<SyncReport> reports_;
  ReportsOracle::Edges edges_by_level_[3];
};

bool compare(const std::vector<Step>& steps) {
  const Program program = build(steps);
  return Comparison(program).run();
}

TEST(RandomReports, CorrectProgramsHaveNoneAndALostSyncExactlyWhatItBreaks) {
  std::size_t broken = 0, harmless = 0;
  for (std::uint64_t seed = 0; seed < 2000 && !testing::Test::HasFailure(); ++seed) {
    const std::vector<Step> steps = Writer(seed).write();
    ASSERT_FALSE(compare(steps)) << "seed " << seed;
    for (std::size_t lost = 0; lost < steps.size(); ++lost) {
      if (!is_sync(steps[lost])) continue;
      std::vector<Step> rest = steps;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(lost));
      (compare(rest) ? broken : harmless) += 1;
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " without step " << lost;
    }
  }
  EXPECT_GT(broken, 10'000u);
  EXPECT_GT(harmless, 5'000u);
}

TEST(RandomReports, ProgramsWithoutMostOfTheirSyncsHaveWhatEveryPairSays) {
  std::size_t broken = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    std::vector<Step> steps = Writer(seed).write();
    RandomNumbers random(seed);
    const auto is_lost = [&](const Step& step) { return is_sync(step) && random.chance(60); };
    steps.erase(std::remove_if(steps.begin(), steps.end(), is_lost), steps.end());
    broken += compare(steps) ? 1 : 0;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(broken, 1'500u);
}

}  // namespace
}  // namespace anabranch
