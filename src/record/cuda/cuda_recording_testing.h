// SPDX-License-Identifier: Apache-2.0
// For tests: a small step, captured twice on the simulated driver.
#pragma once

#include <utility>
#include <vector>

#include "anabranch/captured_recording.h"
#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"

namespace anabranch::cuda::testing {

inline constexpr std::uint32_t kWords = 128;
inline constexpr std::uint64_t kBytes = kWords * sizeof(std::uint32_t);

// y = x + 4, over three temporaries: kernels in both styles of parameters, a fill and a copy.
class CudaStepTest : public sim::SimTest {
 protected:
  explicit CudaStepTest(const sim::SimOptions& options = {}) : SimTest(options) {
    work_stream = stream();
    captures[0] = capture();
    captures[1] = capture();
  }

  struct Captured {
    CuGraph graph = nullptr;
    std::vector<CaptureAllocation> memory;  // x, y, then the temporaries
  };
  const std::vector<UnitKind> kinds{UnitKind::kGiven, UnitKind::kGiven, UnitKind::kTemporary,
                                    UnitKind::kTemporary, UnitKind::kTemporary};

  // Memory of captures is given back at once: whatever still touched it would be found out.
  Captured capture() {
    Captured made;
    for (std::size_t i = 0; i < kinds.size(); ++i)
      made.memory.push_back({allocate(kBytes), kBytes});
    EXPECT_CU(d->cuStreamBeginCapture(work_stream, CuCaptureMode::kThreadLocal));
    queue_step(work_stream, made.memory);
    made.graph = end_capture(work_stream);
    for (const CaptureAllocation& memory : made.memory) EXPECT_CU(d->cuMemFree(memory.address));
    return made;
  }

  // Both captures, as a discovery takes them.
  std::vector<CaptureBlock> blocks() const {
    std::vector<CaptureBlock> all;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      all.push_back({captures[0].memory[i].address, captures[1].memory[i].address, kBytes,
                     kinds[i] == UnitKind::kGiven});
    }
    return all;
  }

  virtual void queue_step(CuStream on, const std::vector<CaptureAllocation>& memory) {
    const auto at = [&](std::size_t i) { return CuDevicePtr{memory[i].address}; };
    EXPECT_CU(d->cuMemsetD32Async(at(2), 0, kWords, on));
    EXPECT_CU(add_one(on, at(0), at(2), kWords));
    EXPECT_CU(add_one_packed(on, at(2), at(3)));
    EXPECT_CU(d->cuMemcpyDtoDAsync(at(4), at(3), kBytes, on));
    EXPECT_CU(add_one(on, at(4), at(3), kWords));
    EXPECT_CU(add_one(on, at(3), at(1), kWords));
  }
  static constexpr std::uint32_t kAdded = 4;
  static constexpr std::uint32_t kNodes = 6;

  CuResult add_one_packed(CuStream on, CuDevicePtr in, CuDevicePtr out) {
    if (!packed_) packed_ = load("add_one");
    struct {
      CuDevicePtr in, out;
      std::uint32_t count = kWords, pad = 0;
    } block{in, out};
    std::size_t size = 20;
    void* extra[] = {params_buffer_key(), &block, params_size_key(), &size, kParamsEnd};
    return d->cuLaunchKernel(packed_, 1, 1, 1, 32, 1, 1, 0, on, nullptr, extra);
  }

  Result<std::shared_ptr<CudaRecording>> try_record(const CudaRecordOptions& options = {}) {
    return record_captures(*d, {captures[0].graph, captures[0].memory},
                           {captures[1].graph, captures[1].memory}, kinds, options);
  }
  std::shared_ptr<CudaRecording> record(const CudaRecordOptions& options = {}) {
    auto made = try_record(options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }
  // A graph of one node, to.out = to.in + 1, as the child of a captured one.
  void add_child(Captured& captured, CuDevicePtr in, CuDevicePtr out) {
    EXPECT_CU(d->cuStreamBeginCapture(work_stream, CuCaptureMode::kThreadLocal));
    EXPECT_CU(add_one(work_stream, in, out, kWords));
    const CuGraph inside = end_capture(work_stream);
    CuGraphNode node = nullptr;
    EXPECT_CU(d->cuGraphAddChildGraphNode(&node, captured.graph, nullptr, 0, inside));
    EXPECT_CU(d->cuGraphDestroy(inside));
  }
  // Device code as host functions of the simulated driver.
  const DeviceCode* load_device_code() {
    auto made = DeviceCode::load(*d, sim::add_device_code(*sim).c_str());
    EXPECT_TRUE(made.ok());
    device_code_ = *std::move(made);
    return device_code_.get();
  }
  void destroy_captures() {
    for (Captured& captured : captures) {
      if (!captured.graph) continue;
      EXPECT_CU(d->cuGraphDestroy(captured.graph));
      captured.graph = nullptr;
    }
  }

  void put_words(CuDevicePtr address, std::uint32_t first) {
    std::vector<std::uint32_t> words(kWords);
    for (std::uint32_t i = 0; i < kWords; ++i) words[i] = first + i;
    EXPECT_CU(d->cuMemcpyHtoD(address, words.data(), kBytes));
  }
  std::vector<std::uint32_t> get_words(CuDevicePtr address) {
    std::vector<std::uint32_t> words(kWords);
    EXPECT_CU(d->cuMemcpyDtoH(words.data(), address, kBytes));
    return words;
  }
  void expect_result(CuDevicePtr address, std::uint32_t first) {
    const auto words = get_words(address);
    for (std::uint32_t i = 0; i < kWords; ++i) ASSERT_EQ(words[i], first + i + kAdded);
  }

  CuStream work_stream = nullptr;
  Captured captures[2];

 private:
  CuFunction packed_ = nullptr;
  std::unique_ptr<DeviceCode> device_code_;
};

}  // namespace anabranch::cuda::testing
