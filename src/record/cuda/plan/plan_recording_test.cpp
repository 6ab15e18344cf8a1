// SPDX-License-Identifier: Apache-2.0
// Plans recorded on CUDA, on the simulated driver: what is captured, and what is refused.
#include "record/cuda/plan/plan_recording.h"

#include <regex>
#include <set>
#include <stdexcept>

#include "plan/random_program.h"
#include "record/cuda/plan/plan_capture.h"
#include "record/cuda/plan/sim_bench_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::plan_of;
using testing::Regions;

std::int32_t succeed(void*, const RegionCall*) { return 0; }

class PlanRecordingTest : public ::testing::Test {
 protected:
  // x -> a (stream "side") -> y (ambient), after a step that both come after.
  PlanRecordingTest() {
    add(kAmbient, "prepare", {builder.read(x), builder.write(x_too)});
    add(side, "gelu", {builder.read(x_too), builder.write(a)});
    add(kAmbient, "linear", {builder.read(a), builder.write(y)});
  }
  void add(StreamId stream, std::string name, std::vector<Access> accesses) {
    builder.add_step(
        {.stream = stream, .name = name, .source = "model.py:88", .accesses = std::move(accesses)});
  }
  Result<Recording> try_record(const std::string& name, Regions::Function function) {
    const Plan plan = plan_of(builder);
    RegionTable table = bench.kernels_of(
        plan, {{"prepare", {succeed}}, {"gelu", {succeed}}, {"linear", {succeed}}});
    function_ = std::move(function);
    if (!name.empty()) table[name] = {call_function, &function_};
    return record(plan, device, table);
  }
  Status refusal(const std::string& name, Regions::Function function) {
    const auto made = try_record(name, std::move(function));
    return made.ok() ? Status() : made.error();
  }
  static std::int32_t call_function(void* function, const RegionCall* call) {
    return (*static_cast<Regions::Function*>(function))(*call);
  }

  testing::SimBench bench;
  const Driver& d = bench.driver();
  Device device = bench.make_device();
  const std::size_t live = bench.sim().live_objects();
  ProgramBuilder builder;
  StreamId side = builder.add_stream("side");
  BufferId x = builder.add_buffer({"x", Role::kInput, 64});
  BufferId y = builder.add_buffer({"y", Role::kOutput, 64});
  BufferId x_too = builder.add_buffer({"x too", Role::kTemporary, 64});
  BufferId a = builder.add_buffer({"a", Role::kTemporary, 64});

 private:
  Regions::Function function_;
};

TEST(CudaDevices, OneThatIsNotThereHasAReason) {
  const auto device = Device::cuda({.ordinal = 4711});
  ASSERT_FALSE(device.ok());
  const std::set<StatusCode> reasons{StatusCode::kDriverMissing, StatusCode::kDriverTooOld,
                                     StatusCode::kDriverFailed};
  EXPECT_TRUE(reasons.contains(device.error().code())) << device.error().message();
}

TEST_F(PlanRecordingTest, KeepsWhatItNeedsAndLeavesNothing) {
  EXPECT_EQ(device.name(), "cuda 0, simulated device 0");
  must(try_record("", {}));
  EXPECT_EQ(bench.sim().live_objects(), live);
}

// What the samples of docs/errors.md say.
TEST_F(PlanRecordingTest, ARegionThatFailsIsNamed) {
  for (const char* name : {"prepare", "gelu", "linear"}) {
    const Status failed = refusal(name, [](const RegionCall& call) {
      std::snprintf(call.error, call.error_bytes, "no kernel for this shape");
      return 1;
    });
    EXPECT_EQ(failed.code(), StatusCode::kRegionFailed);
    EXPECT_THAT(failed.message(), HasSubstr(name));
    EXPECT_EQ(bench.sim().live_objects(), live);
  }
  EXPECT_EQ(refusal("gelu",
                    [](const RegionCall& call) {
                      std::snprintf(call.error, call.error_bytes, "no kernel for this shape");
                      return 1;
                    })
                .message(),
            "record: step 1 'gelu' (model.py:88) answered 1: no kernel for this shape, while it "
            "was captured. Nothing has been recorded. [E0310]");
  must(try_record("", {}));
}

TEST_F(PlanRecordingTest, ARegionThatThrowsFails) {
  EXPECT_THAT(
      refusal("gelu",
              [](const RegionCall&) -> std::int32_t { throw std::runtime_error("no such tensor"); })
          .message(),
      HasSubstr("threw: no such tensor"));
  EXPECT_THAT(refusal("gelu", [](const RegionCall&) -> std::int32_t { throw 7; }).message(),
              HasSubstr("no std::exception"));
  EXPECT_EQ(bench.sim().live_objects(), live);
  must(try_record("", {}));
}

