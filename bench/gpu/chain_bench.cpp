// SPDX-License-Identifier: Apache-2.0
// Question: what does a launch at new addresses cost, against a frozen graph? A chain of small
// kernels, each reading what the one before wrote, every buffer a slot of its own.
//
//   gpu_chain_bench [results.json]
//
// Rivals take turns in one run; figures are medians with the interquartile range. "end to end" is
// from the launch call until the stream is idle, "CPU" the call alone. Before anything is timed the
// last buffer of each rival is compared with what the chain must give, on cleared memory.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "device/cuda/device_code.h"
#include "launch/cuda_launch.h"
#include "record/cuda/discover.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kWords = 1024;
constexpr std::uint64_t kBytes = kWords * sizeof(std::uint32_t);
constexpr int kRounds = 101;

constexpr const char* kKernel = R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry add_one(.param .u64 p_in, .param .u64 p_out, .param .u32 p_count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %d<6>;
  ld.param.u64 %d1, [p_in];
  ld.param.u64 %d2, [p_out];
  ld.param.u32 %r1, [p_count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  mul.wide.u32 %d3, %r5, 4;
  add.s64 %d4, %d1, %d3;
  add.s64 %d5, %d2, %d3;
  ld.global.u32 %r6, [%d4];
  add.u32 %r7, %r6, 1;
  st.global.u32 [%d5], %r7;
DONE:
  ret;
}
)";

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}
void must(CuResult result) {
  if (result != CuResult::kSuccess) stop(result_text(result));
}
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) stop(result.error().message());
  return *std::move(result);
}

struct Figure {
  double median = 0, iqr = 0;
};
Figure figure_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return {values[n / 2], values[n * 3 / 4] - values[n / 4]};
}

class Chain {
 public:
  Chain(const Driver& driver, CuFunction kernel, std::uint32_t nodes)
      : d(driver), kernel_(kernel), nodes_(nodes) {
    must(d.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, 0));
    for (auto& set : sets_) {
      must(d.cuMemAlloc(&set, total()));
      for (std::uint32_t i = 0; i <= nodes; ++i) slots_[&set - sets_].push_back(set + i * kBytes);
    }
  }
  ~Chain() {
    for (const CuDevicePtr set : sets_) must(d.cuMemFree(set));
    must(d.cuStreamDestroy(stream));
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  CuGraph capture(const std::vector<std::uint64_t>& at) {
    CuGraph graph = nullptr;
    must(d.cuStreamBeginCapture(stream, CuCaptureMode::kThreadLocal));
    for (std::uint32_t i = 0; i < nodes_; ++i) {
      CuDevicePtr in = at[i], out = at[i + 1];
      std::uint32_t count = kWords;
      void* params[] = {&in, &out, &count};
      must(d.cuLaunchKernel(kernel_, 4, 1, 1, 256, 1, 1, 0, stream, params, nullptr));
    }
    must(d.cuStreamEndCapture(stream, &graph));
    return graph;
  }

  std::shared_ptr<CudaRecording> record(const CudaRecordOptions& options) {
    // Captures need addresses, not memory: far apart, with a gap behind each buffer.
    std::vector<CaptureAllocation> memory[2];
    CuGraph graphs[2];
    for (int c = 0; c < 2; ++c) {
      std::vector<std::uint64_t> at;
      for (std::uint32_t i = 0; i <= nodes_; ++i) {
        at.push_back((std::uint64_t{0x10} + c * 8) * (1ull << 36) + i * 4 * kBytes);
        memory[c].push_back({at.back(), kBytes});
      }
      graphs[c] = capture(at);
    }
    const std::vector<UnitKind> kinds(nodes_ + 1, UnitKind::kGiven);
    auto made =
        must(record_captures(d, {graphs[0], memory[0]}, {graphs[1], memory[1]}, kinds, options));
    for (const CuGraph graph : graphs) must(d.cuGraphDestroy(graph));
    return made;
  }

  const std::vector<std::uint64_t>& slots(int set) const { return slots_[set]; }
  void clear() {
    for (const CuDevicePtr set : sets_) must(d.cuMemsetD8(set, 0, total()));
    must(d.cuCtxSynchronize());
  }
  std::uint32_t last_word(int set) {
    std::uint32_t word = 0;
    must(d.cuMemcpyDtoH(&word, slots_[set].back(), sizeof word));
    return word;
  }
  std::uint32_t nodes() const { return nodes_; }

  CuStream stream = nullptr;
  const Driver& d;

 private:
  std::uint64_t total() const { return (nodes_ + 1) * kBytes; }
  CuFunction kernel_;
  std::uint32_t nodes_;
  CuDevicePtr sets_[2] = {};
  std::vector<std::uint64_t> slots_[2];
};

