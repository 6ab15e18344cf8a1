// SPDX-License-Identifier: Apache-2.0
// Grids of a plan, on the host and on the simulated driver: kernels have the blocks that each
// launch gives, or the plan is refused.
#include <array>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#include <gmock/gmock.h>

#include "anabranch/launch.h"
#include "device/cuda/handles.h"
#include "record/cuda/plan/sim_bench_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::must;
using testing::plan_of;

using Blocks = std::array<std::uint32_t, 3>;
// What a kernel leaves: its grid, and the word that it was given.
using Kept = std::array<std::uint32_t, 4>;

constexpr std::array<Blocks, 5> kLaunches{
    {{1, 1, 1}, {500, 60, 7}, {2, 1, 7}, {500, 1, 1}, {1, 1, 1}}};

Binding grid_of(Blocks blocks) { return Binding::grid(blocks[0], blocks[1], blocks[2]); }

// How one kernel of the step is launched, by what its region reads.
struct Launched {
  Blocks blocks{1, 1, 1};
  std::uint32_t word = 0;
};
using How = std::function<Launched(const RegionCall& call)>;

Blocks read_grid(const RegionCall& call, std::size_t access) {
  Blocks blocks{};
  std::memcpy(&blocks, call.buffers[access], sizeof blocks);
  return blocks;
}
// As the grid says that the region reads first.
Launched as_given(const RegionCall& call) { return {read_grid(call, 1)}; }

class PlanGridsTest : public ::testing::TestWithParam<bool> {
 protected:
  PlanGridsTest() {
    bench.sim().add_kernel(
        {.name = "keep", .params = sim::layout_of({8, 4}), .run = [](const auto& call) {
           auto* out = call.template memory<std::uint32_t>(call.template param<CuDevicePtr>(0), 4);
           if (!out) return;
           out[0] = call.grid.x;
           out[1] = call.grid.y;
           out[2] = call.grid.z;
           out[3] = call.template param<std::uint32_t>(8);
         }});
    d.cuModuleLoadData(&module_, sim::SimDriver::make_image({"keep"}).c_str());
    d.cuModuleGetFunction(&keep_, module_, "keep");
  }
  ~PlanGridsTest() override {
    for (const CuDevicePtr made : memory_) d.cuMemFree(made);
    for (const CuStream made : streams_) d.cuStreamDestroy(made);
    d.cuModuleUnload(module_);
  }