TEST_F(PlanRecordingTest, ARegionThatAllocatesBreaksTheCaptureAndIsNamed) {
  const Status failed = refusal("gelu", [&](const RegionCall&) {
    CuDevicePtr address = 0;
    EXPECT_EQ(d.cuMemAlloc(&address, 64), CuResult::kStreamCaptureUnsupported);
    return 0;  // nobody looks
  });
  EXPECT_EQ(failed.code(), StatusCode::kRegionFailed);
  EXPECT_THAT(failed.message(), HasSubstr("step 1 'gelu'"));
  EXPECT_THAT(failed.message(), HasSubstr("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (901)"));
  EXPECT_EQ(bench.sim().live_objects(), live);
  must(try_record("", {}));
}

TEST_F(PlanRecordingTest, ARegionThatLeavesWorkOnAStreamOfItsOwnIsRefused) {
  CuStream own = nullptr;
  CuEvent fork = nullptr;
  d.cuStreamCreateWithPriority(&own, kStreamNonBlocking, 0);
  d.cuEventCreate(&fork, kEventDisableTiming);
  const Status failed = refusal("linear", [&](const RegionCall& call) {
    d.cuEventRecord(fork, stream_of(call.stream));
    d.cuStreamWaitEvent(own, fork, 0);
    d.cuMemsetD8Async(reinterpret_cast<CuDevicePtr>(call.buffers[1]), 0, 8, own);
    return 0;
  });
  EXPECT_EQ(failed.code(), StatusCode::kDriverFailed);
  EXPECT_THAT(failed.message(), HasSubstr("cuStreamEndCapture"));
  d.cuStreamDestroy(own);
  d.cuEventDestroy(fork);
  EXPECT_EQ(bench.sim().live_objects(), live);
  must(try_record("", {}));
}

TEST_F(PlanRecordingTest, ARegionThatDoesNotRepeatIsRefused) {
  int calls = 0;
  const Status failed = refusal("gelu", [&](const RegionCall& call) {
    const auto to = reinterpret_cast<CuDevicePtr>(call.buffers[1]);
    for (int i = 0; i <= calls; ++i) {
      d.cuMemsetD8Async(to, 0, 8, stream_of(call.stream));
    }
    ++calls;
    return 0;
  });
  EXPECT_EQ(failed.code(), StatusCode::kCapturesDiffer);
  EXPECT_EQ(bench.sim().live_objects(), live);
}

TEST_F(PlanRecordingTest, ARegionSeesAddressesAlignedAsDeclaredAndNoBetter) {
  const BufferId odd = builder.add_buffer({"odd", Role::kOutput, 24, 8});
  const BufferId even = builder.add_buffer({"even", Role::kInput, 24, 256});
  const BufferId page = builder.add_buffer({"page", Role::kInput, 24, 4096});
  add(side, "look", {builder.write(odd), builder.read(even), builder.read(page)});
  builder.copy(side, builder.whole(odd), builder.whole(even));
  must(try_record("look", [](const RegionCall& call) {
    const auto at = [&](int i) { return reinterpret_cast<std::uint64_t>(call.buffers[i]); };
    EXPECT_EQ(at(0) % 16, 8u);
    EXPECT_EQ(at(1) % 512, 256u);
    EXPECT_EQ(at(2) % 4096, 0u);
    return 0;
  }));
}

TEST_F(PlanRecordingTest, WhatAGraphCannotHoldIsRefusedWithAReason) {
  const auto refused_with = [&](const ProgramBuilder& other, const char* why) {
    const auto made = record(plan_of(other), device, {{"f", {succeed}}});
    ASSERT_FALSE(made.ok()) << why;
    EXPECT_EQ(made.error().code(), StatusCode::kNotRecordable);
    EXPECT_THAT(made.error().message(), HasSubstr(why));
    EXPECT_EQ(bench.sim().live_objects(), live);
  };
  ProgramBuilder host, pieces, aligned;
  host.add_step({.kind = StepKind::kHost, .name = "f"});
  refused_with(host, "step 0 'f' runs on the host");
  const BufferId rows = pieces.add_buffer({"rows", Role::kOutput, 16 * 1025});
  pieces.fill(kAmbient, {rows, 0, 8, {{1025, 16}}}, 0);
  refused_with(pieces, "moves 1025 pieces of 8 bytes");
  const BufferId page = aligned.add_buffer({"page", Role::kTemporary, 64, 4096});
  aligned.fill(kAmbient, aligned.whole(page), 0);
  refused_with(aligned, "temporary 0 'page' asks for an alignment of 4096");
}

