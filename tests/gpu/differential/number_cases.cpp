// SPDX-License-Identifier: Apache-2.0
// Numbers of 8, 4 and 2 bytes beside an address, in kernels that a third capture gave others: set
// by the host, by one kernel of the updater and by two.
#include <array>
#include <bit>
#include <memory>
#include <random>
#include <string>

#include "anabranch/launch.h"
#include "base/inside.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/device_code.h"
#include "device/cuda/handles.h"
#include "differential.h"
#include "launch/cuda_launch.h"
#include "record/cuda/discover.h"
#include "record/cuda/image/capture_memory.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint64_t kUnitBytes = 512;

struct Given {
  std::uint64_t wide = 0;
  std::uint32_t narrow = 0;
  std::uint16_t half = 0;
  std::vector<std::uint32_t> kept() const {
    return {static_cast<std::uint32_t>(wide), static_cast<std::uint32_t>(wide >> 32), narrow, half};
  }
};

enum class By : std::uint8_t { kHost, kOneKernel, kTwoKernels };

class NumberRecordings : public Differential, public ::testing::WithParamInterface<By> {
 protected:
  static constexpr std::size_t kNodes = 24;

  NumberRecordings() {
    constexpr Given kFirst{0x3FB999999999999A, 0x3DCCCCCD, 0x2E66},
        kOther{0x3FE0000000000000, 5, 7};
    std::unique_ptr<CaptureMemory> memories[3];
    CuGraph graphs[3] = {};
    for (int c = 0; c < 3; ++c) {
      memories[c] = *CaptureMemory::make(d);
      graphs[c] = capture([&](CuStream on) { queue(on, *memories[c], c == 2 ? kOther : kFirst); });
    }
    code_ = *DeviceCode::load(d, device_code_image);
    const std::vector<UnitKind> kinds(kNodes, UnitKind::kGiven);
    const Capture others{graphs[2], memories[2]->allocations()};
    const auto found = discover(d, {graphs[0], memories[0]->allocations()},
                                {graphs[1], memories[1]->allocations()}, kinds, {}, &others);
    EXPECT_TRUE(found.ok()) << (found.ok() ? "" : found.error().message());
    CudaRecordOptions options{.device_code = code_.get(), .updating_executables = 0};
    if (GetParam() != By::kHost) {
      options.updating_executables = 1;
      options.few_nodes = 0;
      options.settle_after = ~0u;
      options.repoint_in_two = GetParam() == By::kTwoKernels;
    }
    if (found.ok()) recording = *make_recording(d, *found, options);
  }

  void queue(CuStream on, CaptureMemory& memory, Given with) {
    for (std::size_t i = 0; i < kNodes; ++i) {
      CuDevicePtr out = *memory.allocate(kUnitBytes);
      EXPECT_CU(launch(keep_numbers, on, {&out, &with.wide, &with.narrow, &with.half}));
    }
  }

  std::shared_ptr<CudaRecording> recording;

 private:
  std::unique_ptr<DeviceCode> code_;
};

TEST_P(NumberRecordings, KernelsHaveTheNumbersOfTheirLaunch) {
  ASSERT_TRUE(recording);
  ASSERT_EQ(recording->numbers().size(), 3u);
  const CuStream on = stream();
  const CuDevicePtr first = (allocate((2 * kNodes + 1) * kUnitBytes) + 511) / 512 * 512;
  std::mt19937_64 random(11);
  for (std::uint32_t round = 0; round < 100; ++round) {
    const Given with{random(), static_cast<std::uint32_t>(random()),
                     static_cast<std::uint16_t>(random())};
    std::vector<std::uint64_t> words;
    for (std::size_t i = 0; i < kNodes; ++i) {
      words.push_back(first + (round % 3 == 0 ? i : 2 * kNodes - 1 - i) * kUnitBytes);
    }
    const std::vector<std::uint64_t> addresses = words;
    words.insert(words.end(), {with.wide, with.narrow, with.half});
    const auto launched = cuda::launch(*recording, words, on);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    ASSERT_EQ(*launched, GetParam() == By::kHost ? Repoint::kFromHost : Repoint::kFromDevice);
    ASSERT_CU(d.cuStreamSynchronize(on));
    for (const std::uint64_t at : addresses) {
      ASSERT_EQ(get(at, 4), with.kept()) << "round " << round;
    }
  }
}

TEST_P(NumberRecordings, TheUpdaterLeavesNoNodeToTheHost) {
  ASSERT_TRUE(recording);
  const bool by_host = GetParam() == By::kHost;
  const auto execs = by_host ? recording->executables() : recording->updating();
  std::vector<std::uint64_t> words(recording->source_rules().size(), allocate(kUnitBytes));
  const auto set = execs[0]->set_addresses(words);
  ASSERT_TRUE(set.ok()) << set.error().message();
  EXPECT_EQ(*set, by_host ? kNodes : 0u);
}
INSTANTIATE_TEST_SUITE_P(, NumberRecordings,
                         ::testing::Values(By::kHost, By::kOneKernel, By::kTwoKernels),
                         [](const auto& by) -> std::string {
                           return by.param == By::kHost        ? "ByHost"
                                  : by.param == By::kOneKernel ? "ByOneKernel"
                                                               : "ByTwoKernels";
                         });

// A double, a float and a bfloat16 of a plan, by one region.
class PlanNumbers : public Differential {
 protected:
  struct Kernel {
    const Driver& d;
    CuFunction function;
    static std::int32_t run(void* self, const RegionCall* call) {
      const auto& [d, function] = *static_cast<Kernel*>(self);
      auto out = reinterpret_cast<CuDevicePtr>(call->buffers[0]);
      void* params[] = {&out, call->buffers[1], call->buffers[2], call->buffers[3]};
      return static_cast<std::int32_t>(d.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0,
                                                        stream_of(call->stream), params, nullptr));
    }
  };
};

TEST_F(PlanNumbers, KernelsHaveTheNumbersOfTheirLaunch) {
  ProgramBuilder builder;
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 16, 8});
  builder.compute(kAmbient, "keep",
                  {builder.write(y), builder.read(builder.add_number("wide", NumberKind::kF64)),
                   builder.read(builder.add_number("narrow", NumberKind::kF32)),
                   builder.read(builder.add_number("half", NumberKind::kBF16))});
  const auto plan = make_plan(*builder.build());
  ASSERT_TRUE(plan.ok());
  const auto gpu = CudaDevice::make(d, 0, device_code_image);
  ASSERT_TRUE(gpu.ok()) << gpu.error().message();
  Kernel kernel{d, keep_numbers};
  const auto recording =
      record(*plan, detail::Inside::make<Device>(*gpu), {{"keep", {Kernel::run, &kernel}}});
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  std::mt19937_64 random(12);
  const CuDevicePtr out = allocate(16);
  for (int round = 0; round < 20; ++round) {
    const Given with{random(), static_cast<std::uint32_t>(random()),
                     static_cast<std::uint16_t>(random())};
    const std::vector<Binding> bindings{{reinterpret_cast<void*>(out), 16},
                                        Binding::number(std::bit_cast<double>(with.wide)),
                                        Binding::number(std::bit_cast<float>(with.narrow)),
                                        Binding::number(with.half)};
    const auto launched = anabranch::launch(*recording, bindings);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    ASSERT_TRUE(launched->wait().ok());
    ASSERT_EQ(get(out, 4), with.kept()) << "round " << round;
  }
}

}  // namespace
}  // namespace anabranch::cuda