struct Rival {
  std::string name;
  std::function<int()> launch;  // answers in which set of buffers it wrote
  std::vector<double> end_to_end_us, cpu_us;
};

double microseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

void check(Chain& chain, Rival& rival) {
  for (int i = 0; i < 4; ++i) {
    chain.clear();
    const int set = rival.launch();
    must(chain.d.cuStreamSynchronize(chain.stream));
    if (chain.last_word(set) != chain.nodes() || chain.last_word(1 - set) != 0) {
      stop(fmt::format("{}: wrong result {} of {} nodes, other set {}", rival.name,
                       chain.last_word(set), chain.nodes(), chain.last_word(1 - set)));
    }
  }
}

// Five launches, since every eighth that updates from the device records an event as well: one in
// eight of those that are timed, then, too.
void run_round(Chain& chain, Rival& rival) {
  for (int i = 0; i < 4; ++i) rival.launch();
  must(chain.d.cuStreamSynchronize(chain.stream));
  const auto begin = std::chrono::steady_clock::now();
  rival.launch();
  const auto queued = std::chrono::steady_clock::now();
  must(chain.d.cuStreamSynchronize(chain.stream));
  const auto end = std::chrono::steady_clock::now();
  rival.cpu_us.push_back(microseconds(queued - begin));
  rival.end_to_end_us.push_back(microseconds(end - begin));
}

// A frozen graph for one set of buffers.
class Frozen {
 public:
  Frozen(Chain& chain, int set) : chain_(chain), graph_(chain.capture(chain.slots(set))) {
    CuInstantiateParams params{};
    must(chain.d.cuGraphInstantiateWithParams(&exec_, graph_, &params));
  }
  ~Frozen() {
    must(chain_.d.cuGraphExecDestroy(exec_));
    must(chain_.d.cuGraphDestroy(graph_));
  }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;
  void launch() { must(chain_.d.cuGraphLaunch(exec_, chain_.stream)); }

 private:
  Chain& chain_;
  CuGraph graph_;
  CuGraphExec exec_ = nullptr;
};

using Slots = std::vector<std::uint64_t>;
using Recorded = std::shared_ptr<CudaRecording>;

void launch_at(Chain& chain, const Recorded& recording, const Slots& slots) {
  must(launch(*recording, slots, chain.stream));
}

Rival in_turn(std::string name, std::function<void(int)> launch_set) {
  return {std::move(name),
          [launch_set, set = 0]() mutable {
            launch_set(set ^= 1);
            return set;
          },
          {},
          {}};
}
Rival all_moved(Chain& chain, std::string name, const CudaRecordOptions& options) {
  return in_turn(std::move(name), [&chain, recording = chain.record(options)](int set) {
    launch_at(chain, recording, chain.slots(set));
  });
}
Rival nothing_moved(Chain& chain, std::string name, const CudaRecordOptions& options,
                    bool is_told = false) {
  const auto recording = chain.record(options);
  for (int i = 0; i < 12; ++i) launch_at(chain, recording, chain.slots(0));  // settles
  return {std::move(name),
          [&chain, recording, is_told, since = SinceLaunch()]() mutable {
            must(launch(*recording, chain.slots(0), chain.stream, is_told ? &since : nullptr));
            return 0;
          },
          {},
          {}};
}
// By a caller that says what it has moved, or finds it out from all addresses.
Rival one_moved(Chain& chain, const DeviceCode* code, std::string name, bool is_told) {
  return {std::move(name),
          [&chain, is_told, recording = chain.record({.device_code = code}), slots = chain.slots(0),
           since = SinceLaunch(), set = 0]() mutable {
            slots[0] = chain.slots(set ^= 1)[0];
            since.moved.add(0);
            must(launch(*recording, slots, chain.stream, is_told ? &since : nullptr));
            return 0;
          },
          {},
          {}};
}

// What touching other memory in each launch costs, whoever launches.
Rival two_frozen(Chain& chain) {
  return in_turn("two frozen graphs in turn",
                 [a = std::make_shared<Frozen>(chain, 0),
                  b = std::make_shared<Frozen>(chain, 1)](int set) { (set ? b : a)->launch(); });
}