TEST_F(PlanRecordingTest, WhenAnyCallFailsNothingIsLeftAndTheCallIsNamed) {
  builder.copy(side, builder.whole(a), builder.whole(x_too));
  builder.fill(kAmbient, builder.whole(y), 1);
  for (std::uint64_t n = 1;; ++n) {
    bench.sim().fail_call(n, CuResult::kOutOfMemory);
    Status made;
    std::string failed;
    {
      const auto recording = try_record("", {});
      failed = bench.sim().failed_call();
      bench.sim().fail_call(0, CuResult::kSuccess);
      if (!recording.ok()) made = recording.error();
    }
    EXPECT_EQ(bench.sim().live_objects(), live) << failed;
    if (failed.empty()) {
      EXPECT_TRUE(made.ok());
      EXPECT_GT(n, 100u);
      return;
    }
    // A nicety, and what gives back: that is gone all the same.
    if (std::regex_search(failed, std::regex("GetName|Destroy|Free|Unmap|Release"))) continue;
    ASSERT_FALSE(made.ok()) << failed;
    if (failed == "cuLaunchKernel") {
      EXPECT_EQ(made.code(), StatusCode::kRegionFailed);
      EXPECT_THAT(made.message(), HasSubstr("answered 2"));
    } else {
      EXPECT_EQ(made.code(), StatusCode::kDriverFailed);
      EXPECT_THAT(made.message(), HasSubstr(failed));
    }
  }
}

// By step, those that come before it: by the plan, or by the graph that was captured of it.
using Before = std::vector<std::set<std::uint32_t>>;

Before before_by_plan(const Plan& plan) {
  const Program& program = plan.program();
  Before before(program.steps().size());
  std::vector<std::int64_t> last(program.streams().size(), -1);
  auto wait = plan.waits().begin();
  for (const StepId id : plan.order()) {
    auto& of_step = before[index_of(id)];
    const auto come_after = [&](std::uint32_t on) {
      of_step.insert(on);
      of_step.insert(before[on].begin(), before[on].end());
    };
    auto& on_stream = last[index_of(program.step(id).stream)];
    if (on_stream >= 0) come_after(static_cast<std::uint32_t>(on_stream));
    for (; wait != plan.waits().end() && wait->step == id; ++wait) come_after(index_of(wait->on));
    on_stream = index_of(id);
  }
  return before;
}

Before before_by_graph(const GraphImage& image, const std::vector<std::uint32_t>& step_of_node,
                       std::size_t steps) {
  std::vector<std::set<std::uint32_t>> nodes(image.nodes.size());
  for (const EdgeImage& edge : image.edges) {  // sorted by `to`, and from < to
    nodes[edge.to].insert(edge.from);
    nodes[edge.to].insert(nodes[edge.from].begin(), nodes[edge.from].end());
  }
  Before before(steps);
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    for (const std::uint32_t on : nodes[node]) {
      before[step_of_node[node]].insert(step_of_node[on]);
    }
  }
  return before;
}

// Regions that queue one kernel each, copies and fills made into regions too.
Program with_a_kernel_a_step(const Program& program) {
  return testing::with_named_steps(program, [](Step& step) {
    if (!step.accesses.empty()) step.kind = StepKind::kCompute;
  });
}

TEST_F(PlanRecordingTest, TheGraphHasThePlansOrderAndNoOther) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    RandomProgramOptions options;
    options.steps = 60;
    options.streams = 5;
    options.syncs = 20;
    options.max_bytes = 512;
    const Plan plan = must(make_plan(with_a_kernel_a_step(random_program(seed, options))));
    std::vector<std::uint32_t> queued;
    Regions inner;
    for (const Step& step : plan.program().steps()) inner.add(step.name, [](auto&) { return 0; });
    const RegionTable& kernels = bench.kernels_of(plan, inner.table());
    Regions regions;
    for (std::uint32_t i = 0; i < plan.program().steps().size(); ++i) {
      const auto found = kernels.find(plan.program().steps()[i].name);
      if (found == kernels.end()) continue;
      regions.add(found->first, [&queued, i, region = found->second](const RegionCall& call) {
        queued.push_back(i);
        return region.function(region.context, &call);
      });
    }
    const PlanUnits units = must(find_plan_units(plan, seed % 2 == 0));
    const auto memory = must(PlanMemory::make(d, units));
    const auto graph =
        must(capture_plan(d, plan, units, memory->allocations(), {}, regions.table()));
    const GraphImage image = must(read_graph(d, graph->get()));
    ASSERT_EQ(image.nodes.size(), queued.size());  // and in the order in which they were queued
    Before expected = before_by_plan(plan);
    const std::set<std::uint32_t> with_kernel(queued.begin(), queued.end());
    for (std::uint32_t i = 0; i < expected.size(); ++i) {
      std::erase_if(expected[i], [&](std::uint32_t on) { return !with_kernel.contains(on); });
      if (!with_kernel.contains(i)) expected[i].clear();
    }
    EXPECT_EQ(before_by_graph(image, queued, expected.size()), expected);
  }
}

}  // namespace
}  // namespace anabranch::cuda
