// SPDX-License-Identifier: Apache-2.0
// Numbers of a plan, on the host and on the simulated driver: what a launch gives is what regions
// and kernels have.
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>

#include "anabranch/launch.h"
#include "device/cuda/handles.h"
#include "record/cuda/plan/sim_bench_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::must;
using testing::plan_of;

// What the step is given, as it has them.
struct Numbers {
  float rate = 0;
  double wide = 0;
  std::int32_t count = 0;
  std::int64_t position = 0;
  std::uint16_t half = 0;  // a bfloat16's bits
  std::array<std::uint64_t, 5> words() const {
    return {std::bit_cast<std::uint32_t>(rate), std::bit_cast<std::uint64_t>(wide),
            static_cast<std::uint32_t>(count), static_cast<std::uint64_t>(position), half};
  }
};
constexpr std::uint64_t kOutBytes = sizeof(Numbers{}.words());
constexpr double kAny = std::numeric_limits<double>::infinity();

const std::vector<Numbers> kLaunches{
    {0.5f, 0.25, 3, 1ll << 40, 0x3F80},
    {-0.0f, std::numeric_limits<double>::quiet_NaN(), -7, -1, 0xFF80},
    {std::numeric_limits<float>::infinity(), 1e300, std::numeric_limits<std::int32_t>::min(),
     std::numeric_limits<std::int64_t>::min(), 0},
    {0.5f, 0.25, 3, 1ll << 40, 0x3F80}};

// A region that leaves the five numbers in its output.
class PlanNumbersTest : public ::testing::Test {
 protected:
  PlanNumbersTest() {
    bench.sim().add_kernel(
        {.name = "keep", .params = sim::layout_of({8, 4, 8, 4, 8, 2}), .run = [](const auto& call) {
           auto* out = call.template memory<std::uint64_t>(call.template param<CuDevicePtr>(0), 5);
           if (!out) return;
           out[0] = call.template param<std::uint32_t>(8);
           out[1] = call.template param<std::uint64_t>(16);
           out[2] = call.template param<std::uint32_t>(24);
           out[3] = call.template param<std::uint64_t>(32);
           out[4] = call.template param<std::uint16_t>(40);
         }});
    bench.sim().add_kernel(
        {.name = "keep_two", .params = sim::layout_of({8, 8}), .run = [](const auto& call) {
           auto* out = call.template memory<std::uint64_t>(call.template param<CuDevicePtr>(0), 1);
           if (out) out[0] = call.template param<std::uint64_t>(8);
         }});
    d.cuModuleLoadData(&module_, sim::SimDriver::make_image({"keep", "keep_two"}).c_str());
    d.cuModuleGetFunction(&keep_, module_, "keep");
    d.cuModuleGetFunction(&keep_two_, module_, "keep_two");
    d.cuStreamCreateWithPriority(&stream_, kStreamNonBlocking, 0);
    y_ = builder.add_buffer({"y", Role::kOutput, kOutBytes, 8});
  }
  ~PlanNumbersTest() override {
    for (const CuDevicePtr made : memory_) d.cuMemFree(made);
    d.cuStreamDestroy(stream_);
    d.cuModuleUnload(module_);
  }

  std::vector<BufferId> add_five(double least = -kAny, double most = kAny) {
    return {builder.add_number("rate", NumberKind::kF32, least, most),
            builder.add_number("wide", NumberKind::kF64),
            builder.add_number("count", NumberKind::kI32),
            builder.add_number("position", NumberKind::kI64),
            builder.add_number("half", NumberKind::kBF16)};
  }
  void compute(const std::string& name, const std::vector<BufferId>& numbers) {
    std::vector<Access> accesses{builder.write(y_)};
    for (const BufferId number : numbers) accesses.push_back(builder.read(number));
    builder.compute(kAmbient, name, std::move(accesses));
  }
  static std::vector<Binding> bind(void* out, const Numbers& with) {
    return {{out, kOutBytes},
            Binding::number(with.rate),
            Binding::number(with.wide),
            Binding::number(with.count),
            Binding::number(with.position),
            Binding::number(with.half)};
  }
  CuDevicePtr allocate() {
    CuDevicePtr made = 0;
    EXPECT_EQ(d.cuMemAlloc(&made, kOutBytes), CuResult::kSuccess);
    memory_.push_back(made);
    return made;
  }
  std::array<std::uint64_t, 5> launched(const Recording& recording, const Numbers& with) {
    const CuDevicePtr out = allocate();
    const auto bindings = bind(reinterpret_cast<void*>(out), with);
    EXPECT_TRUE(must(launch(recording, bindings, CudaStream(stream_))).wait().ok());
    std::array<std::uint64_t, 5> words{};
    EXPECT_EQ(d.cuMemcpyDtoH(words.data(), out, kOutBytes), CuResult::kSuccess);
    return words;
  }

