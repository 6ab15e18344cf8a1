// SPDX-License-Identifier: Apache-2.0
// That the kernels which stand for copies and fills do the same, on the simulated driver.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <random>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"
#include "record/cuda/image/capture_memory.h"
#include "record/cuda/rewrite/transfer_kernels.h"

namespace anabranch::cuda {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Bytes = std::vector<std::uint8_t>;

class TransfersTest : public sim::SimTest {
 protected:
  explicit TransfersTest(const sim::SimOptions& options = {})
      : SimTest(options), code(*DeviceCode::load(*d, sim::add_device_code(*sim).c_str())) {}

  void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

  const std::unique_ptr<DeviceCode> code;
};

// One transfer between two fields, as the driver is asked for it and as it is meant.
struct Transfer {
  bool is_fill = false;
  CuMemcpy3D copy{};
  CuMemsetNodeParams fill{};
};

// Recordings of random transfers, re-pointed by the updater or by the host.
class RandomTransfersTest : public TransfersTest, public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr std::size_t kField = 6000;

  std::uint64_t random(std::uint64_t least, std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(least, most)(random_);
  }
  // Operands are offsets in the fields.
  Transfer random_copy() {
    Transfer made;
    CuMemcpy3D& copy = made.copy;
    copy.src_memory_type = copy.dst_memory_type = CuMemoryType::kDevice;
    copy.width_bytes = random(1, 80);
    const std::uint64_t dimensions = random(1, 3);
    copy.height = dimensions > 1 ? random(1, 6) : 1;
    copy.depth = dimensions > 2 ? random(1, 3) : 1;
    copy.src_x_bytes = random(0, 9), copy.dst_x_bytes = random(0, 9);
    copy.src_y = random(0, 2), copy.dst_y = random(0, 2);
    copy.src_z = random(0, 1), copy.dst_z = random(0, 1);
    copy.src_pitch = copy.width_bytes + copy.src_x_bytes + random(0, 20);
    copy.dst_pitch = copy.width_bytes + copy.dst_x_bytes + random(0, 1) * 16;
    copy.src_height = copy.height + copy.src_y + random(0, 1);
    copy.dst_height = copy.height + copy.dst_y + random(0, 1);
    copy.src_device = random(0, 40);
    copy.dst_device = random(0, 5) * 4;
    return made;
  }
  Transfer random_fill() {
    Transfer made;
    made.is_fill = true;
    const auto element = static_cast<unsigned>(1 << random(0, 2));
    const std::uint64_t width = random(1, 100), height = random(1, 4);
    made.fill = {random(0, 50) * element,
                 (width + random(0, 7)) * element,
                 static_cast<unsigned>(random(0, ~0u)),
                 element,
                 width,
                 height};
    return made;
  }

  void queue(CuStream on, const Transfer& transfer, CuDevicePtr from, CuDevicePtr to) {
    if (!transfer.is_fill) {
      CuMemcpy3D copy = transfer.copy;
      copy.src_device += from;
      copy.dst_device += to;
      EXPECT_CU(d->cuMemcpy3DAsync(&copy, on));
      return;
    }
    const CuMemsetNodeParams& fill = transfer.fill;
    if (fill.element_bytes == 2) {
      EXPECT_CU(d->cuMemsetD16Async(fill.dst + to, static_cast<unsigned short>(fill.value),
                                    fill.width, on));
    } else if (fill.element_bytes == 1) {
      EXPECT_CU(d->cuMemsetD2D8Async(fill.dst + to, fill.pitch,
                                     static_cast<unsigned char>(fill.value), fill.width,
                                     fill.height, on));
    } else {
      EXPECT_CU(d->cuMemsetD2D32Async(fill.dst + to, fill.pitch, fill.value, fill.width,
                                      fill.height, on));
    }
  }

