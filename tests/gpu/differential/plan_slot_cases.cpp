// SPDX-License-Identifier: Apache-2.0
// What launches give plans beside addresses and numbers: tables and grids, by one region that adds
// one to the words of its table, in as many blocks as its grid says.
#include <array>
#include <cstring>
#include <deque>
#include <random>
#include <string>

#include "anabranch/launch.h"
#include "base/inside.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/handles.h"
#include "differential.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kWords = 128, kThreads = 32;

class PlanSlots : public Differential {
 protected:
  struct AddOne {
    const Driver& d;
    CuFunction function;

    // Of the buffers table and output, and of a grid, where there is one.
    static std::int32_t run(void* self, const RegionCall* call) {
      const auto& [d, function] = *static_cast<AddOne*>(self);
      std::uint32_t count = kWords;
      void* params[] = {call->buffers[0], call->buffers[1]};
      void* given[] = {&params[0], &params[1], &count};
      std::array<std::uint32_t, 3> blocks{kWords / kThreads, 1, 1};
      if (call->buffer_count == 3) std::memcpy(&blocks, call->buffers[2], sizeof blocks);
      return static_cast<std::int32_t>(d.cuLaunchKernel(function, blocks[0], blocks[1], blocks[2],
                                                        kThreads, 1, 1, 0, stream_of(call->stream),
                                                        given, nullptr));
    }
  };

  Result<Recording> record() {
    const auto plan = make_plan(*builder.build());
    if (!plan.ok()) return plan.error();
    const auto gpu = CudaDevice::make(d, 0, device_code_image);
    if (!gpu.ok()) return gpu.error();
    return anabranch::record(*plan, detail::Inside::make<Device>(*gpu),
                             {{"add one", {AddOne::run, &kernel}}});
  }
  std::vector<std::uint32_t> some_words(std::size_t count) {
    std::vector<std::uint32_t> words(count);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
    return words;
  }

  AddOne kernel{d, add_one};
  ProgramBuilder builder;
  std::mt19937 random{13};
};

TEST_F(PlanSlots, EachLaunchReadsItsOwnTableThoughTheCallersIsChangedAtOnce) {
  const BufferId table = builder.add_table("table", 4 * kWords);
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 4 * kWords, 8});
  builder.compute(kAmbient, "add one", {builder.read(table), builder.write(y)});
  const auto recording = record();
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  struct Launched {
    CuDevicePtr out;
    std::vector<std::uint32_t> expected;
  };
  const std::array<CuStream, 3> streams{stream(), stream(), stream()};
  std::deque<Launched> launches;
  for (std::size_t i = 0; i < 200; ++i) {
    auto words = some_words(random() % (kWords + 1));  // the rest is zero
    launches.push_back({allocate(4 * kWords), words});
    Launched& job = launches.back();
    job.expected.resize(kWords);
    for (std::uint32_t& word : job.expected) ++word;
    const std::vector<Binding> bindings{Binding::table(words.data(), 4 * words.size()),
                                        {reinterpret_cast<void*>(job.out), 4 * kWords}};
    const auto launched = anabranch::launch(*recording, bindings, CudaStream(streams[i % 3]));
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    words.assign(words.size(), 0xEEEEEEEE);
  }
  ASSERT_CU(d.cuCtxSynchronize());
  for (const Launched& job : launches) ASSERT_EQ(get(job.out, kWords), job.expected);
}

// Many kernels, in launches that move all of them and in others that move none.
TEST_F(PlanSlots, KernelsHaveTheBlocksOfTheirLaunch) {
  constexpr std::size_t kKernels = 30;
  const BufferId table = builder.add_table("table", 4 * kWords);
  const BufferId grid = builder.add_grid("blocks", kWords / kThreads, 3);
  for (std::size_t i = 0; i < kKernels; ++i) {
    const BufferId y = builder.add_buffer({"y", Role::kOutput, 4 * kWords, 8});
    builder.compute(kAmbient, "add one",
                    {builder.read(table), builder.write(y), builder.read(grid)});
  }
  const auto recording = record();
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  const auto words = some_words(kWords);
  std::vector<Binding> bindings{Binding::table(words.data(), 4 * kWords), {}};
  const CuDevicePtr outputs = allocate(2 * kKernels * 4 * kWords);
  bindings.resize(2 + kKernels);
  for (std::uint32_t round = 0; round < 60; ++round) {
    const std::uint32_t blocks = 1 + round / 3 % (kWords / kThreads);
    bindings[1] = Binding::grid(blocks, 1 + round % 3);
    const std::size_t first = round < 30 ? round % 2 * kKernels : 0;
    for (std::size_t i = 0; i < kKernels; ++i) {
      const CuDevicePtr out = outputs + (first + i) * 4 * kWords;
      bindings[2 + i] = {reinterpret_cast<void*>(out), 4 * kWords};
    }
    fill(outputs, 0, 2 * kKernels * 4 * kWords);
    const auto launched = anabranch::launch(*recording, bindings);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    ASSERT_TRUE(launched->wait().ok());
    std::vector<std::uint32_t> expected(kWords);
    for (std::size_t i = 0; i < blocks * kThreads; ++i) expected[i] = words[i] + 1;
    for (std::size_t i = 0; i < kKernels; ++i) {
      const CuDevicePtr out = outputs + (first + i) * 4 * kWords;
      ASSERT_EQ(get(out, kWords), expected) << "round " << round << ", kernel " << i;
    }
  }
}

}  // namespace
}  // namespace anabranch::cuda