  // A region's kernel: the parameters are the output's address and what `given` answers of the
  // numbers' addresses on the host.
  using Given = std::function<std::vector<void*>(void* const* numbers)>;
  struct Kernel {
    const Driver& d;
    CuFunction function;
    Given given;
    std::uint32_t calls = 0;

    static std::int32_t run(void* self, const RegionCall* call) {
      auto& [d, function, given, calls] = *static_cast<Kernel*>(self);
      ++calls;
      auto out = reinterpret_cast<CuDevicePtr>(call->buffers[0]);
      std::vector<void*> params{&out};
      for (void* const param : given(call->buffers + 1)) params.push_back(param);
      return static_cast<std::int32_t>(d.cuLaunchKernel(
          function, 1, 1, 1, 1, 1, 1, 0, stream_of(call->stream), params.data(), nullptr));
    }
  };
  Kernel as_they_are() {
    return {d, keep_,
            [](void* const* numbers) { return std::vector<void*>(numbers, numbers + 5); }};
  }
  Result<Recording> record(Kernel& kernel) {
    return anabranch::record(plan_of(builder), device, {{"keep", {Kernel::run, &kernel}}});
  }
  void expect_refused(Kernel& kernel, const std::string& with) {
    const auto refused = record(kernel);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().message(), HasSubstr(with));
  }

  testing::SimBench bench;
  const Driver& d = bench.driver();
  Device device = bench.make_device();
  ProgramBuilder builder;
  CuFunction keep_ = nullptr, keep_two_ = nullptr;
  BufferId y_{};

 private:
  CuModule module_ = nullptr;
  CuStream stream_ = nullptr;
  std::vector<CuDevicePtr> memory_;
};

TEST_F(PlanNumbersTest, KernelsHaveWhatEachLaunchGives) {
  compute("keep", add_five());
  Kernel kernel = as_they_are();
  const Recording recording = must(record(kernel));
  EXPECT_EQ(kernel.calls, 4u);
  for (const Numbers& with : kLaunches) EXPECT_EQ(launched(recording, with), with.words());
  const auto slots = recording.slots();
  ASSERT_EQ(slots.size(), 6u);
  EXPECT_EQ(slots[0].number, NumberKind::kNone);
  EXPECT_EQ(slots[5].number, NumberKind::kBF16);
}

TEST_F(PlanNumbersTest, RegionsOnTheHostReadWhatEachLaunchGives) {
  compute("keep", add_five());
  const Region region{[](void*, const RegionCall* call) {
                        auto* out = static_cast<std::uint64_t*>(call->buffers[0]);
                        constexpr std::array kBytes{4, 8, 4, 8, 2};
                        for (std::size_t i = 0; i < kBytes.size(); ++i) {
                          out[i] = 0;
                          std::memcpy(out + i, call->buffers[1 + i], kBytes[i]);
                        }
                        return 0;
                      },
                      nullptr};
  const Recording recording =
      must(anabranch::record(plan_of(builder), Device::host(), {{"keep", region}}));
  std::array<std::uint64_t, 5> out{};
  for (const Numbers& with : kLaunches) {
    must(launch(recording, bind(out.data(), with)));
    EXPECT_EQ(out, with.words());
  }
}

TEST_F(PlanNumbersTest, TwoNumbersMayShareAWordWithOneAnotherOrWithWhatStays) {
  const BufferId low = builder.add_number("low", NumberKind::kF32);
  const BufferId high = builder.add_number("high", NumberKind::kF32);
  compute("keep", {low, high});
  std::array<float, 2> pair{};
  for (const bool are_two : {true, false}) {
    Kernel kernel{d, keep_two_, [&](void* const* numbers) {
                    pair[0] = *static_cast<float*>(numbers[0]);
                    pair[1] = are_two ? *static_cast<float*>(numbers[1]) : 7.5f;
                    return std::vector<void*>{&pair};
                  }};
    const Recording recording = must(record(kernel));
    for (const float value : {1.5f, -2.0f}) {
      const CuDevicePtr out = allocate();
      const std::vector<Binding> bindings{{reinterpret_cast<void*>(out), kOutBytes},
                                          Binding::number(value),
                                          Binding::number(value * 3)};
      EXPECT_TRUE(must(launch(recording, bindings)).wait().ok());
      std::array<float, 2> found{};
      EXPECT_EQ(d.cuMemcpyDtoH(found.data(), out, sizeof found), CuResult::kSuccess);
      EXPECT_THAT(found, ElementsAre(value, are_two ? value * 3 : 7.5f));
    }
  }
}