  // A kernel that fills an output of its own. Outputs are the slots before all others.
  void add_outputs(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      outputs_.push_back(builder.add_buffer({"y", Role::kOutput, sizeof(Kept), 4}));
    }
  }
  void add_kernel(std::size_t output, const std::vector<BufferId>& reads, How how) {
    kernels_.push_back({*this, std::move(how)});
    const std::string name = "step " + std::to_string(kernels_.size());
    std::vector<Access> accesses{builder.write(outputs_[output])};
    for (const BufferId buffer : reads) accesses.push_back(builder.read(buffer));
    builder.compute(kAmbient, name, std::move(accesses));
    regions_[name] = {Kernel::run, &kernels_.back()};
  }
  Result<Recording> record() { return anabranch::record(plan_of(builder), device, regions_); }
  void expect_refused(StatusCode code, const std::string& with) {
    const auto refused = record();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), code);
    EXPECT_THAT(refused.error().message(), HasSubstr(with));
  }

  CudaStream stream() {
    streams_.emplace_back();
    EXPECT_EQ(d.cuStreamCreateWithPriority(&streams_.back(), kStreamNonBlocking, 0),
              CuResult::kSuccess);
    return CudaStream(streams_.back());
  }
  // Addresses of the outputs of one launch, and what it has left there once it has ended.
  std::vector<Binding> outputs() {
    std::vector<Binding> bindings;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      memory_.emplace_back();
      EXPECT_EQ(d.cuMemAlloc(&memory_.back(), sizeof(Kept)), CuResult::kSuccess);
      bindings.push_back({reinterpret_cast<void*>(memory_.back()), sizeof(Kept)});
    }
    return bindings;
  }
  Kept kept(const Binding& output) {
    Kept words{};
    EXPECT_EQ(
        d.cuMemcpyDtoH(words.data(), reinterpret_cast<CuDevicePtr>(output.data), sizeof words),
        CuResult::kSuccess);
    return words;
  }
  std::vector<Kept> launched(const Recording& recording, const std::vector<Binding>& others) {
    std::vector<Binding> bindings = outputs();
    const std::size_t count = bindings.size();
    bindings.insert(bindings.end(), others.begin(), others.end());
    EXPECT_TRUE(must(launch(recording, bindings)).wait().ok());
    std::vector<Kept> found;
    for (std::size_t i = 0; i < count; ++i) found.push_back(kept(bindings[i]));
    return found;
  }
  static Kept kept_of(Blocks blocks, std::uint32_t word = 0) {
    return {blocks[0], blocks[1], blocks[2], word};
  }

  testing::SimBench bench{{}, GetParam()};
  const Driver& d = bench.driver();
  Device device = bench.make_device();
  ProgramBuilder builder;
  std::vector<CuLaunchAttribute> attributes;

 private:
  struct Kernel {
    PlanGridsTest& test;
    How how;
    static std::int32_t run(void* self, const RegionCall* call) {
      auto& [test, how] = *static_cast<Kernel*>(self);
      auto [blocks, word] = how(*call);
      void* params[] = {const_cast<void**>(&call->buffers[0]), &word};
      CuLaunchConfig config{};
      config.grid_x = blocks[0];
      config.grid_y = blocks[1];
      config.grid_z = blocks[2];
      config.block_x = config.block_y = config.block_z = 1;
      config.stream = stream_of(call->stream);
      config.attrs = test.attributes.data();
      config.attr_count = static_cast<unsigned>(test.attributes.size());
      return static_cast<std::int32_t>(
          test.d.cuLaunchKernelEx(&config, test.keep_, params, nullptr));
    }
  };
  CuModule module_ = nullptr;
  CuFunction keep_ = nullptr;
  std::vector<BufferId> outputs_;
  std::deque<Kernel> kernels_;
  RegionTable regions_;
  std::deque<CuStream> streams_;
  std::vector<CuDevicePtr> memory_;
};

TEST_P(PlanGridsTest, KernelsHaveTheBlocksOfEachLaunch) {
  add_outputs(1);
  add_kernel(0, {builder.add_grid("blocks", 500, 60, 7)}, as_given);
  const Recording recording = must(record());
  for (const Blocks& blocks : kLaunches) {
    EXPECT_EQ(launched(recording, {grid_of(blocks)})[0], kept_of(blocks));
  }
  const auto slots = recording.slots();
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[1].kind, SlotKind::kGrid);
}

TEST_P(PlanGridsTest, ManyKernelsHaveTheBlocksOfEachLaunchBesideOthersThatTheDeviceSets) {
  constexpr std::size_t kCount = 60;
  add_outputs(kCount);
  const BufferId grid = builder.add_grid("blocks", 500, 60, 7);
  const Blocks same{9, 8, 7};
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i % 3 == 0) {
      add_kernel(i, {grid}, as_given);
    } else {
      add_kernel(i, {}, [=](const RegionCall&) { return Launched{same}; });
    }
  }
  const Recording recording = must(record());
  for (int round = 0; round < 30; ++round) {  // so that addresses settle, and move again
    const Blocks blocks = kLaunches[static_cast<std::size_t>(round) % kLaunches.size()];
    const auto found = launched(recording, {grid_of(blocks)});
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(found[i], kept_of(i % 3 == 0 ? blocks : same)) << round << ' ' << i;
    }
  }
  const auto by_device = HasSubstr(
      "; launched 0 times with nothing moved, 0 times re-pointed by the "
      "host, 30 times by the device");
  if (GetParam()) {
    EXPECT_THAT(dump_recording(recording), by_device);
  }
}

TEST_P(PlanGridsTest, AtSettledAddressesTheBlocksAreStillThoseOfEachLaunch) {
  add_outputs(1);
  add_kernel(0, {builder.add_grid("blocks", 500, 60, 7)}, as_given);
  const Recording recording = must(record());
  std::vector<Binding> bindings = outputs();
  bindings.push_back({});
  for (int round = 0; round < 40; ++round) {
    const Blocks blocks = kLaunches[static_cast<std::size_t>(round / 15) % kLaunches.size()];
    bindings[1] = grid_of(blocks);
    EXPECT_TRUE(must(launch(recording, bindings)).wait().ok());
    ASSERT_EQ(kept(bindings[0]), kept_of(blocks)) << round;
  }
}

