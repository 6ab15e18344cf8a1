// SPDX-License-Identifier: Apache-2.0
// What the tests of this room share: a driver with a context and a few kernels.
#pragma once

#include <gmock/gmock.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "device/sim/sim_driver.h"

namespace anabranch::cuda {

inline void PrintTo(CuResult result, std::ostream* out) { *out << result_text(result); }

}  // namespace anabranch::cuda

namespace anabranch::sim {

using namespace cuda;

#define ASSERT_CU(call) ASSERT_EQ(call, ::anabranch::cuda::CuResult::kSuccess)
#define EXPECT_CU(call) EXPECT_EQ(call, ::anabranch::cuda::CuResult::kSuccess)

// add_one(in, out, count): out[i] = in[i] + 1, on 32-bit words.
inline Kernel add_one_kernel() {
  return {.name = "add_one", .params = layout_of({8, 8, 4}), .run = [](const KernelCall& call) {
            const auto count = call.param<std::uint32_t>(16);
            const auto* in = call.memory<std::uint32_t>(call.param<CuDevicePtr>(0), count);
            auto* out = call.memory<std::uint32_t>(call.param<CuDevicePtr>(8), count);
            for (std::uint32_t i = 0; in && out && i < count; ++i) out[i] = in[i] + 1;
          }};
}

// Pages at addresses of their own, mapped, each of kPageBytes. Other memory can be put in the place
// of any of them.
class MappedPages {
 public:
  MappedPages(const Driver& driver, std::size_t pages) : d_(driver), bytes_(pages * kPageBytes) {
    EXPECT_CU(d_.cuMemAddressReserve(&address_, bytes_, 0, 0, 0));
    for (std::size_t page = 0; page < pages; ++page) map(page);
  }
  ~MappedPages() {  // the context may be lost
    d_.cuMemUnmap(address_, bytes_);
    d_.cuMemAddressFree(address_, bytes_);
  }
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;

  CuDevicePtr address() const { return address_; }
  void map_anew(std::size_t page) {
    EXPECT_CU(d_.cuMemUnmap(address_ + page * kPageBytes, kPageBytes));
    map(page);
  }
  static constexpr std::size_t kPageBytes = std::size_t{2} << 20;

 private:
  void map(std::size_t page) {
    const CuDevicePtr at = address_ + page * kPageBytes;
    CuMemAllocationProp prop{};
    prop.type = CuAllocationType::kPinned;
    prop.location = {CuLocationType::kDevice, 0};
    const CuMemAccessDesc access{prop.location, CuAccess::kReadWrite};
    CuMemoryHandle handle = 0;
    EXPECT_CU(d_.cuMemCreate(&handle, kPageBytes, &prop, 0));
    EXPECT_CU(d_.cuMemMap(at, kPageBytes, 0, handle, 0));
    EXPECT_CU(d_.cuMemRelease(handle));  // the mapping keeps it
    EXPECT_CU(d_.cuMemSetAccess(at, kPageBytes, &access, 1));
  }

  const Driver& d_;
  const std::size_t bytes_;
  CuDevicePtr address_ = 0;
};

class SimTest : public ::testing::Test {
 protected:
  explicit SimTest(const SimOptions& options = {}) { start(options); }

  void start(const SimOptions& options) {
    sim.reset();
    sim = std::make_unique<SimDriver>(options);
    d = &sim->table();
    add_one_ = nullptr;
    sim->add_kernel(add_one_kernel());
    EXPECT_CU(d->cuInit(0));
    EXPECT_CU(d->cuDevicePrimaryCtxRetain(&context, 0));
    EXPECT_CU(d->cuCtxSetCurrent(context));
  }

