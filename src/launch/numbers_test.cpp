// SPDX-License-Identifier: Apache-2.0
// Numbers of captured steps that change between launches, through the public headers, on the
// simulated driver.
#include <array>
#include <bit>
#include <limits>
#include <random>
#include <vector>

#include "anabranch/captured_recording.h"
#include "anabranch/launch.h"
#include "base/inside.h"
#include "device/cuda/cuda_device.h"
#include "record/cuda/cuda_recording_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What a kernel is given beside its address, as it has them: a double, a float, two floats in one
// struct, and the bits of a half.
struct Numbers {
  double wide = 0;
  float narrow = 0;
  std::array<float, 2> pair{};
  std::uint16_t half = 0;
  std::array<std::uint64_t, 4> words() const {
    return {std::bit_cast<std::uint64_t>(wide), std::bit_cast<std::uint32_t>(narrow),
            std::bit_cast<std::uint64_t>(pair), half};
  }
  std::vector<Binding> bindings() const {
    return {Binding::number(wide), Binding::number(narrow),
            Binding::number(std::bit_cast<std::uint64_t>(pair)), Binding::number(half)};
  }
};
constexpr std::uint64_t kOutBytes = sizeof(std::array<std::uint64_t, 4>);

class NumbersTest : public sim::SimTest {
 protected:
  NumbersTest() {
    image_ = sim::add_device_code(*sim);
    on_ = stream();
    keep_ = load({.name = "keep",
                  .params = sim::layout_of({8, 8, 4, 8, 2}),
                  .run = [](const sim::KernelCall& call) {
                    auto* out = call.memory<std::uint64_t>(call.param<CuDevicePtr>(0), 4);
                    if (!out) return;
                    out[0] = call.param<std::uint64_t>(8);
                    out[1] = call.param<std::uint32_t>(16);
                    out[2] = call.param<std::uint64_t>(24);
                    out[3] = call.param<std::uint16_t>(32);
                  }});
  }
  ~NumbersTest() override {
    for (const CuGraph graph : graphs_) d->cuGraphDestroy(graph);
  }

  Device open(bool with_device_code = true) {
    const std::string image = with_device_code ? image_ : sim::SimDriver::make_image({});
    return detail::Inside::make<Device>(*CudaDevice::make(*d, 0, image.c_str()));
  }

  // As many launches as there are outputs, all with these numbers.
  CaptureSnapshot capture(const Device& device, const std::vector<std::uint64_t>& out, Numbers with,
                          unsigned grid = 1) {
    EXPECT_CU(d->cuStreamBeginCapture(on_, CuCaptureMode::kThreadLocal));
    for (CuDevicePtr at : out) {
      void* params[] = {&at, &with.wide, &with.narrow, &with.pair, &with.half};
      EXPECT_CU(d->cuLaunchKernel(keep_, grid, 1, 1, 32, 1, 1, 0, on_, params, nullptr));
    }
    graphs_.push_back(end_capture(on_));
    return *CaptureSnapshot::make(device, CudaGraph(graphs_.back()));
  }

  std::vector<std::uint64_t> outputs() {
    std::vector<std::uint64_t> all;
    for (std::size_t i = 0; i < kernels_; ++i) all.push_back(allocate(512));
    return all;
  }

  Result<CapturedRecording> record(const Device& device, unsigned third_grid = 1) {
    const auto first = outputs(), second = outputs(), third = outputs();
    std::vector<CaptureBlock> blocks;
    for (std::size_t i = 0; i < kernels_; ++i) {
      blocks.push_back({first[i], second[i], kOutBytes, true});
    }
    const auto one = capture(device, first, kFirst), two = capture(device, second, kFirst);
    const auto with_others = capture(device, third, kOther, third_grid);
    const CaptureNumbers numbers{&with_others, third};
    const auto step = CapturedStep::discover(device, one, two, blocks, nullptr, &numbers);
    if (!step.ok()) return step.error();
    return step->record();
  }

  Result<Ticket> launch(const Recording& recording, const std::vector<std::uint64_t>& out,
                        const Numbers& with) {
    std::vector<Binding> bindings;
    for (const std::uint64_t at : out) bindings.push_back({reinterpret_cast<void*>(at), kOutBytes});
    for (const Binding& number : with.bindings()) bindings.push_back(number);
    return anabranch::launch(recording, bindings, CudaStream(on_));
  }

  void expect_launched(const Recording& recording, const Numbers& with) {
    const auto out = outputs();
    expect_launched_at(recording, out, with);
    for (const std::uint64_t at : out) EXPECT_CU(d->cuMemFree(at));
  }
  void expect_launched_at(const Recording& recording, const std::vector<std::uint64_t>& out,
                          const Numbers& with) {
    const auto ticket = launch(recording, out, with);
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    ASSERT_TRUE(ticket->wait().ok());
    for (const std::uint64_t at : out) {
      std::array<std::uint64_t, 4> found{};
      EXPECT_CU(d->cuMemcpyDtoH(found.data(), at, kOutBytes));
      ASSERT_EQ(found, with.words());
    }
  }