  // The interpreter.
  static void interpret(const Transfer& transfer, const Bytes& from, Bytes& to) {
    const CuMemsetNodeParams& fill = transfer.fill;
    const std::uint64_t rows = fill.element_bytes == 2 ? 1 : fill.height;
    for (std::uint64_t y = 0; transfer.is_fill && y < rows; ++y) {
      for (std::uint64_t x = 0; x < fill.width * fill.element_bytes; ++x) {
        to.at(fill.dst + y * fill.pitch + x) =
            static_cast<std::uint8_t>(fill.value >> (x % fill.element_bytes * 8));
      }
    }
    const CuMemcpy3D& c = transfer.copy;
    for (std::uint64_t z = 0; z < c.depth; ++z) {
      for (std::uint64_t y = 0; y < c.height; ++y) {
        for (std::uint64_t x = 0; x < c.width_bytes; ++x) {
          to.at(c.dst_device + ((c.dst_z + z) * c.dst_height + c.dst_y + y) * c.dst_pitch +
                c.dst_x_bytes + x) =
              from.at(c.src_device + ((c.src_z + z) * c.src_height + c.src_y + y) * c.src_pitch +
                      c.src_x_bytes + x);
        }
      }
    }
  }

  std::shared_ptr<CudaRecording> record(const std::vector<Transfer>& transfers) {
    const CuStream on = stream();
    CuGraph graphs[2] = {};
    std::vector<CaptureAllocation> memory[2];
    for (int c = 0; c < 2; ++c) {
      for (int i = 0; i < 2; ++i) memory[c].push_back({allocate(kField), kField});
      EXPECT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kThreadLocal));
      for (const Transfer& transfer : transfers) {
        queue(on, transfer, memory[c][0].address, memory[c][1].address);
      }
      graphs[c] = end_capture(on);
      for (const CaptureAllocation& made : memory[c]) EXPECT_CU(d->cuMemFree(made.address));
    }
    const std::vector<UnitKind> kinds(2, UnitKind::kGiven);
    auto made =
        record_captures(*d, {graphs[0], memory[0]}, {graphs[1], memory[1]}, kinds,
                        {.device_code = code.get(), .updating_executables = GetParam() ? 1u : 0u});
    for (const CuGraph graph : graphs) EXPECT_CU(d->cuGraphDestroy(graph));
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }

  Bytes random_bytes() {
    Bytes bytes(kField);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random(0, 255));
    return bytes;
  }
  void launch_and_compare(CudaExec& exec, const std::vector<Transfer>& transfers) {
    const CuStream on = stream();
    const Bytes from = random_bytes();
    Bytes to = random_bytes();
    const CuDevicePtr a = allocate(kField), b = allocate(kField);
    EXPECT_CU(d->cuMemcpyHtoD(a, from.data(), kField));
    EXPECT_CU(d->cuMemcpyHtoD(b, to.data(), kField));
    const auto set = exec.set_addresses(std::vector<std::uint64_t>{a, b});
    ASSERT_TRUE(set.ok()) << set.error().message();
    EXPECT_EQ(*set, GetParam() ? 0 : transfers.size());
    expect_ok(exec.launch(on));
    EXPECT_CU(d->cuStreamSynchronize(on));
    for (const Transfer& transfer : transfers) interpret(transfer, from, to);
    Bytes a_now(kField), b_now(kField);
    EXPECT_CU(d->cuMemcpyDtoH(a_now.data(), a, kField));
    EXPECT_CU(d->cuMemcpyDtoH(b_now.data(), b, kField));
    EXPECT_TRUE(a_now == from);
    EXPECT_TRUE(b_now == to);
    EXPECT_CU(d->cuMemFree(a));
    EXPECT_CU(d->cuMemFree(b));
    EXPECT_CU(d->cuStreamDestroy(on));
  }

 private:
  std::mt19937 random_{7};
};

