// SPDX-License-Identifier: Apache-2.0
// For tests: memory of the simulated driver, which a test reads and writes like its own.
#pragma once

#include <gtest/gtest.h>

#include "launch/launch_testing.h"
#include "record/cuda/plan/sim_bench_testing.h"

namespace anabranch::testing {

class SimMemory : public MemorySource {
 public:
  explicit SimMemory(SimBench& bench) : bench_(bench) {}

  void* allocate(std::size_t bytes, std::size_t alignment) override {
    bench_.make_current();
    cuda::CuDevicePtr address = 0;
    EXPECT_EQ(bench_.driver().cuMemAlloc(&address, bytes), cuda::CuResult::kSuccess);
    EXPECT_EQ(address % alignment, 0u);
    return reinterpret_cast<void*>(address);
  }
  void release(void* memory, std::size_t) override {
    bench_.driver().cuMemFree(reinterpret_cast<cuda::CuDevicePtr>(memory));
  }

 private:
  SimBench& bench_;
};

}  // namespace anabranch::testing
