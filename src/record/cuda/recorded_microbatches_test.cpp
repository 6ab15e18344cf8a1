// SPDX-License-Identifier: Apache-2.0
// A step over microbatches, of one model or of two, whose allocator gives each microbatch the
// addresses of the one before: recorded they run side by side, and add to the gradients in turn.
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"
#include "record/cuda/order/reachability.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kLayers = 3, kBatches = 8;
constexpr std::uint64_t kBytes = 2048;  // of each tensor

class RecordedMicrobatchesTest : public sim::SimTest {
 protected:
  RecordedMicrobatchesTest() : SimTest({.seed = 7, .jitter_ns = 3000}) {
    code_ = *DeviceCode::load(*d, sim::add_device_code(*sim).c_str());
    add_ = load({.name = "add", .params = sim::layout_of({8, 8, 8}), .run = add, .duration_ns = 1});
    stream_ = stream();
  }

  std::shared_ptr<CudaRecording> record(std::uint32_t models, std::uint64_t parallel_bytes) {
    models_ = models;
    for (Captured& captured : captures_) capture(captured);
    std::vector<UnitKind> kinds(captures_[0].memory.size(), UnitKind::kTemporary);
    std::fill_n(kinds.begin(), given(), UnitKind::kGiven);
    const Notes notes{&*marks_, given(), works_, uses_};
    CudaRecordOptions options;
    options.device_code = code_.get();
    options.lanes = kBatches;
    options.parallel_bytes = parallel_bytes;
    auto made =
        record_captures(*d, {captures_[0].graph, captures_[0].memory},
                        {captures_[1].graph, captures_[1].memory, nullptr, &notes}, kinds, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }
  // What a launch leaves in the gradients, at memory of its own.
  std::vector<std::uint32_t> launch(const CudaRecording& recording, CudaExec& exec) {
    std::vector<std::uint64_t> at;
    for (const SourceRule& rule : recording.source_rules()) {
      at.push_back((allocate(rule.bytes() + 512) + 511) / 512 * 512);
    }
    for (std::uint32_t i = 0; i < given(); ++i) put(at[i], value(i));
    EXPECT_TRUE(exec.set_addresses(at).ok());
    EXPECT_TRUE(exec.launch(stream_).ok());
    EXPECT_CU(d->cuStreamSynchronize(stream_));
    std::vector<std::uint32_t> gradients;
    for (std::uint32_t model = 0; model < models_; ++model) {
      for (std::uint32_t i = 0; i < kLayers; ++i) gradients.push_back(get(at[gradient(model, i)]));
    }
    return gradients;
  }
  std::vector<std::uint32_t> expected() const {
    std::vector<std::uint32_t> gradients(std::size_t{models_} * kLayers);
    for (std::uint32_t model = 0; model < models_; ++model) {
      for (std::uint32_t batch = 0; batch < kBatches; ++batch) {
        std::vector<std::uint32_t> saved{value(input(model, batch))};
        for (std::uint32_t i = 0; i < kLayers; ++i) {
          saved.push_back(saved.back() + value(weight(model, i)));
        }
        std::uint32_t g = saved.back();
        for (std::uint32_t i = kLayers; i-- > 0;) {
          gradients[model * kLayers + i] += g + saved[i];
          g += value(weight(model, i));
        }
      }
    }
    return gradients;
  }
  // The first node of each microbatch, of the models in turn.
  std::vector<std::uint32_t> firsts() const { return firsts_; }
  static Reachability order_of(const CudaRecording& recording) {
    Reachability before(recording.image().nodes.size());
    for (const EdgeImage& edge : recording.image().edges) before.add(edge);
    return before;
  }

 private:
  struct Captured {
    CuGraph graph = nullptr;
    std::vector<CaptureAllocation> memory;
  };

  // Given tensors: of each model its inputs, weights and gradients.
  static constexpr std::uint32_t kOfModel = kBatches + 2 * kLayers;
  std::uint32_t given() const { return models_ * kOfModel; }
  static std::uint32_t input(std::uint32_t model, std::uint32_t i) { return model * kOfModel + i; }
  static std::uint32_t weight(std::uint32_t model, std::uint32_t i) {
    return input(model, kBatches) + i;
  }
  static std::uint32_t gradient(std::uint32_t model, std::uint32_t i) {
    return weight(model, kLayers) + i;
  }
  static std::uint32_t value(std::uint32_t tensor) { return 1000 + 37 * tensor; }

  static void add(const sim::KernelCall& call) {
    std::uint32_t* words[3];
    for (std::uint32_t i = 0; i < 3; ++i) {
      words[i] = call.memory<std::uint32_t>(call.param<CuDevicePtr>(8 * i), 1);
      if (!words[i]) return;
    }
    *words[2] = *words[0] + *words[1];
  }
  void capture(Captured& to) {
    to = {};
    marks_.emplace(*d);
    works_.clear();
    uses_.clear();
    firsts_.clear();
    std::vector<CuDevicePtr> places;
    for (std::uint32_t i = 0; i < given() + 2 * kLayers + 3; ++i)
      places.push_back(allocate(kBytes));
    for (std::uint32_t i = 0; i < given(); ++i) to.memory.push_back({places[i], kBytes});
    EXPECT_CU(d->cuStreamBeginCapture(stream_, CuCaptureMode::kRelaxed));
    for (std::uint32_t model = 0; model < models_; ++model) {
      for (std::uint32_t batch = 0; batch < kBatches; ++batch) queue(to, places, model, batch);
    }
    to.graph = end_capture(stream_);
    for (const CuDevicePtr place : places) EXPECT_CU(d->cuMemFree(place));
  }
  void queue(Captured& to, const std::vector<CuDevicePtr>& places, std::uint32_t model,
             std::uint32_t batch) {
    const CuDevicePtr* free = places.data() + given();  // the same for each microbatch
    const auto fresh = [&] {
      to.memory.push_back({*free, kBytes});
      return *free++;
    };
    firsts_.push_back(static_cast<std::uint32_t>(works_.size()));
    std::vector<CuDevicePtr> saved{places[input(model, batch)]};
    for (std::uint32_t i = 0; i < kLayers; ++i) {
      saved.push_back(fresh());
      queue_add(to, saved[i], places[weight(model, i)], saved.back());
    }
    CuDevicePtr g = saved.back();
    const CuDevicePtr product = fresh();
    for (std::uint32_t i = kLayers; i-- > 0;) {
      const CuDevicePtr sum = places[gradient(model, i)];
      queue_add(to, g, saved[i], batch == 0 ? sum : product);
      if (batch != 0) queue_add(to, sum, product, sum);
      const CuDevicePtr below = fresh();
      queue_add(to, g, places[weight(model, i)], below);
      g = below;
    }
  }
  void queue_add(const Captured& in, CuDevicePtr a, CuDevicePtr b, CuDevicePtr sum) {
    (void)*marks_->mark(stream_, in.memory.size() - given());
    EXPECT_CU(SimTest::launch(add_, stream_, {&a, &b, &sum}));
    works_.push_back({*marks_->mark(stream_, in.memory.size() - given()), 3});
    uses_.insert(uses_.end(), {{a, false}, {b, false}, {sum, true}});
  }

  std::unique_ptr<DeviceCode> code_;
  CuFunction add_ = nullptr;
  CuStream stream_ = nullptr;
  std::uint32_t models_ = 1;
  Captured captures_[2];
  std::optional<CaptureMarks> marks_;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
  std::vector<std::uint32_t> firsts_;
};

TEST_F(RecordedMicrobatchesTest, NoMicrobatchWaitsForAnotherAndGradientsAreThoseInTurn) {
  const auto recording = record(1, kNoBound);
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->step_counts().lanes, kBatches);
  const Reachability before = order_of(*recording);
  for (const std::uint32_t first : firsts()) {
    EXPECT_THAT(before.row(first), ::testing::Each(0u)) << first;
  }
  for (CudaExec* exec : {recording->executables()[0].get(), recording->updating()[0].get()}) {
    for (int round = 0; round < 5; ++round) EXPECT_EQ(launch(*recording, *exec), expected());
  }
  EXPECT_THAT(sim->violations(), ::testing::IsEmpty());
}

TEST_F(RecordedMicrobatchesTest, WithLessMemoryFewerAreUnderWayAndGradientsAreTheSame) {
  std::uint64_t more = 0;
  for (const std::uint64_t bytes : {std::uint64_t{0}, 12 * kBytes, kNoBound}) {
    const auto recording = record(1, bytes);
    ASSERT_TRUE(recording);
    EXPECT_EQ(launch(*recording, *recording->updating()[0]), expected());
    EXPECT_GT(recording->arena().size_bytes, more);
    more = recording->arena().size_bytes;
  }
  EXPECT_THAT(sim->violations(), ::testing::IsEmpty());
}

TEST_F(RecordedMicrobatchesTest, TheSecondOfTwoModelsBeginsWithTheFirst) {
  const auto recording = record(2, kNoBound);
  ASSERT_TRUE(recording);
  for (CudaExec* exec : {recording->executables()[0].get(), recording->updating()[0].get()}) {
    EXPECT_EQ(launch(*recording, *exec), expected());
  }
  const Reachability before = order_of(*recording);
  const std::uint32_t second = firsts()[kBatches];
  EXPECT_THAT(before.row(second), ::testing::Each(0u));
  EXPECT_THAT(sim->violations(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace anabranch::cuda
