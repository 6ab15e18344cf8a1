// SPDX-License-Identifier: Apache-2.0
//   gpu_differential sim | real [gtest arguments]
// Runs the cases on the simulated driver or on the machine's. Without a driver or a device it says
// so and answers 77, which ctest takes as skipped.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_driver.h"
#include "differential.h"

namespace {

using namespace anabranch;

constexpr int kSkipped = 77;

void add_early_kernels(sim::SimDriver& driver) {
  const auto add_one = [](const auto& call) {
    const auto* in =
        call.template memory<std::uint32_t>(call.template param<cuda::CuDevicePtr>(0), 1);
    auto* out = call.template memory<std::uint32_t>(call.template param<cuda::CuDevicePtr>(8), 1);
    if (in && out) *out = *in + 1;
  };
  driver.add_kernel({.name = "late_add_one", .params = sim::layout_of({8, 8, 4}), .run = add_one});
  driver.add_kernel(
      {.name = "hasty_add_one", .params = sim::layout_of({8, 8}), .run = add_one, .waits = false});
}

std::unique_ptr<sim::SimDriver> make_simulated(std::string* device_code) {
  auto made = std::make_unique<sim::SimDriver>();
  made->add_kernel(
      {.name = "add_one", .params = sim::layout_of({8, 8, 4}), .run = [](const auto& call) {
         const auto count = call.template param<std::uint32_t>(16);
         const auto* in =
             call.template memory<std::uint32_t>(call.template param<cuda::CuDevicePtr>(0), count);
         auto* out =
             call.template memory<std::uint32_t>(call.template param<cuda::CuDevicePtr>(8), count);
         const std::uint32_t threads = call.grid.x * call.block.x;
         for (std::uint32_t i = 0; in && out && i < std::min(count, threads); ++i)
           out[i] = in[i] + 1;
       }});
  made->add_kernel(
      {.name = "store", .params = sim::layout_of({4, 16}), .run = [](const auto& call) {
         const auto count = call.template param<std::uint32_t>(0);
         const auto target = call.template param<cuda::Target>(8);
         auto* out = call.template memory<std::uint32_t>(target.out, count);
         for (std::uint32_t i = 0; out && i < count; ++i) out[i] = target.value;
       }});
  made->add_kernel(
      {.name = "foreach_add_one", .params = sim::layout_of({8, 4}), .run = [](const auto& call) {
         const auto count = call.template param<std::uint32_t>(8);
         const auto* table = call.template memory<cuda::CuDevicePtr>(
             call.template param<cuda::CuDevicePtr>(0), std::size_t{2} * count);
         for (std::uint32_t i = 0; table && i < count; ++i) {
           const auto* in = call.template memory<std::uint32_t>(table[i], 1);
           auto* out = call.template memory<std::uint32_t>(table[count + i], 1);
           if (in && out) *out = *in + 1;
         }
       }});
  made->add_kernel(
      {.name = "keep_numbers", .params = sim::layout_of({8, 8, 4, 2}), .run = [](const auto& call) {
         auto* out =
             call.template memory<std::uint32_t>(call.template param<cuda::CuDevicePtr>(0), 4);
         if (!out) return;
         const auto wide = call.template param<std::uint64_t>(8);
         std::memcpy(out, &wide, sizeof wide);
         out[2] = call.template param<std::uint32_t>(16);
         out[3] = call.template param<std::uint16_t>(20);
       }});
  made->add_kernel({.name = "nothing", .params = {}, .run = nullptr});
  add_early_kernels(*made);
  *device_code = sim::add_device_code(*made);
  return made;
}

// The reason why the cases cannot run; empty when they can.
std::string why_not(const cuda::Driver& driver) {
  const cuda::CuResult result = driver.cuInit(0);
  if (result != cuda::CuResult::kSuccess) {
    return cuda::driver_status(cuda::Act::kRecord, "cuInit", result).message();
  }
  for (const auto feature : {cuda::Feature::kEdgeData, cuda::Feature::kParamInfo,
                             cuda::Feature::kVirtualMemory, cuda::Feature::kDeviceUpdates,
                             cuda::Feature::kGenericNodeParams, cuda::Feature::kTensorMaps}) {
    if (driver.has(feature)) continue;
    return std::string(cuda::feature_text(feature)) + ": " + driver.why_off(feature);
  }
  return "";
}

// `device_code_image`: null for the one in the library.
int run_on(const cuda::Driver& driver, const char* device_code_image) {
  if (const std::string reason = why_not(driver); !reason.empty()) {
    std::printf("skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  char name[128] = "";
  driver.cuDeviceGetName(name, sizeof name, 0);
  std::printf("device 0: %s, driver %d\n", name, driver.version);
  cuda::Differential::driver = &driver;
  cuda::Differential::device_code_image = device_code_image;
  return RUN_ALL_TESTS();
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  const std::string_view which = argc > 1 ? argv[1] : "";
  if (which == "sim") {
    std::string device_code;
    const auto simulated = make_simulated(&device_code);
    return run_on(simulated->table(), device_code.c_str());
  }
  if (which != "real") {
    std::fputs("usage: gpu_differential sim | real [gtest arguments]\n", stderr);
    return 2;
  }
  const Result<const cuda::Driver*> driver = cuda::load_driver();
  if (driver) return run_on(**driver, nullptr);
  std::printf("skipped: %s\n", driver.error().message().c_str());
  return kSkipped;
}