TEST_F(PlanNumbersTest, WhatARegionComputesFromANumberIsRefused) {
  compute("keep", add_five());
  std::array<double, 2> computed{};
  Kernel doubled = as_they_are();
  doubled.given = [&](void* const* numbers) {
    std::vector<void*> given(numbers, numbers + 5);
    computed[0] = 2 * *static_cast<double*>(numbers[1]);
    given[1] = &computed[0];
    return given;
  };
  expect_refused(doubled, "kernel 0 'keep' is given something at byte 16");
  Kernel narrowed = as_they_are();
  std::array<float, 2> narrow{};
  narrowed.given = [&](void* const* numbers) {
    std::vector<void*> given(numbers, numbers + 5);
    narrow[0] = static_cast<float>(*static_cast<double*>(numbers[1]));
    given[0] = narrow.data();
    return given;
  };
  expect_refused(narrowed, "is not of the number's own kind");
}

TEST_F(PlanNumbersTest, WhatARegionDecidesByANumberIsRefused) {
  compute("keep", add_five());
  Kernel plain = as_they_are();
  // As often as the number says, up to some.
  Region region{[](void* self, const RegionCall* call) {
                  const std::int32_t count = *static_cast<std::int32_t*>(call->buffers[3]);
                  for (std::int32_t i = 0; i <= count % 64; ++i) Kernel::run(self, call);
                  return 0;
                },
                &plain};
  const auto refused = anabranch::record(plan_of(builder), device, {{"keep", region}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), StatusCode::kCapturesDiffer);
}

TEST_F(PlanNumbersTest, AWordThatEqualsANumberByChanceIsFoundOut) {
  const BufferId number = builder.add_number("n", NumberKind::kI32, 0, 3);
  compute("keep", {number});
  std::array<std::int32_t, 2> pair{};
  Kernel kernel{d, keep_two_, [&](void* const* numbers) {  // the number, and its parity
                  pair[0] = *static_cast<std::int32_t*>(numbers[0]);
                  pair[1] = pair[0] % 2;
                  return std::vector<void*>{&pair};
                }};
  const auto found = record(kernel);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code(), StatusCode::kNotRecordable);
}

TEST_F(PlanNumbersTest, BoundsThatLeaveTooFewValuesAreRefused) {
  compute("keep", {builder.add_number("n", NumberKind::kI32, 4, 4.5)});
  Kernel kernel{d, keep_two_, [](void* const* numbers) { return std::vector<void*>{numbers[0]}; }};
  expect_refused(kernel, "number 'n' lies between 4 and 4.5, too near one another");
}

TEST_F(PlanNumbersTest, OfAnotherKindOrOutOfBoundsTheyAreRefusedOnEveryDevice) {
  compute("keep", add_five(0, 1));
  Kernel kernel = as_they_are();
  const Region nothing{[](void*, const RegionCall*) { return 0; }, nullptr};
  const Recording on_gpu = must(record(kernel));
  const Recording on_host =
      must(anabranch::record(plan_of(builder), Device::host(), {{"keep", nothing}}));
  std::array<std::uint64_t, 5> host_memory{};
  const Numbers good{0.5f, 1, 2, 3, 4};
  for (const Recording* const recording : {&on_gpu, &on_host}) {
    void* const out =
        recording == &on_gpu ? reinterpret_cast<void*>(allocate()) : host_memory.data();
    const auto expect_bad = [&](std::size_t slot, Binding binding, const std::string& with) {
      auto bindings = bind(out, good);
      bindings[slot] = binding;
      const auto launched = launch(*recording, bindings);
      ASSERT_FALSE(launched.ok()) << with;
      EXPECT_EQ(launched.error().code(), StatusCode::kBadBinding);
      EXPECT_THAT(launched.error().message(), HasSubstr(with));
    };
    EXPECT_TRUE(must(launch(*recording, bind(out, good))).wait().ok());
    expect_bad(1, Binding::number(1.5f), "number 'rate' (slot 1) is 1.5, and was declared");
    expect_bad(1, Binding::number(std::nanf("")), "declared to lie between 0 and 1");
    expect_bad(1, Binding::number(0.5), "is a float, and a double was given");
    expect_bad(3, Binding::number(0.5f), "is an int32, and a float was given");
    expect_bad(4, {out, 8}, "is an int64, and no number was given");
    expect_bad(5, Binding::number(std::int8_t{1}), "a bfloat16's bits, and no number was given");
  }
}

}  // namespace
}  // namespace anabranch::cuda