TEST_P(RandomTransfersTest, DoWhatAnInterpreterDoes) {
  for (int round = 0; round < 60; ++round) {
    std::vector<Transfer> transfers;
    for (int i = 0; i < 8; ++i) transfers.push_back(i % 3 == 0 ? random_fill() : random_copy());
    const auto recording = record(transfers);
    ASSERT_TRUE(recording);
    CudaExec& exec = GetParam() ? *recording->updating()[0] : *recording->executables()[0];
    for (int i = 0; i < 3; ++i) launch_and_compare(exec, transfers);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  EXPECT_THAT(sim->violations(), IsEmpty());
  const auto calls = sim->calls();
  EXPECT_THAT(calls, Not(Contains("cuGraphExecMemcpyNodeSetParams")));
  EXPECT_THAT(calls, Not(Contains("cuGraphExecMemsetNodeSetParams")));
}

std::string who(const ::testing::TestParamInfo<bool>& by_updater) {
  return by_updater.param ? "ByUpdater" : "ByHost";
}
INSTANTIATE_TEST_SUITE_P(, RandomTransfersTest, ::testing::Bool(), who);

// Steps captured on memory for captures.
class CapturedTransfersTest : public TransfersTest {
 protected:
  using TransfersTest::TransfersTest;
  static constexpr std::uint64_t kBytes = 256;
  using Step = std::function<void(CuStream, const std::vector<CuDevicePtr>&)>;

  // Units are of kBytes each; all are given.
  Result<std::shared_ptr<CudaRecording>> record(std::size_t units, const Step& step,
                                                const CudaRecordOptions& options) {
    std::unique_ptr<CaptureMemory> memory[2];
    CuGraph graphs[2] = {};
    for (int c = 0; c < 2; ++c) {
      memory[c] = *CaptureMemory::make(*d);
      std::vector<CuDevicePtr> at;
      for (std::size_t i = 0; i < units; ++i) at.push_back(*memory[c]->allocate(kBytes));
      const CuStream on = stream();
      EXPECT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kThreadLocal));
      step(on, at);
      graphs[c] = end_capture(on);
    }
    const std::vector<UnitKind> kinds(units, UnitKind::kGiven);
    auto made = record_captures(*d, {graphs[0], memory[0]->allocations()},
                                {graphs[1], memory[1]->allocations()}, kinds, options);
    for (const CuGraph graph : graphs) EXPECT_CU(d->cuGraphDestroy(graph));
    return made;
  }
  void run(CudaExec& exec) {
    const CuStream on = stream();
    expect_ok(exec.launch(on));
    EXPECT_CU(d->cuStreamSynchronize(on));
  }
};

TEST_F(CapturedTransfersTest, RunAtAllocatedMemoryAndAtMappedMemory) {
  const CuDevicePtr constant = allocate(kBytes);
  put(constant, 42);
  const auto recording = *record(2,
                                 [&](CuStream on, const auto& at) {
                                   EXPECT_CU(d->cuMemcpyDtoDAsync(at[0], constant, 64, on));
                                   EXPECT_CU(d->cuMemcpyDtoDAsync(at[1], at[0], 64, on));
                                   EXPECT_CU(d->cuMemsetD32Async(at[0], 7, 1, on));
                                 },
                                 {.device_code = code.get()});
  const auto mapped = *CaptureMemory::make(*d);
  for (const auto& execs : {recording->executables(), recording->updating()}) {
    const CuDevicePtr ours = *mapped->allocate(kBytes);
    for (const auto& [x, y] :
         {std::pair(allocate(kBytes), allocate(kBytes)), std::pair(ours, allocate(kBytes)),
          std::pair(allocate(kBytes), ours)}) {
      const auto set = execs[0]->set_addresses(std::vector<std::uint64_t>{x, y});
      ASSERT_TRUE(set.ok()) << set.error().message();
      run(*execs[0]);
      EXPECT_EQ(get(x), 7u);
      EXPECT_EQ(get(y), 42u);
    }
  }
}

TEST_F(CapturedTransfersTest, WithoutDeviceCodeTheDriverKeepsTheKindOfMemory) {
  const auto recording = *record(
      2,
      [&](CuStream on, const auto& at) { EXPECT_CU(d->cuMemcpyDtoDAsync(at[1], at[0], 64, on)); },
      {});
  const auto set = recording->executables()[0]->set_addresses(
      std::vector<std::uint64_t>{allocate(kBytes), allocate(kBytes)});
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.error().code(), StatusCode::kLaunchDriverFailed);
  EXPECT_THAT(set.error().message(), HasSubstr("cuGraphExecMemcpyNodeSetParams"));
}

