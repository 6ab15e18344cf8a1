// SPDX-License-Identifier: Apache-2.0
// Launches in the child of a fork. A child that hangs is ended by its alarm.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "launch/launch_testing.h"

namespace anabranch {
namespace {

using testing::must;

constexpr unsigned kChildSeconds = 20;

struct TwoLanes {
  TwoLanes() {
    const StreamId side = builder.add_stream("side");
    builder.compute(side, "side", {builder.read(x), builder.write(y)});
    builder.compute(kAmbient, "main", {builder.read(x), builder.write(z)});
    for (const std::string name : {"side", "main"}) {
      regions.add(name, [](const RegionCall& call) {
        *static_cast<int*>(call.buffers[1]) = *static_cast<const int*>(call.buffers[0]) + 1;
        return 0;
      });
    }
  }
  Recording recorded_on(const Device& device) {
    return must(record(testing::plan_of(builder), device, regions.table()));
  }
  ProgramBuilder builder;
  BufferId x = builder.add_buffer({"x", Role::kInput, 4, 4});
  BufferId y = builder.add_buffer({"y", Role::kOutput, 4, 4});
  BufferId z = builder.add_buffer({"z", Role::kOutput, 4, 4});
  testing::Regions regions;
};

Device two_lanes() {
  HostOptions options;
  options.max_lanes = 2;
  return Device::host(options);
}

bool runs_right(const Recording& recording) {
  int x = 4, y = 0, z = 0;
  const std::array<Binding, 3> bindings{{{&x, 4}, {&y, 4}, {&z, 4}}};
  return launch(recording, bindings).ok() && y == 5 && z == 5;
}

// What the function answers in a child.
template <typename Function>
bool in_child(Function function) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kChildSeconds);
    _exit(function() ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Fork, AChildLaunchesOnItsOwnThreadAndTheParentOnAsBefore) {
  TwoLanes example;
  const Recording recording = example.recorded_on(two_lanes());
  ASSERT_EQ(recording.lane_count(), 2u);
  ASSERT_TRUE(runs_right(recording));
  EXPECT_TRUE(in_child([&] { return runs_right(recording) && runs_right(recording); }));
  EXPECT_TRUE(runs_right(recording));
}

TEST(Fork, AChildMayRecordOnADeviceOfItsParentAndLetGoOfIt) {
  TwoLanes example;
  auto recording = std::make_unique<Recording>(example.recorded_on(two_lanes()));
  auto device = std::make_unique<Device>(two_lanes());
  EXPECT_TRUE(in_child([&] {
    const bool right = runs_right(example.recorded_on(*device));
    recording.reset();
    device.reset();
    return right;
  }));
  EXPECT_TRUE(runs_right(*recording));
}

TEST(Fork, ALaunchThatTheParentWasRunningLeavesTheRecordingFreeInTheChild) {
  TwoLanes example;
  std::atomic<bool> running{false}, forked{false};
  example.regions.add("main", [&](const RegionCall& call) {
    if (!forked) {
      running = true;
      running.notify_all();
      forked.wait(false);
    }
    *static_cast<int*>(call.buffers[1]) = *static_cast<const int*>(call.buffers[0]) + 1;
    return 0;
  });
  const Recording recording = example.recorded_on(two_lanes());
  bool parent_right = false;
  std::jthread launcher([&] { parent_right = runs_right(recording); });
  running.wait(false);
  EXPECT_TRUE(in_child([&] {
    forked = true;
    return runs_right(recording);
  }));
  forked = true;
  forked.notify_all();
  launcher.join();
  EXPECT_TRUE(parent_right);
}

}  // namespace
}  // namespace anabranch
