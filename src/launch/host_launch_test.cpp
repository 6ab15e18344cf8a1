// SPDX-License-Identifier: Apache-2.0
// What the host device adds to the promises of every device (tests/conformance).
#include "launch/host_launch.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/inside.h"
#include "device/host/team_testing.h"
#include "launch/launch_testing.h"
#include "plan/random_program.h"

namespace anabranch::host {
namespace {

using ::testing::ElementsAre;
using testing::must;
using testing::plan_of;
using testing::Regions;
using testing::ThreadTeam;

constexpr std::int32_t kOk = 0;

Device device_of(std::uint32_t lanes, host::DeviceOptions options = {}) {
  options.max_lanes = lanes;
  return host::make_device(options);
}

// One step on each of `streams` streams, the ambient one included; nothing orders them.
Plan parallel_steps(std::uint32_t streams) {
  ProgramBuilder builder;
  builder.compute(kAmbient, "step 0", {});
  for (std::uint32_t s = 1; s < streams; ++s) {
    builder.compute(builder.add_stream("side " + std::to_string(s)), "step " + std::to_string(s),
                    {});
  }
  return plan_of(builder);
}

Regions same_region(std::uint32_t steps, const Regions::Function& function) {
  Regions regions;
  for (std::uint32_t s = 0; s < steps; ++s) regions.add("step " + std::to_string(s), function);
  return regions;
}

TEST(HostLaunch, RunsLanesAtTheSameTime) {
  std::atomic<int> arrived{0};
  const Regions regions = same_region(3, [&](const RegionCall&) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
    return kOk;
  });
  const Recording recording = must(record(parallel_steps(3), device_of(3), regions.table()));
  must(launch(recording, {}));
  EXPECT_EQ(arrived, 3);
}

TEST(HostLaunch, TheAmbientStreamRunsOnTheCallersThread) {
  std::map<std::string, std::thread::id> ran_on;
  Regions regions;
  for (const std::string name : {"step 0", "step 1"}) {
    std::thread::id& id = ran_on[name];
    regions.add(name, [&id](const RegionCall&) {
      id = std::this_thread::get_id();
      return kOk;
    });
  }
  const Recording recording = must(record(parallel_steps(2), device_of(2), regions.table()));
  must(launch(recording, {}));
  EXPECT_EQ(ran_on["step 0"], std::this_thread::get_id());
  EXPECT_NE(ran_on["step 1"], std::this_thread::get_id());
}

// Launches `inner` from a region of a launch that has the device's workers.
void launch_within(const Recording& inner, const Device& device) {
  Regions regions = same_region(2, [](const RegionCall&) { return kOk; });
  regions.add("step 0", [&](const RegionCall&) { return launch(inner, {}).ok() ? 0 : 1; });
  const Recording outer = must(record(parallel_steps(2), device, regions.table()));
  must(launch(outer, {}));
}

TEST(HostLaunch, RunsOnTheCallersThreadWhileAnotherLaunchHasTheWorkers) {
  const Device device = device_of(2);
  std::vector<std::thread::id> ran_on;
  const Regions regions = same_region(2, [&](const RegionCall&) {
    ran_on.push_back(std::this_thread::get_id());
    return kOk;
  });
  const Recording inner = must(record(parallel_steps(2), device, regions.table()));
  launch_within(inner, device);
  EXPECT_THAT(ran_on, ElementsAre(std::this_thread::get_id(), std::this_thread::get_id()));
}

TEST(HostLaunch, OnceWorkersWereMissedRecordingBringsEnoughForBothLaunches) {
  const Device device = device_of(2);
  const Regions alone = same_region(2, [](const RegionCall&) { return kOk; });
  launch_within(must(record(parallel_steps(2), device, alone.table())), device);
  std::atomic<int> arrived{0};
  const Regions meeting = same_region(2, [&](const RegionCall&) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
    return kOk;
  });
  launch_within(must(record(parallel_steps(2), device, meeting.table())), device);
  EXPECT_EQ(arrived, 2);
}