TEST_F(CapturedTransfersTest, CopiesWithTheHostRunAtAllocatedMemoryWithAndWithoutDeviceCode) {
  void* pinned = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&pinned, 2 * kBytes, 0));
  auto* const host = static_cast<std::uint32_t*>(pinned);
  const auto step = [&](CuStream on, const std::vector<CuDevicePtr>& at) {
    EXPECT_CU(d->cuMemcpyHtoDAsync(at[0], host, kBytes, on));
    EXPECT_CU(add_one(on, at[0], at[1]));
    EXPECT_CU(d->cuMemcpyDtoHAsync(host + 64, at[1], 4, on));
  };
  for (const DeviceCode* with : std::vector<const DeviceCode*>{nullptr, code.get()}) {
    const auto recording = *record(2, step, {.device_code = with});
    std::vector<CudaExec*> execs{recording->executables()[0].get()};
    if (with) execs.push_back(recording->updating()[0].get());
    for (std::uint32_t round = 0; round < 4; ++round) {
      CudaExec& exec = *execs[round % execs.size()];
      const std::vector<std::uint64_t> at{allocate(kBytes), allocate(kBytes)};
      ASSERT_TRUE(exec.set_addresses(at).ok());
      host[0] = 100 * round;
      run(exec);
      EXPECT_EQ(host[64], 100 * round + 1);
    }
  }
  EXPECT_CU(d->cuMemFreeHost(pinned));
}

TEST_F(CapturedTransfersTest, MemoryThatNeverMovesIsCopiedByTheDriver) {
  const CuDevicePtr x = allocate(kBytes), y = allocate(kBytes);
  put(x, 42);
  const auto recording = *record(
      0, [&](CuStream on, const auto&) { EXPECT_CU(d->cuMemcpyDtoDAsync(y, x, kBytes, on)); },
      {.device_code = code.get()});
  EXPECT_THAT(sim->calls(), Not(Contains("cuGraphDestroyNode")));
  run(*recording->executables()[0]);
  EXPECT_EQ(get(y), 42u);
}

// Of what is free to run the simulated driver picks by its seed.
class OrderOfTransfersTest : public CapturedTransfersTest,
                             public ::testing::WithParamInterface<std::uint64_t> {
 protected:
  OrderOfTransfersTest() : CapturedTransfersTest({.seed = GetParam(), .jitter_ns = 5000}) {}
};

// Each of a copy and a fill has to come between two others, across two branches.
TEST_P(OrderOfTransfersTest, IsTheStepsOrder) {
  const CuStream side = stream();
  const CuEvent forked = event(), joined = event();
  const auto step = [&](CuStream on, const std::vector<CuDevicePtr>& at) {
    EXPECT_CU(add_one(on, at[0], at[2]));
    EXPECT_CU(d->cuEventRecord(forked, on));
    EXPECT_CU(d->cuStreamWaitEvent(side, forked, 0));
    EXPECT_CU(d->cuMemcpyDtoDAsync(at[3], at[2], 64, side));
    EXPECT_CU(d->cuEventRecord(joined, side));
    EXPECT_CU(d->cuStreamWaitEvent(on, joined, 0));
    EXPECT_CU(d->cuMemsetD32Async(at[2], 1000, 16, on));
    EXPECT_CU(add_one(on, at[3], at[1]));
    EXPECT_CU(d->cuMemcpyDtoDAsync(at[3], at[2], 64, on));
  };
  const auto recording = *record(4, step, {.device_code = code.get()});
  for (const auto& execs : {recording->executables(), recording->updating()}) {
    std::vector<std::uint64_t> at;
    for (int i = 0; i < 4; ++i) at.push_back(allocate(kBytes));
    put(at[0], 5);
    ASSERT_TRUE(execs[0]->set_addresses(at).ok());
    run(*execs[0]);
    EXPECT_EQ(get(at[1]), 7u);
    EXPECT_EQ(get(at[2]), 1000u);
    EXPECT_EQ(get(at[3]), 1000u);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, OrderOfTransfersTest, ::testing::Range<std::uint64_t>(1, 21));

}  // namespace
}  // namespace anabranch::cuda
