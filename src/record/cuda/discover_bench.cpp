// SPDX-License-Identifier: Apache-2.0
// Question: what do the recordings of one captured step take, one in captured order and one on four
//           lanes, and how much of that is the discovery of what both have in common?
// Method:   a training step of `layers` layers, four kernels each (forward, two of backward, the
//           optimizer's), every kernel noted, captured twice on the simulated driver. Images are
//           read beforehand, as they are for captured steps. Times hold the simulated driver's own,
//           which makes executables faster than a real one does.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/sim/device_code_kernels.h"
#include "record/cuda/discover.h"
#include "record/record_testing.h"

namespace anabranch::cuda {
namespace {

using anabranch::testing::must;

constexpr std::uint64_t kBytes = 4096;
constexpr std::uint32_t kLanes = 4;

void must(CuResult result) {
  if (result == CuResult::kSuccess) return;
  std::fprintf(stderr, "%s\n", result_text(result).c_str());
  std::exit(1);
}

// Numbers of the step's memory: weights, and then what the step allocates, all of it at once.
struct Layers {
  std::uint32_t count = 0;
  std::uint32_t weight(std::uint32_t i) const { return i; }
  std::uint32_t activation(std::uint32_t i) const { return count + i; }
  std::uint32_t gradient(std::uint32_t i) const { return 2 * count + 1 + i; }
  std::uint32_t of_weight(std::uint32_t i) const { return 3 * count + 2 + i; }
  std::uint32_t blocks() const { return 4 * count + 2; }
};

// A process holds one simulated driver at a time.
class Step {
 public:
  explicit Step(std::uint32_t layers) : layers_{layers} {
    sim_.add_kernel({.name = "touch", .params = sim::layout_of({8, 8, 8, 4, 4}), .run = nullptr});
    must(d_.cuInit(0));
    CuContext context = nullptr;
    must(d_.cuDevicePrimaryCtxRetain(&context, 0));
    must(d_.cuCtxSetCurrent(context));
    code_ = must(DeviceCode::load(d_, sim::add_device_code(sim_).c_str()));
    must(d_.cuModuleLoadData(&module_, sim::SimDriver::make_image({"touch"}).c_str()));
    must(d_.cuModuleGetFunction(&touch_, module_, "touch"));
    must(d_.cuStreamCreateWithPriority(&stream_, kStreamNonBlocking, 0));
    for (std::uint64_t c = 0; c < 2; ++c) capture(c);
    for (std::uint32_t i = 0; i < layers_.blocks(); ++i) {
      kinds_.push_back(i < layers ? UnitKind::kGiven : UnitKind::kTemporary);
    }
  }
  ~Step() {
    for (const CuGraph graph : graphs_) d_.cuGraphDestroy(graph);
    d_.cuStreamDestroy(stream_);
    d_.cuModuleUnload(module_);
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  Discovery discover() const {
    return must(cuda::discover(d_, {graphs_[0], memory_[0], &images_[0]},
                               {graphs_[1], memory_[1], &images_[1], &notes_}, kinds_,
                               {.device_code = code_.get()}));
  }
  std::shared_ptr<CudaRecording> record(const Discovery& discovery, std::uint32_t lanes,
                                        bool with_executables = true) const {
    CudaRecordOptions options;
    options.device_code = code_.get();
    options.lanes = lanes;
    if (!with_executables) options.executables = options.updating_executables = 0;
    return must(make_recording(d_, discovery, options));
  }

 private:
  void capture(std::uint64_t number) {
    for (std::uint64_t i = 0; i < layers_.blocks(); ++i) {
      memory_[number].push_back({((2 + number) << 36) + i * 2 * kBytes, kBytes});
    }
    marks_.emplace(d_);
    works_.clear();
    uses_.clear();
    must(d_.cuStreamBeginCapture(stream_, CuCaptureMode::kThreadLocal));
    const Layers& n = layers_;
    for (std::uint32_t i = 0; i < n.count; ++i) {
      launch(number, {n.activation(i), n.weight(i)}, n.activation(i + 1));
    }
    for (std::uint32_t i = n.count; i-- > 0;) {
      launch(number, {n.gradient(i + 1), n.activation(i)}, n.of_weight(i));
      launch(number, {n.gradient(i + 1), n.weight(i)}, n.gradient(i));
    }
    for (std::uint32_t i = 0; i < n.count; ++i) {
      launch(number, {n.of_weight(i), n.weight(i)}, n.weight(i));
    }
    must(d_.cuStreamEndCapture(stream_, &graphs_[number]));
    images_[number] = must(read_graph(d_, graphs_[number]));
    notes_ = {&*marks_, n.blocks(), works_, uses_};
  }

  void launch(std::uint64_t number, std::pair<std::uint32_t, std::uint32_t> reads,
              std::uint32_t writes) {
    const auto at = [&](std::uint32_t block) { return memory_[number][block].address; };
    CuDevicePtr from[] = {at(reads.first), at(reads.second)}, to = at(writes);
    std::uint32_t sizes[] = {1024, 1};
    void* params[] = {&from[0], &from[1], &to, &sizes[0], &sizes[1]};
    must(d_.cuLaunchKernel(touch_, 8, 1, 1, 128, 1, 1, 0, stream_, params, nullptr));
    uses_.insert(uses_.end(), {{from[0], false}, {from[1], false}, {to, true}});
    works_.push_back({must(marks_->mark(stream_, 0)), 3});
  }

  const Layers layers_;
  sim::SimDriver sim_;
  const Driver& d_ = sim_.table();
  std::unique_ptr<DeviceCode> code_;
  CuModule module_ = nullptr;
  CuFunction touch_ = nullptr;
  CuStream stream_ = nullptr;
  std::vector<CaptureAllocation> memory_[2];
  CuGraph graphs_[2] = {};
  GraphImage images_[2];
  std::vector<UnitKind> kinds_;
  std::optional<CaptureMarks> marks_;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
  Notes notes_;
};

std::uint32_t layers_of(const benchmark::State& state) {
  return static_cast<std::uint32_t>(state.range(0) / 4);
}

void two_recordings(benchmark::State& state, bool discovered_once) {
  const Step step(layers_of(state));
  if (step.record(step.discover(), kLanes)->step_counts().lanes < 2) {
    return state.SkipWithError("the captured order stays");
  }
  for (auto _ : state) {
    const Discovery first = step.discover();
    const auto in_order = step.record(first, 1);
    const auto on_lanes = step.record(discovered_once ? first : step.discover(), kLanes);
    benchmark::DoNotOptimize(in_order.get());
    benchmark::DoNotOptimize(on_lanes.get());
  }
}

void discovery(benchmark::State& state) {
  const Step step(layers_of(state));
  for (auto _ : state) benchmark::DoNotOptimize(step.discover().units.data());
}

// The order, the plan of memory and its check, without the executables.
void without_executables(benchmark::State& state, std::uint32_t lanes) {
  const Step step(layers_of(state));
  const Discovery discovery = step.discover();
  for (auto _ : state) benchmark::DoNotOptimize(step.record(discovery, lanes, false).get());
}

void at_sizes(benchmark::internal::Benchmark* of) {
  of->Arg(400)->Arg(4000)->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(two_recordings, discovered_twice, false)->Apply(at_sizes);
BENCHMARK_CAPTURE(two_recordings, discovered_once, true)->Apply(at_sizes);
BENCHMARK(discovery)->Apply(at_sizes);
BENCHMARK_CAPTURE(without_executables, one_lane, 1u)->Apply(at_sizes);
BENCHMARK_CAPTURE(without_executables, four_lanes, kLanes)->Apply(at_sizes);

}  // namespace
}  // namespace anabranch::cuda