// The libraries' settings of each thread, as a thread control sees them.
thread_local int openmp_threads = 6;
thread_local int mkl_threads = 0;
std::atomic<int> settings{0};

host::DeviceOptions with_thread_control() {
  settings = 0;
  host::DeviceOptions options;
  options.threads.get_openmp = [] { return openmp_threads; };
  options.threads.set_openmp = [](int threads) {
    ++settings;
    openmp_threads = threads;
  };
  options.threads.set_mkl_local = [](int threads) {
    ++settings;
    return std::exchange(mkl_threads, threads);
  };
  return options;
}

TEST(HostLaunch, LanesShareTheCallersThreadsAndGiveThemBack) {
  std::array<int, 3> openmp{}, mkl{};
  Regions regions;
  for (std::uint32_t s = 0; s < 3; ++s) {
    regions.add("step " + std::to_string(s), [&, s](const RegionCall&) {
      openmp[s] = openmp_threads;
      mkl[s] = mkl_threads;
      return s == 2 ? 1 : 0;  // the last in the plan: a launch that fails gives them back as well
    });
  }
  const Device device = device_of(3, with_thread_control());
  const Recording recording = must(record(parallel_steps(3), device, regions.table()));
  EXPECT_FALSE(launch(recording, {}).ok());
  EXPECT_EQ(openmp_threads, 6);
  EXPECT_EQ(mkl_threads, 0);
  EXPECT_THAT(openmp, ElementsAre(2, 2, 2));
  EXPECT_THAT(mkl, ElementsAre(2, 2, 2));
}

TEST(HostLaunch, EachLaneHasAtLeastOneThread) {
  openmp_threads = 1;
  int seen = 0;
  Regions regions = same_region(3, [](const RegionCall&) { return kOk; });
  regions.add("step 0", [&](const RegionCall&) {
    seen = openmp_threads;
    return kOk;
  });
  const Device device = device_of(3, with_thread_control());
  must(launch(must(record(parallel_steps(3), device, regions.table())), {}));
  EXPECT_EQ(seen, 1);
  openmp_threads = 6;
}

TEST(HostLaunch, OneLaneLeavesTheLibrariesThreadsAlone) {
  const Regions regions = same_region(3, [](const RegionCall&) { return kOk; });
  const Device device = device_of(1, with_thread_control());
  must(launch(must(record(parallel_steps(3), device, regions.table())), {}));
  EXPECT_EQ(settings, 0);
}

TEST(HostLaunch, RefusesAStreamAndStartsNothing) {
  int calls = 0;
  const Regions regions = same_region(1, [&](const RegionCall&) {
    ++calls;
    return kOk;
  });
  const Recording recording = must(record(parallel_steps(1), device_of(1), regions.table()));
  int stream = 0;
  EXPECT_EQ(launch(recording, {}, CudaStream(&stream)).error().code(), StatusCode::kStreamRefused);
  EXPECT_EQ(calls, 0);
  must(launch(recording, {}, nullptr));
  EXPECT_EQ(calls, 1);
}

// What record.h asks of whoever deletes a recording while it runs.
TEST(HostLaunch, GoesOnThroughACopyWhereTheOtherHandlesAreDeleted) {
  std::atomic<bool> runs = false;
  std::atomic<bool> may_end = false;
  const Regions regions = same_region(3, [&](const RegionCall&) {
    runs = true;
    while (!may_end) std::this_thread::yield();
    return kOk;
  });
  auto original =
      std::make_unique<Recording>(must(record(parallel_steps(3), device_of(2), regions.table())));
  std::thread launching([copy = *original] { must(launch(copy, {})); });
  while (!runs) std::this_thread::yield();
  original.reset();
  may_end = true;
  launching.join();
}

Device device_with_team(std::uint32_t lanes, host::ThreadControl control) {
  host::DeviceOptions options;
  options.threads = control;
  return device_of(lanes, options);
}