  CuDevicePtr allocate(std::size_t bytes) {
    CuDevicePtr address = 0;
    EXPECT_CU(d->cuMemAlloc(&address, bytes));
    return address;
  }
  CuStream stream(unsigned flags = kStreamNonBlocking) {
    CuStream made = nullptr;
    EXPECT_CU(d->cuStreamCreateWithPriority(&made, flags, 0));
    return made;
  }
  CuEvent event(unsigned flags = kEventDefault) {
    CuEvent made = nullptr;
    EXPECT_CU(d->cuEventCreate(&made, flags));
    return made;
  }
  // Adds a kernel and loads it.
  CuFunction load(Kernel kernel) {
    const std::string name = kernel.name;
    sim->add_kernel(std::move(kernel));
    return load(name);
  }
  CuFunction load(const std::string& name) {
    CuModule module = nullptr;
    CuFunction function = nullptr;
    EXPECT_CU(d->cuModuleLoadData(&module, SimDriver::make_image({name}).c_str()));
    EXPECT_CU(d->cuModuleGetFunction(&function, module, name.c_str()));
    return function;
  }
  // A kernel without parameters that notes its name in `order`.
  CuFunction noting(const std::string& name, std::uint64_t duration_ns = 1000, bool waits = true) {
    return load({.name = name,
                 .params = {},
                 .run = [this, name](const KernelCall&) { order.push_back(name); },
                 .duration_ns = duration_ns,
                 .waits = waits});
  }
  CuResult launch(CuFunction function, CuStream on, std::vector<void*> params = {}) {
    return d->cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on,
                             params.empty() ? nullptr : params.data(), nullptr);
  }
  CuResult add_one(CuStream on, CuDevicePtr in, CuDevicePtr out, std::uint32_t count = 1) {
    if (!add_one_) add_one_ = load("add_one");
    return launch(add_one_, on, {&in, &out, &count});
  }
  void put(CuDevicePtr address, std::uint32_t value) {
    EXPECT_CU(d->cuMemcpyHtoD(address, &value, sizeof value));
  }
  std::uint32_t get(CuDevicePtr address) {
    std::uint32_t value = 0;
    EXPECT_CU(d->cuMemcpyDtoH(&value, address, sizeof value));
    return value;
  }
  CuGraph end_capture(CuStream on) {
    CuGraph graph = nullptr;
    EXPECT_CU(d->cuStreamEndCapture(on, &graph));
    return graph;
  }
  // Every call of `record`, which answers a Result, fails in turn: it is named, and nothing is left
  // behind. Answers which have failed, each as often as it did.
  template <typename Record>
  std::multiset<std::string> fail_each_call(Record record) {
    std::multiset<std::string> have_failed;
    for (std::uint64_t n = 1;; ++n) {
      const std::size_t before = sim->live_objects();
      sim->fail_call(n, CuResult::kOutOfMemory);
      const auto made = record();
      const std::string failed = sim->failed_call();
      if (failed.empty()) {
        EXPECT_TRUE(made.ok());
        return have_failed;
      }
      have_failed.insert(failed);
      if (is_of_no_effect(failed)) continue;
      EXPECT_FALSE(made.ok()) << failed;
      if (made.ok()) return have_failed;
      EXPECT_EQ(made.error().code(), StatusCode::kDriverFailed);
      EXPECT_NE(made.error().message().find(failed), std::string::npos) << made.error().message();
      EXPECT_EQ(sim->live_objects(), before) << failed;
    }
  }
  // As the one node that a captured stream comes behind from then on; destroys the graph.
  void queue_child(CuStream on, CuGraph child) {
    CuCaptureStatus status{};
    CuGraph graph = nullptr;
    const CuGraphNode* before = nullptr;
    std::size_t count = 0;
    EXPECT_CU(d->cuStreamGetCaptureInfo(on, &status, nullptr, &graph, &before, nullptr, &count));
    CuGraphNode node = nullptr;
    EXPECT_CU(d->cuGraphAddChildGraphNode(&node, graph, before, count, child));
    EXPECT_CU(d->cuStreamUpdateCaptureDependencies(on, &node, nullptr, 1, kSetCaptureDependencies));
    EXPECT_CU(d->cuGraphDestroy(child));
  }
  std::vector<CuGraphNode> nodes_of(CuGraph graph) {
    std::size_t count = 0;
    EXPECT_CU(d->cuGraphGetNodes(graph, nullptr, &count));
    std::vector<CuGraphNode> nodes(count);
    EXPECT_CU(d->cuGraphGetNodes(graph, nodes.data(), &count));
    return nodes;
  }
  CuGraphExec instantiate(CuGraph graph, unsigned long long flags = 0) {
    CuInstantiateParams params{flags, nullptr, nullptr, CuInstantiateResult::kSuccess};
    CuGraphExec exec = nullptr;
    EXPECT_CU(d->cuGraphInstantiateWithParams(&exec, graph, &params));
    return exec;
  }

  // A nicety, and what gives memory back.
  static bool is_of_no_effect(std::string_view call) {
    return call == "cuFuncGetName" || call == "cuMemFree" || call == "cuMemUnmap" ||
           call == "cuMemAddressFree" || call == "cuMemRelease" ||
           call == "cuThreadExchangeStreamCaptureMode";
  }

  std::unique_ptr<SimDriver> sim;
  const Driver* d = nullptr;
  CuContext context = nullptr;
  std::vector<std::string> order;

 private:
  CuFunction add_one_ = nullptr;
};

}  // namespace anabranch::sim
