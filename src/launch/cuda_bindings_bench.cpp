// SPDX-License-Identifier: Apache-2.0
// Question: what does a launch of a captured step cost the host, beside the driver's calls?
// Method:   a chain of kernels, each buffer a slot of its own, recorded on the simulated driver;
//           then the driver's launch, event and setter calls answer at once. `take` is the check of
//           the bindings alone, `launch` all of a launch. The shifts of "moved" cases take turns,
//           so that every launch moves what it says. Before time is taken, the answer of one round
//           proves that. On a shared machine take the least of many repetitions:
//             --benchmark_repetitions=15
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "device/sim/device_code_kernels.h"
#include "launch/cuda_bindings.h"
#include "launch/cuda_launch.h"
#include "record/cuda/discover.h"
#include "record/record_testing.h"

namespace anabranch::cuda {
namespace {

using anabranch::testing::must;

constexpr std::uint64_t kBytes = 4096;

void must(CuResult result) {
  if (result == CuResult::kSuccess) return;
  std::fprintf(stderr, "%s\n", result_text(result).c_str());
  std::exit(1);
}

// One recorded chain; a process holds one simulated driver at a time.
class Chain {
 public:
  explicit Chain(std::uint32_t slots) {
    sim_.add_kernel({.name = "touch", .params = sim::layout_of({8, 8}), .run = nullptr});
    must(d_.cuInit(0));
    CuContext context = nullptr;
    must(d_.cuDevicePrimaryCtxRetain(&context, 0));
    must(d_.cuCtxSetCurrent(context));
    code_ = must(DeviceCode::load(d_, sim::add_device_code(sim_).c_str()));
    record(slots);
    d_.cuGraphLaunch = [](CuGraphExec, CuStream) { return CuResult::kSuccess; };
    d_.cuEventRecord = [](CuEvent, CuStream) { return CuResult::kSuccess; };
    d_.cuEventQuery = [](CuEvent) { return CuResult::kSuccess; };
    d_.cuGraphExecKernelNodeSetParams = [](CuGraphExec, CuGraphNode, const CuKernelNodeParams*) {
      return CuResult::kSuccess;
    };
  }
  CudaRecording& recording() { return *recording_; }
  LaunchMemory& memory() { return recording_->executables()[0]->memory(); }

 private:
  void record(std::uint32_t slots) {
    CuModule module = nullptr;
    CuFunction touch = nullptr;
    must(d_.cuModuleLoadData(&module, sim::SimDriver::make_image({"touch"}).c_str()));
    must(d_.cuModuleGetFunction(&touch, module, "touch"));
    CuStream stream = nullptr;
    must(d_.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, 0));
    std::vector<CaptureAllocation> memory[2];
    CuGraph graphs[2] = {};
    for (std::uint64_t c = 0; c < 2; ++c) {
      for (std::uint64_t i = 0; i < slots; ++i) {
        memory[c].push_back({((2 + c) << 36) + i * 2 * kBytes, kBytes});
      }
      must(d_.cuStreamBeginCapture(stream, CuCaptureMode::kThreadLocal));
      for (std::uint32_t i = 1; i < slots; ++i) {
        CuDevicePtr in = memory[c][i - 1].address, out = memory[c][i].address;
        void* params[] = {&in, &out};
        must(d_.cuLaunchKernel(touch, 1, 1, 1, 32, 1, 1, 0, stream, params, nullptr));
      }
      must(d_.cuStreamEndCapture(stream, &graphs[c]));
    }
    const std::vector<UnitKind> kinds(slots, UnitKind::kGiven);
    recording_ = must(record_captures(d_, {graphs[0], memory[0]}, {graphs[1], memory[1]}, kinds,
                                      {.device_code = code_.get()}));
    for (const CuGraph graph : graphs) must(d_.cuGraphDestroy(graph));
  }