  static constexpr Numbers kFirst{0.1, 0.2f, {0.3f, 4.0f}, 7}, kOther{0.5, 0.6f, {0.7f, 4.0f}, 8};
  std::size_t kernels_ = 3;

  std::vector<CuGraph> graphs_;

 private:
  std::string image_;
  CuStream on_ = nullptr;
  CuFunction keep_ = nullptr;
};

// All bits set, the sign alone, and what no arithmetic makes: any word is right.
std::vector<Numbers> odd_numbers() {
  const double all = std::bit_cast<double>(~std::uint64_t{0});
  const float ones = std::bit_cast<float>(~std::uint32_t{0});
  const double infinite = std::numeric_limits<double>::infinity();
  return {{all, ones, {ones, ones}, 0xFFFF},
          {-0.0, -0.0f, {-0.0f, 0.0f}, 0x8000},
          {-infinite, 1e-45f, {1, -1}, 0},
          {0.1, 0.2f, {0.3f, 4.0f}, 7}};
}

TEST_F(NumbersTest, WordsThatFollowNumbersAreToldOnceForAllPlacesWhereTheyAreTheSame) {
  const auto recording = record(open());
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  const auto numbers = recording->numbers();
  ASSERT_EQ(numbers.size(), 4u);
  const auto first = kFirst.words(), other = kOther.words();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(numbers[i].size_bytes, kFirst.bindings()[i].size_bytes);
    EXPECT_EQ(numbers[i].first, first[i]);
    EXPECT_EQ(numbers[i].other, other[i]);
  }
  const Recording whole = *recording;
  EXPECT_EQ(whole.slots().size(), kernels_ + numbers.size());
  EXPECT_EQ(whole.slots().back().name, "number 3");
  EXPECT_EQ(recording->counts().sites, kernels_ * 5);
}

// With few kernels and with many, that device code would set: from the host, from the device, and
// where only numbers change.
TEST_F(NumbersTest, ALaunchHasTheNumbersThatItIsGivenWhateverTheyAre) {
  for (const bool with_device_code : {false, true}) {
    for (const std::size_t kernels : {1, 40}) {
      kernels_ = kernels;
      const Device device = open(with_device_code);
      for (const Numbers& begin : odd_numbers()) {
        const auto recording = record(device);
        ASSERT_TRUE(recording.ok()) << recording.error().message();
        expect_launched(*recording, begin);
        for (const Numbers& each : odd_numbers()) expect_launched(*recording, each);
        const auto out = outputs();
        for (const Numbers& each : odd_numbers()) {
          for (int repeat = 0; repeat < 12; ++repeat) {
            expect_launched_at(*recording, out, each);
          }
        }
      }
    }
  }
}

// Three halves in a struct, and another parameter behind them.
TEST_F(NumbersTest, ANumberOfAnOddWidthLeavesWhatLiesBehindItAlone) {
  using Halves = std::array<std::uint16_t, 3>;
  const CuFunction keep = load({.name = "keep_halves",
                                .params = {{0, 8}, {8, sizeof(Halves)}, {14, 2}},
                                .run = [](const sim::KernelCall& call) {
                                  auto* out =
                                      call.memory<std::uint16_t>(call.param<CuDevicePtr>(0), 4);
                                  for (std::size_t i = 0; out && i < 4; ++i) {
                                    out[i] = call.param<std::uint16_t>(8 + 2 * i);
                                  }
                                }});
  const Device device = open();
  const CuStream on = stream();
  const std::uint16_t behind = 0xBEEF;
  kernels_ = 40;
  const auto capture_with = [&](const std::vector<std::uint64_t>& out, Halves with) {
    EXPECT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kThreadLocal));
    for (CuDevicePtr at : out) {
      std::uint16_t last = behind;
      void* params[] = {&at, &with, &last};
      EXPECT_CU(d->cuLaunchKernel(keep, 1, 1, 1, 32, 1, 1, 0, on, params, nullptr));
    }
    graphs_.push_back(end_capture(on));
    return *CaptureSnapshot::make(device, CudaGraph(graphs_.back()));
  };
  const auto first = outputs(), second = outputs(), third = outputs();
  std::vector<CaptureBlock> blocks;
  for (std::size_t i = 0; i < kernels_; ++i) blocks.push_back({first[i], second[i], 8, true});
  const auto one = capture_with(first, {1, 2, 3}), two = capture_with(second, {1, 2, 3});
  const auto others = capture_with(third, {4, 5, 6});
  const CaptureNumbers numbers{&others, third};
  const auto step = CapturedStep::discover(device, one, two, blocks, nullptr, &numbers);
  ASSERT_TRUE(step.ok()) << step.error().message();
  const auto recording = step->record();
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  ASSERT_EQ(recording->numbers().size(), 1u);
  EXPECT_EQ(recording->numbers()[0].size_bytes, sizeof(Halves));
  for (std::uint64_t round = 7; round < 12; ++round) {
    const auto out = outputs();
    std::vector<Binding> bindings;
    for (const std::uint64_t at : out) bindings.push_back({reinterpret_cast<void*>(at), 8});
    bindings.push_back(
        {reinterpret_cast<void*>(round | 8 << 16 | std::uint64_t{9} << 32), sizeof(Halves)});
    const auto ticket = anabranch::launch(*recording, bindings, CudaStream(on));
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    ASSERT_TRUE(ticket->wait().ok());
    for (const std::uint64_t at : out) {
      std::array<std::uint16_t, 4> found{};
      EXPECT_CU(d->cuMemcpyDtoH(found.data(), at, sizeof found));
      ASSERT_THAT(found, ElementsAre(round, 8, 9, behind));
    }
  }
}