void print(std::uint32_t nodes, const Rival& rival, const Rival& frozen, std::string& rows) {
  std::vector<double> ratios;
  for (int i = 0; i < kRounds; ++i) {
    ratios.push_back(rival.end_to_end_us[i] / frozen.end_to_end_us[i]);
  }
  const Figure all = figure_of(rival.end_to_end_us), cpu = figure_of(rival.cpu_us);
  const Figure ratio = figure_of(ratios);
  fmt::print("{:>5}  {:<32} {:>9.1f} +-{:<6.1f} {:>8.1f} +-{:<6.1f} {:>6.3f} +-{:.3f}\n", nodes,
             rival.name, all.median, all.iqr, cpu.median, cpu.iqr, ratio.median, ratio.iqr);
  rows += fmt::format(
      "{}    {{\"nodes\": {}, \"what\": \"{}\", \"end_to_end_us\": {:.2f}, \"end_to_end_iqr\": "
      "{:.2f}, \"cpu_us\": {:.2f}, \"cpu_iqr\": {:.2f}, \"over_frozen\": {:.4f}, "
      "\"over_frozen_iqr\": {:.4f}}}",
      rows.empty() ? "" : ",\n", nodes, rival.name, all.median, all.iqr, cpu.median, cpu.iqr,
      ratio.median, ratio.iqr);
}

void run(const Driver& d, CuFunction kernel, const DeviceCode* code, std::uint32_t nodes,
         std::string& rows) {
  Chain chain(d, kernel, nodes);
  std::vector<Rival> rivals;
  rivals.push_back({"frozen graph",
                    [frozen = std::make_shared<Frozen>(chain, 0)] {
                      frozen->launch();
                      return 0;
                    },
                    {},
                    {}});
  rivals.push_back(nothing_moved(chain, "nothing moved", {.device_code = code}));
  rivals.push_back(nothing_moved(chain, "nothing moved, launchable",
                                 {.device_code = code, .launchable_settled = 0}));
  rivals.push_back(nothing_moved(chain, "nothing moved, told", {.device_code = code}, true));
  rivals.push_back(one_moved(chain, code, "one buffer moved", false));
  rivals.push_back(one_moved(chain, code, "one buffer moved, told", true));
  rivals.push_back(all_moved(chain, "all moved, updater", {.device_code = code}));
  rivals.push_back(all_moved(chain, "all moved, updater of two kernels",
                             {.device_code = code, .repoint_in_two = true}));
  rivals.push_back(
      all_moved(chain, "all moved, launchable", {.device_code = code, .launchable_updating = 0}));
  rivals.push_back(all_moved(chain, "all moved, not launchable",
                             {.device_code = code, .launchable_updating = ~0u}));
  rivals.push_back(all_moved(chain, "all moved, from the host", {}));
  rivals.push_back(two_frozen(chain));
  for (Rival& rival : rivals) check(chain, rival);
  for (int round = 0; round < kRounds; ++round) {
    for (Rival& rival : rivals) run_round(chain, rival);
  }
  for (const Rival& rival : rivals) print(nodes, rival, rivals[0], rows);
}

int bench(const char* results) {
  const auto driver = load_driver();
  if (!driver.ok()) stop(driver.error().message());
  const Driver& d = **driver;
  must(d.cuInit(0));
  CuContext context = nullptr;
  must(d.cuDevicePrimaryCtxRetain(&context, 0));
  must(d.cuCtxSetCurrent(context));
  char name[128] = {};
  must(d.cuDeviceGetName(name, sizeof name, 0));
  const auto code = must(DeviceCode::load(d));
  CuModule module = nullptr;
  CuFunction kernel = nullptr;
  must(d.cuModuleLoadData(&module, kKernel));
  must(d.cuModuleGetFunction(&kernel, module, "add_one"));

  fmt::print("{}, CUDA driver {}\nnodes  {:<32} {:>18} {:>17} {:>14}\n", name, d.version, "what",
             "end to end us", "CPU us", "over frozen");
  std::string rows;
  for (const std::uint32_t nodes : {100u, 400u, 1000u, 4000u}) {
    run(d, kernel, code.get(), nodes, rows);
  }
  if (results) {
    std::ofstream(results) << fmt::format(
        "{{\n  \"bench\": \"gpu_chain_bench\",\n  \"device\": \"{}\",\n  \"cuda_driver\": {},\n"
        "  \"rounds\": {},\n  \"rows\": [\n{}\n  ]\n}}\n",
        name, d.version, kRounds, rows);
  }
  return 0;
}

}  // namespace
}  // namespace anabranch::cuda

int main(int count, char** arguments) {
  return anabranch::cuda::bench(count > 1 ? arguments[1] : nullptr);
}