TEST_P(PlanGridsTest, LaunchesInFlightHaveTheirOwnBlocks) {
  add_outputs(1);
  add_kernel(0, {builder.add_grid("blocks", 100'000)}, as_given);
  const Recording recording = must(record());
  const std::array<CudaStream, 3> streams{stream(), stream(), stream()};
  std::vector<Binding> outs;
  for (std::uint32_t i = 0; i < 60; ++i) {
    outs.push_back(outputs()[0]);
    must(launch(recording, std::array{outs.back(), Binding::grid(1 + 7 * i)}, streams[i % 3]));
  }
  bench.sim().run_until_idle();
  for (std::uint32_t i = 0; i < outs.size(); ++i) {
    ASSERT_EQ(kept(outs[i]), kept_of({1 + 7 * i, 1, 1}));
  }
}

TEST_P(PlanGridsTest, AKernelMayHaveDimensionsOfSeveralGridsInAnyOrder) {
  add_outputs(2);
  const BufferId a = builder.add_grid("a", 1000, 50), b = builder.add_grid("b", 1000, 50);
  add_kernel(0, {a, b}, [](const RegionCall& call) {
    return Launched{{read_grid(call, 2)[0], read_grid(call, 1)[1], 3}};
  });
  add_kernel(1, {a, b}, [](const RegionCall& call) {
    return Launched{{read_grid(call, 1)[1], read_grid(call, 2)[1], read_grid(call, 1)[0]}};
  });
  const Recording recording = must(record());
  const auto found = launched(recording, {Binding::grid(901, 42), Binding::grid(17, 9)});
  EXPECT_EQ(found[0], kept_of({17, 42, 3}));
  EXPECT_EQ(found[1], kept_of({42, 9, 901}));
}

TEST_P(PlanGridsTest, KernelsMayBeGivenTheBlocksByValueToo) {
  add_outputs(1);
  add_kernel(0, {builder.add_grid("blocks", 5000, 50)}, [](const RegionCall& call) {
    return Launched{read_grid(call, 1), read_grid(call, 1)[1]};
  });
  const Recording recording = must(record());
  EXPECT_EQ(launched(recording, {Binding::grid(1234, 43)})[0], kept_of({1234, 43, 1}, 43));
  EXPECT_EQ(launched(recording, {Binding::grid(1, 50)})[0], kept_of({1, 50, 1}, 50));
}

TEST_P(PlanGridsTest, AGridThatEqualsAnotherByChanceInSomeCapturesIsNotTakenForIt) {
  add_outputs(1);
  const BufferId grid = builder.add_grid("blocks", 5000);
  // In so many captures, of four, its blocks are the grid's; then they are those of the first.
  std::uint32_t like = 0, calls = 0;
  Blocks first{};
  add_kernel(0, {grid}, [&](const RegionCall& call) {
    if (calls++ == 0) first = read_grid(call, 1);
    return Launched{calls <= like ? read_grid(call, 1) : first};
  });
  for (like = 1; like <= 2; ++like) {  // the first two have the same
    calls = 0;
    const Recording recording = must(record());
    EXPECT_EQ(launched(recording, {Binding::grid(77)})[0], kept_of(first)) << like;
  }
  like = 3;
  calls = 0;
  expect_refused(StatusCode::kNotRecordable, "No grid of the plan has that many in each");
  like = 4;
  calls = 0;
  EXPECT_EQ(launched(must(record()), {Binding::grid(77)})[0], kept_of({77, 1, 1}));
}

TEST_P(PlanGridsTest, BlocksThatARegionComputesAreRefused) {
  add_outputs(1);
  const BufferId grid = builder.add_grid("blocks", 5000);
  std::function<std::uint32_t(std::uint32_t)> compute;
  add_kernel(0, {grid}, [&](const RegionCall& call) {
    return Launched{{compute(read_grid(call, 1)[0]), 1, 1}};
  });
  const std::vector<std::function<std::uint32_t(std::uint32_t)>> computes{
      [](std::uint32_t x) { return 2 * x; },
      [](std::uint32_t x) { return (x + 1) / 2; },
      [](std::uint32_t x) { return std::min(x, 4999u); },
      [](std::uint32_t x) { return x + 1; },
      [](std::uint32_t x) { return std::min(x, 100u); },
      [](std::uint32_t x) { return x < 2 ? 2 : x; },
      [](std::uint32_t x) { return std::max(x, 4000u); }};
  for (std::size_t i = 0; i < computes.size(); ++i) {
    compute = computes[i];
    const auto refused = record();
    ASSERT_FALSE(refused.ok()) << i;
    EXPECT_EQ(refused.error().code(), StatusCode::kNotRecordable);
    EXPECT_THAT(refused.error().message(), HasSubstr("kernel 0 'keep' has grids of "));
    EXPECT_THAT(refused.error().message(), HasSubstr("(add_grid)"));
  }
}

TEST_P(PlanGridsTest, BlocksThatFollowANumberAreRefused) {
  add_outputs(1);
  const BufferId count = builder.add_number("count", NumberKind::kI32, 1, 5000);
  add_kernel(0, {count}, [](const RegionCall& call) {
    return Launched{{*static_cast<std::uint32_t*>(call.buffers[1]), 1, 1}};
  });
  expect_refused(StatusCode::kNotRecordable, "No grid of the plan has that many in each");
}

TEST_P(PlanGridsTest, WhatARegionComputesFromBlocksIsRefused) {
  add_outputs(1);
  add_kernel(0, {builder.add_grid("blocks", 5000)}, [](const RegionCall& call) {
    return Launched{read_grid(call, 1), 256 * read_grid(call, 1)[0]};
  });
  expect_refused(StatusCode::kNotRecordable, "is given something at byte 8");
}

TEST_P(PlanGridsTest, TwoBlocksAtMostAreToldApartAndMoreSuchGridsAreRefused) {
  add_outputs(1);
  const BufferId pair = builder.add_grid("pair", 2), both = builder.add_grid("both", 1, 2);
  add_kernel(0, {pair, both}, [](const RegionCall& call) {
    return Launched{{read_grid(call, 1)[0], read_grid(call, 2)[1], 5}};
  });
  const Recording recording = must(record());
  for (const std::uint32_t x : {1u, 2u}) {
    for (const std::uint32_t y : {1u, 2u}) {
      EXPECT_EQ(launched(recording, {Binding::grid(x), Binding::grid(1, y)})[0],
                kept_of({x, y, 5}));
    }
  }
  builder.add_grid("third", 1, 1, 2);
  expect_refused(StatusCode::kNotRecordable, "grid 'third' has at most 1x1x2 blocks, too few");
}

TEST_P(PlanGridsTest, AGridOfOneBlockIsOneThatNothingFollows) {
  add_outputs(1);
  add_kernel(0, {builder.add_grid("one", 1)}, as_given);
  const Recording recording = must(record());
  EXPECT_EQ(launched(recording, {Binding::grid(1)})[0], kept_of({1, 1, 1}));
}

TEST_P(PlanGridsTest, KernelsInClustersMayNotFollowAGrid) {
  CuLaunchAttribute clusters{};
  clusters.id = CuLaunchAttributeId::kClusterDimension;
  clusters.value.cluster_dim = {2, 1, 1};
  attributes = {clusters};
  add_outputs(1);
  const BufferId grid = builder.add_grid("blocks", 50, 900);
  add_kernel(0, {grid}, [](const RegionCall& call) {
    return Launched{{4, read_grid(call, 1)[1], 1}};
  });
  expect_refused(StatusCode::kNotRecordable, "It runs in clusters");
}

TEST_P(PlanGridsTest, NumbersTablesAndGridsMayBeGivenTogether) {
  constexpr std::uint32_t kTable = 0x12345678;
  add_outputs(1);
  const BufferId y = builder.add_buffer({"copy", Role::kOutput, 4, 4});
  const BufferId count = builder.add_number("count", NumberKind::kI32, 1, 5000);
  const BufferId table = builder.add_table("table", 4);
  const BufferId grid = builder.add_grid("blocks", 5000, 4);
  builder.copy(builder.add_stream("side"), builder.whole(y), builder.whole(table));
  add_kernel(0, {grid, count}, [](const RegionCall& call) {
    return Launched{read_grid(call, 1), *static_cast<std::uint32_t*>(call.buffers[2])};
  });
  const Recording recording = must(record());
  for (std::uint32_t i = 0; i < 30; ++i) {
    std::vector<Binding> bindings = outputs();
    bindings.push_back(outputs()[0]);
    std::uint32_t word = kTable + i;
    bindings.insert(bindings.end(),
                    {Binding::number(static_cast<std::int32_t>(4999 - i)),
                     Binding::table(&word, sizeof word), Binding::grid(i + 1, i % 4 + 1)});
    const Ticket ticket = must(launch(recording, bindings));
    word = 0;
    EXPECT_TRUE(ticket.wait().ok());
    EXPECT_EQ(kept(bindings[0]), kept_of({i + 1, i % 4 + 1, 1}, 4999 - i));
    EXPECT_EQ(kept(bindings[1])[0], kTable + i);
  }
}

TEST_P(PlanGridsTest, RegionsOnTheHostReadTheBlocksOfEachLaunch) {
  add_outputs(1);
  builder.compute(kAmbient, "host",
                  {builder.write(BufferId{0}), builder.read(builder.add_grid("g", 500, 60, 7))});
  const Region region{[](void*, const RegionCall* call) {
                        std::memcpy(call->buffers[0], call->buffers[1], sizeof(Blocks));
                        return 0;
                      },
                      nullptr};
  const Recording recording =
      must(anabranch::record(plan_of(builder), Device::host(), {{"host", region}}));
  Kept out{};
  for (const Blocks& blocks : kLaunches) {
    must(launch(recording, std::array{Binding{&out, sizeof out}, grid_of(blocks)}));
    EXPECT_EQ(out, kept_of(blocks));
  }
}

TEST_P(PlanGridsTest, OfNoBlocksOrTooManyOrAnotherKindTheyAreRefusedOnEveryDevice) {
  add_outputs(1);
  add_kernel(0, {builder.add_grid("blocks", 500, 60, 7)}, as_given);
  const Recording on_gpu = must(record());
  const Region nothing{[](void*, const RegionCall*) { return 0; }, nullptr};
  const Recording on_host =
      must(anabranch::record(plan_of(builder), Device::host(), {{"step 1", nothing}}));
  Kept host_memory{};
  for (const Recording* const recording : {&on_gpu, &on_host}) {
    const Binding out =
        recording == &on_gpu ? outputs()[0] : Binding{&host_memory, sizeof host_memory};
    const auto expect_bad = [&](Binding binding, const std::string& with) {
      const auto refused = launch(*recording, std::array{out, binding});
      ASSERT_FALSE(refused.ok()) << with;
      EXPECT_EQ(refused.error().code(), StatusCode::kBadBinding);
      EXPECT_THAT(refused.error().message(), HasSubstr(with));
    };
    EXPECT_TRUE(must(launch(*recording, std::array{out, Binding::grid(500, 60, 7)})).wait().ok());
    expect_bad(Binding::grid(0),
               "grid 'blocks' (slot 1) is 0x1x1, and was declared to lie "
               "between 1x1x1 and 500x60x7");
    expect_bad(Binding::grid(1, 0), "is 1x0x1");
    expect_bad(Binding::grid(1, 1, 0), "is 1x1x0");
    expect_bad(Binding::grid(501), "is 501x1x1");
    expect_bad(Binding::grid(1, 61), "is 1x61x1");
    expect_bad(Binding::grid(1, 1, 8), "is 1x1x8");
    expect_bad(Binding::grid(~0u, ~0u, ~0u), "is 4294967295x4294967295x4294967295");
    expect_bad(Binding::number(5), "is for a grid, and a number was given. Pass Binding::grid()");
    expect_bad(Binding::table(&host_memory, 12), "is for a grid, and a table was given");
    expect_bad(out, "is for a grid, and an address was given");
    const auto refused = launch(*recording, std::array{Binding::grid(8), Binding::grid(8)});
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message(), HasSubstr("is for an address, and a grid was given"));
  }
}

INSTANTIATE_TEST_SUITE_P(, PlanGridsTest, ::testing::Bool(), [](const auto& with_code) {
  return with_code.param ? std::string("WithDeviceCode") : std::string("WithoutDeviceCode");
});

}  // namespace
}  // namespace anabranch::cuda