  sim::SimDriver sim_;
  Driver d_ = sim_.table();
  std::unique_ptr<DeviceCode> code_;
  std::shared_ptr<CudaRecording> recording_;
};

// Which addresses take turns.
struct Turns {
  std::vector<std::uint64_t> addresses[2];
  std::uint32_t moved = 0;  // in each turn, more than MovedPlaces::kMost for many
};

std::vector<std::uint64_t> place(std::size_t slots, std::uint64_t start, std::uint64_t stride) {
  std::vector<std::uint64_t> at(slots);
  for (std::size_t i = 0; i < slots; ++i) at[i] = start + i * stride;
  return at;
}

// Nodes settle at kHere; a launch there would set nothing.
constexpr std::uint64_t kHere = std::uint64_t{1} << 40;
constexpr std::uint64_t kLeft = std::uint64_t{2} << 40, kRight = std::uint64_t{3} << 40;
constexpr std::uint32_t kMany = MovedPlaces::kMost + 1;

Turns nothing_moved(std::size_t slots) {
  const auto here = place(slots, kHere, 2 * kBytes);
  return {{here, here}, 0};
}
Turns one_moved(std::size_t slots) {
  Turns turns = nothing_moved(slots);
  turns.addresses[1][slots / 2] += kBytes;
  turns.moved = 1;
  return turns;
}
Turns all_moved_alike(std::size_t slots) {
  return {{place(slots, kLeft, 2 * kBytes), place(slots, kRight, 2 * kBytes)}, kMany};
}
Turns all_moved_in_order(std::size_t slots) {
  return {{place(slots, kLeft, 2 * kBytes), place(slots, kRight, 3 * kBytes)}, kMany};
}
// An order of slots by address that is not their number, and stays as it is.
Turns all_moved_in_another_order(std::size_t slots) {
  Turns turns = all_moved_in_order(slots);
  for (auto& addresses : turns.addresses) {
    std::shuffle(addresses.begin(), addresses.end(), std::mt19937(7));
  }
  return turns;
}
Turns all_moved_shuffled(std::size_t slots) {
  Turns turns = all_moved_in_order(slots);
  std::mt19937 random(7);
  for (auto& addresses : turns.addresses) std::shuffle(addresses.begin(), addresses.end(), random);
  return turns;
}

// Recordings outlive the cases, since making one of 4,000 nodes takes its time.
Chain& chain_of(std::uint32_t slots) {
  static std::unique_ptr<Chain> chain;
  static std::uint32_t made = 0;
  if (made != slots) {
    chain.reset();
    chain = std::make_unique<Chain>(slots);
    made = slots;
  }
  return *chain;
}

using MakeTurns = Turns (*)(std::size_t);

void take(benchmark::State& state, MakeTurns make) {
  const auto slots = static_cast<std::uint32_t>(state.range(0));
  Chain& chain = chain_of(slots);
  const Turns turns = make(slots);
  const auto round = [&](int turn) {
    return take_bindings(chain.recording(), turns.addresses[turn], chain.memory());
  };
  must(round(0));
  if (must(round(1)).sources.count() != turns.moved)
    return state.SkipWithError("something else moved");
  int turn = 1;
  for (auto _ : state) {
    turn ^= 1;
    if (!round(turn).ok()) return state.SkipWithError("refused");
  }
}

// By a caller that tells what it has moved, or does not.
void launch_all(benchmark::State& state, MakeTurns make, bool is_told) {
  const auto slots = static_cast<std::uint32_t>(state.range(0));
  Chain& chain = chain_of(slots);
  const Turns turns = make(slots);
  SinceLaunch since;
  const auto round = [&](int turn) {
    if (turns.moved != 0) since.moved.add(slots / 2);
    return launch(chain.recording(), turns.addresses[turn], nullptr, is_told ? &since : nullptr);
  };
  for (int i = 0; i < 24; ++i) must(round(i % 2));  // settles, where it can
  const Repoint expected = turns.moved == 0   ? Repoint::kNothing
                           : turns.moved == 1 ? Repoint::kFromHost
                                              : Repoint::kFromDevice;
  if (must(round(0)) != expected) return state.SkipWithError("not what it should be");
  int turn = 0;
  for (auto _ : state) {
    turn ^= 1;
    if (!round(turn).ok()) return state.SkipWithError("refused");
  }
}

void add_all() {
  const std::pair<const char*, MakeTurns> cases[] = {
      {"nothing_moved", nothing_moved},
      {"one_moved", one_moved},
      {"all_moved_alike", all_moved_alike},
      {"all_moved_in_order", all_moved_in_order},
      {"all_moved_in_another_order", all_moved_in_another_order},
      {"all_moved_shuffled", all_moved_shuffled},
  };
  for (const int slots : {100, 1000, 4000}) {
    for (const auto& [name, make] : cases) {
      benchmark::RegisterBenchmark((std::string("take/") + name).c_str(), take, make)->Arg(slots);
    }
    for (const auto& [name, make] : cases) {
      benchmark::RegisterBenchmark((std::string("launch/") + name).c_str(), launch_all, make, false)
          ->Arg(slots);
    }
    for (const auto& [name, make] : {cases[0], cases[1]}) {
      benchmark::RegisterBenchmark((std::string("told/") + name).c_str(), launch_all, make, true)
          ->Arg(slots);
    }
  }
}

const bool added = (add_all(), true);

}  // namespace
}  // namespace anabranch::cuda