// The index in its team of whoever ran each of the steps, and the team's size.
struct Members {
  std::array<std::pair<int, int>, 3> of_step{};
  Regions regions() {
    Regions regions;
    for (std::uint32_t s = 0; s < 3; ++s) {
      regions.add("step " + std::to_string(s), [this, s](const RegionCall&) {
        of_step[s] = {ThreadTeam::index(), ThreadTeam::size()};
        return kOk;
      });
    }
    return regions;
  }
};

using MemberOfTeam = std::pair<int, int>;

TEST(HostLaunch, WhereLanesHaveOneThreadEachTheProcessTeamRunsThem) {
  Members members;
  const Regions regions = members.regions();
  const Device device = device_with_team(3, ThreadTeam::control(4));
  must(launch(must(record(parallel_steps(3), device, regions.table())), {}));
  EXPECT_THAT(members.of_step,
              ElementsAre(MemberOfTeam(0, 4), MemberOfTeam(1, 4), MemberOfTeam(2, 4)));
}

TEST(HostLaunch, WhereLanesHaveSeveralThreadsEachWorkersOfTheDeviceRunThem) {
  Members members;
  const Regions regions = members.regions();
  const Device device = device_with_team(3, ThreadTeam::control(6));
  must(launch(must(record(parallel_steps(3), device, regions.table())), {}));
  EXPECT_THAT(members.of_step,
              ElementsAre(MemberOfTeam(0, 1), MemberOfTeam(0, 1), MemberOfTeam(0, 1)));
}

TEST(HostLaunch, ATeamTooSmallForTheLanesLeavesThemToTheCaller) {
  Members members;
  const Regions regions = members.regions();
  const Device device = device_with_team(3, ThreadTeam::control(3, 2));
  must(launch(must(record(parallel_steps(3), device, regions.table())), {}));
  EXPECT_THAT(members.of_step,
              ElementsAre(MemberOfTeam(0, 2), MemberOfTeam(0, 2), MemberOfTeam(0, 2)));
}

TEST(HostLaunch, StepsThatNothingRunsBesideAreOutsideTheTeam) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId a = builder.add_buffer({.name = "a", .role = Role::kInput, .size_bytes = 8});
  const BufferId b = builder.add_buffer({.name = "b", .role = Role::kOutput, .size_bytes = 8});
  builder.compute(kAmbient, "step 0", {{AccessMode::kReadWrite, builder.whole(a)}});
  builder.compute(side, "step 1",
                  {{AccessMode::kRead, builder.whole(a)}, {AccessMode::kWrite, builder.whole(b)}});
  builder.compute(kAmbient, "step 2", {{AccessMode::kRead, builder.whole(a)}});
  Members members;
  const Regions regions = members.regions();
  const Plan plan = plan_of(builder);
  const Recording recording =
      must(record(plan, device_with_team(2, ThreadTeam::control(2)), regions.table()));
  testing::SlotMemory memory(plan);
  must(launch(recording, memory.bindings()));
  EXPECT_EQ(members.of_step[0], MemberOfTeam(0, 1));
  EXPECT_THAT((std::array{members.of_step[1], members.of_step[2]}),
              ::testing::UnorderedElementsAre(MemberOfTeam(0, 2), MemberOfTeam(1, 2)));
}

TEST(HostLaunch, InATeamLibrariesUseOneThreadAndAreSetBack) {
  host::ThreadControl control = with_thread_control().threads;
  control.team = ThreadTeam::control(2).team;
  control.get_openmp = [] { return 2; };
  std::array<int, 2> openmp{}, mkl{};
  Regions regions;
  for (std::uint32_t s = 0; s < 2; ++s) {
    regions.add("step " + std::to_string(s), [&, s](const RegionCall&) {
      openmp[s] = openmp_threads;
      mkl[s] = mkl_threads;
      return kOk;
    });
  }
  const Device device = device_with_team(2, control);
  must(launch(must(record(parallel_steps(2), device, regions.table())), {}));
  EXPECT_THAT(openmp, ElementsAre(1, 1));
  EXPECT_THAT(mkl, ElementsAre(1, 1));
  EXPECT_EQ(mkl_threads, 0);
  openmp_threads = 6;  // a real runtime restores it when the team parts
}