TEST_F(NumbersTest, RandomNumbersAndAddressesAreThoseOfTheirLaunch) {
  std::mt19937_64 random(7);
  kernels_ = 30;
  const auto recording = record(open());
  ASSERT_TRUE(recording.ok()) << recording.error().message();
  std::vector<std::uint64_t> out = outputs();
  Numbers with = kFirst;
  for (int round = 0; round < 300; ++round) {
    if (random() % 3 == 0) out = outputs();
    if (random() % 2 == 0) with.wide = std::bit_cast<double>(random());
    if (random() % 2 == 0) with.narrow = static_cast<float>(random() % 5);
    if (random() % 4 == 0) with.pair = std::bit_cast<std::array<float, 2>>(random());
    if (random() % 4 == 0) with.half = static_cast<std::uint16_t>(random());
    expect_launched_at(*recording, out, with);
  }
}

TEST_F(NumbersTest, ALaunchThatFailsLeavesTheNextOneRight) {
  const auto made = record(open(false));
  ASSERT_TRUE(made.ok());
  const auto out = outputs();
  for (std::uint64_t n = 1;; ++n) {
    for (const Numbers& each : odd_numbers()) {
      sim->fail_call(n, CuResult::kOutOfMemory);
      const auto failing = launch(*made, out, each);
      const std::string failed = sim->failed_call();
      sim->fail_call(0, CuResult::kSuccess);
      if (failed.empty() && n > 8) return;
      // The same, and what the nodes may hold already.
      expect_launched_at(*made, out, each);
      expect_launched_at(*made, out, kFirst);
    }
  }
}

TEST_F(NumbersTest, ANumberOfAnotherSizeIsRefused) {
  const auto made = record(open());
  ASSERT_TRUE(made.ok());
  const Recording recording = *made;
  std::vector<Binding> bindings;
  for (const std::uint64_t at : outputs()) {
    bindings.push_back({reinterpret_cast<void*>(at), kOutBytes});
  }
  for (const Binding& number : kFirst.bindings()) bindings.push_back(number);
  bindings[kernels_ + 1] = Binding::number(0.2);
  const auto refused = anabranch::launch(recording, bindings, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), StatusCode::kBadBinding);
  EXPECT_THAT(refused.error().message(), HasSubstr("number 1 takes 4 bytes, and 8 were given"));
  bindings.pop_back();
  EXPECT_THAT(anabranch::launch(recording, bindings, {}).error().message(),
              HasSubstr("3 slots, 0 arena parts and 4 numbers"));
}

TEST_F(NumbersTest, ANumberThatLeadsToOtherWorkIsRefused) {
  const auto refused = record(open(), 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), StatusCode::kCapturesDiffer);
  EXPECT_THAT(refused.error().message(), HasSubstr("grid 1x1x1 and 2x1x1"));
}

TEST_F(NumbersTest, EveryBlockNeedsItsAddressInTheThirdCapture) {
  const Device device = open();
  const auto first = outputs(), second = outputs(), third = outputs();
  const auto one = capture(device, first, kFirst), two = capture(device, second, kFirst);
  const auto with_others = capture(device, third, kOther);
  const std::vector<CaptureBlock> blocks = {{first[0], second[0], kOutBytes, true}};
  const CaptureNumbers numbers{&with_others, third};
  const auto refused = CapturedStep::discover(device, one, two, blocks, nullptr, &numbers);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("3 addresses of blocks"));
}

}  // namespace
}  // namespace anabranch::cuda
