// SPDX-License-Identifier: Apache-2.0
// For tests: a CUDA device on the simulated driver, and regions written for the host as kernels of
// it.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "anabranch/record.h"
#include "base/inside.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/handles.h"
#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_driver.h"
#include "record/record_testing.h"

namespace anabranch::testing {

// A kernel for each number of buffers: kernel(body, buffer 0, buffer 1, ...). Its body is a region
// of the host, and is given the bytes that the kernel may touch.
class SimKernels {
 public:
  static constexpr std::size_t kMostBuffers = 16;

  struct Body {
    Region region;
    std::vector<std::uint64_t> bytes;  // by access
    SimKernels* kernels = nullptr;
  };

  // For the current context.
  explicit SimKernels(sim::SimDriver& sim) : driver_(sim.table()) {
    for (std::size_t count = 0; count <= kMostBuffers; ++count) {
      const std::string name = "region_of_" + std::to_string(count);
      std::vector<sim::ParamLayout> params;
      for (std::size_t i = 0; i <= count; ++i) params.push_back({8 * i, 8});
      sim.add_kernel(
          {.name = name, .params = params, .run = [count](const auto& call) { run(call, count); }});
      driver_.cuModuleLoadData(&modules_[count], sim::SimDriver::make_image({name}).c_str());
      driver_.cuModuleGetFunction(&functions_[count], modules_[count], name.c_str());
    }
  }
  ~SimKernels() {
    for (const cuda::CuModule module : modules_) driver_.cuModuleUnload(module);
  }
  SimKernels(const SimKernels&) = delete;
  SimKernels& operator=(const SimKernels&) = delete;

  // As a region of the CUDA device, with a Body as context.
  static std::int32_t enqueue(void* context, const RegionCall* call) {
    const Body* body = static_cast<const Body*>(context);
    const SimKernels& self = *body->kernels;
    std::vector<void*> words{context};
    words.insert(words.end(), call->buffers, call->buffers + call->buffer_count);
    std::vector<void*> params;
    for (void*& word : words) params.push_back(&word);
    const cuda::CuResult result =
        self.driver_.cuLaunchKernel(self.functions_.at(call->buffer_count), 1, 1, 1, 1, 1, 1, 0,
                                    cuda::stream_of(call->stream), params.data(), nullptr);
    return static_cast<std::int32_t>(result);
  }
  // How many bodies answered anything but 0.
  int failures() const { return failures_; }

 private:
  static void run(const sim::KernelCall& call, std::size_t count) {
    const Body& body = *call.param<const Body*>(0);
    std::vector<void*> buffers;
    for (std::size_t i = 0; i < count; ++i) {
      const auto address = call.param<cuda::CuDevicePtr>(8 * (i + 1));
      buffers.push_back(body.bytes[i] == 0 ? nullptr
                                           : call.memory<std::byte>(address, body.bytes[i]));
      if (body.bytes[i] != 0 && !buffers.back()) return;  // noted as a violation
    }
    std::array<char, 64> error{};
    const RegionCall region_call{buffers.data(), static_cast<std::uint32_t>(count), error.data(),
                                 static_cast<std::uint32_t>(error.size())};
    body.kernels->failures_ += body.region.function(body.region.context, &region_call) != 0;
  }

  const cuda::Driver& driver_;
  std::array<cuda::CuModule, kMostBuffers + 1> modules_{};
  std::array<cuda::CuFunction, kMostBuffers + 1> functions_{};
  std::atomic<int> failures_{0};
};

// The table for the CUDA device of a table for the host. Must outlive what is recorded with it.
class SimRegions {
 public:
  SimRegions(SimKernels& kernels, const Plan& plan, const RegionTable& regions) {
    const Program& program = plan.program();
    for (const Step& step : program.steps()) {
      const auto found = regions.find(step.name);
      if (step.kind != StepKind::kCompute || found == regions.end()) continue;
      SimKernels::Body& body = bodies_[step.name];
      const bool is_new = !body.kernels;
      body.region = found->second;
      body.kernels = &kernels;
      body.bytes.resize(step.accesses.size());
      for (std::size_t i = 0; i < step.accesses.size(); ++i) {
        const std::uint64_t bytes = program.buffer(step.accesses[i].view.buffer).size_bytes;
        body.bytes[i] = is_new ? bytes : std::min(body.bytes[i], bytes);
      }
      table_[step.name] = {SimKernels::enqueue, &body};
    }
  }
  const RegionTable& table() const { return table_; }

 private:
  std::map<std::string, SimKernels::Body> bodies_;
  RegionTable table_;
};

// Expects at its end that nothing is left, and that nothing was touched that should not be.
class SimBench {
 public:
  explicit SimBench(const sim::SimOptions& options = {}, bool with_device_code = true)
      : sim_(options),
        driver_(sim_.table()),
        image_(with_device_code ? sim::add_device_code(sim_)
                                : sim::SimDriver::make_image({"no_code"})) {
    driver_.cuInit(0);
    driver_.cuDevicePrimaryCtxRetain(&context_, 0);
    make_current();
    kernels_ = std::make_unique<SimKernels>(sim_);
  }
  ~SimBench() {
    make_current();
    EXPECT_EQ(kernels_->failures(), 0);
    kernels_.reset();
    EXPECT_EQ(sim_.live_objects(), 0u);
    EXPECT_THAT(sim_.violations(), ::testing::IsEmpty());
  }
  SimBench(const SimBench&) = delete;
  SimBench& operator=(const SimBench&) = delete;

  sim::SimDriver& sim() { return sim_; }
  const cuda::Driver& driver() const { return driver_; }
  void make_current() const { driver_.cuCtxSetCurrent(context_); }
  Device make_device() const {
    return detail::Inside::make<Device>(must(cuda::CudaDevice::make(driver_, 0, image_.c_str())));
  }
  // As kernels; kept as long as this is.
  const RegionTable& kernels_of(const Plan& plan, const RegionTable& regions) {
    const std::lock_guard lock(mutex_);
    return regions_.emplace_back(*kernels_, plan, regions).table();
  }

 private:
  sim::SimDriver sim_;
  const cuda::Driver& driver_;
  const std::string image_;
  cuda::CuContext context_ = nullptr;
  std::unique_ptr<SimKernels> kernels_;
  std::mutex mutex_;
  std::deque<SimRegions> regions_;
};

}  // namespace anabranch::testing