TEST(HostLaunch, AFailureInATeamNamesTheFirstStepInThePlan) {
  const Regions regions = same_region(3, [](const RegionCall&) { return 7; });
  const Device device = device_with_team(3, ThreadTeam::control(3));
  const Recording recording = must(record(parallel_steps(3), device, regions.table()));
  for (int again = 0; again < 2; ++again) {
    const auto ticket = launch(recording, {});
    ASSERT_FALSE(ticket.ok());
    EXPECT_THAT(ticket.error().message(), ::testing::HasSubstr("'step 0' answered 7"));
  }
}

TEST(HostLaunch, ADelaysSeedSleepsBeforeSteps) {
  constexpr std::uint32_t kSteps = 20;
  ProgramBuilder builder;
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    builder.compute(kAmbient, "step " + std::to_string(s), {});
  }
  host::DeviceOptions options;
  options.delays_seed = 1;
  const Regions regions = same_region(kSteps, [](const RegionCall&) { return kOk; });
  const Recording recording =
      must(record(plan_of(builder), device_of(1, options), regions.table()));
  const auto begin = std::chrono::steady_clock::now();
  must(launch(recording, {}));
  // Twenty delays with a mean of 100 us: a sleep is never shorter than asked for.
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::microseconds(500));
}

Plan plan_with_waits() {
  RandomProgramOptions options;
  options.steps = 40;
  options.syncs = 5;
  return must(make_plan(random_program(11, options)));
}

Regions regions_by_name(const Program& program) {
  Regions regions;
  for (const Step& step : program.steps()) {
    regions.add(step.name, [](const RegionCall&) { return kOk; });
  }
  return regions;
}

TEST(HostLaunch, WritesEachStepOnceAndItsWaitsBeforeItBegins) {
  const Plan plan = plan_with_waits();
  const Regions regions = regions_by_name(plan.program());
  const Recording recording = must(record(plan, device_of(4), regions.table()));
  ASSERT_GT(recording.lane_count(), 1u);
  testing::SlotMemory memory(plan);
  EventRing ring(10'000);
  detail::Inside::host(recording)->set_event_ring(&ring);
  must(launch(recording, memory.bindings()));
  std::map<std::uint32_t, TraceEvent> steps;
  int launches = 0, waits = 0;
  for (const TraceEvent& event : ring.events()) {
    EXPECT_LE(event.begin_ns, event.end_ns);
    launches += event.kind == EventKind::kLaunch;
    waits += event.kind == EventKind::kWait;
    if (event.kind != EventKind::kStep) continue;
    EXPECT_TRUE(steps.emplace(event.step, event).second);
  }
  EXPECT_EQ(launches, 1);
  EXPECT_GT(waits, 0);
  EXPECT_EQ(steps.size(), plan.order().size());
  for (const TraceEvent& event : ring.events()) {
    if (event.kind != EventKind::kWait) continue;
    EXPECT_LE(event.end_ns, steps[event.step].begin_ns);
    EXPECT_GE(steps[event.step].begin_ns, steps[event.other].end_ns);
    EXPECT_EQ(event.lane, steps[event.step].lane);
  }
}

TEST(HostLaunch, WritesNothingOnceTheRingIsTakenAway) {
  const Plan plan = plan_with_waits();
  const Regions regions = regions_by_name(plan.program());
  const Recording recording = must(record(plan, device_of(4), regions.table()));
  testing::SlotMemory memory(plan);
  EventRing ring(10'000);
  detail::Inside::host(recording)->set_event_ring(&ring);
  must(launch(recording, memory.bindings()));
  ring.clear();
  detail::Inside::host(recording)->set_event_ring(nullptr);
  must(launch(recording, memory.bindings()));
  EXPECT_TRUE(ring.events().empty());
}

}  // namespace
}  // namespace anabranch::host
