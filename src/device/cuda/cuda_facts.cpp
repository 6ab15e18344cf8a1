// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_facts.h"

#include <fmt/format.h>

#include <array>

namespace anabranch {
namespace cuda {
namespace {

// "NVIDIA H200, 139 GiB"
Result<std::string> describe_gpu(const Driver& driver, int ordinal) {
  CuDevice device = 0;
  std::array<char, 128> name{};
  std::size_t bytes = 0;
  if (Status got = recorded("cuDeviceGet", driver.cuDeviceGet(&device, ordinal)); !got.ok()) {
    return got;
  }
  if (Status got =
          recorded("cuDeviceGetName", driver.cuDeviceGetName(name.data(), name.size() - 1, device));
      !got.ok()) {
    return got;
  }
  if (Status got = recorded("cuDeviceTotalMem", driver.cuDeviceTotalMem(&bytes, device));
      !got.ok()) {
    return got;
  }
  return fmt::format("{}, {} GiB", name.data(), bytes >> 30);
}

Result<std::vector<std::string>> describe_gpus(const Driver& driver) {
  if (Status begun = recorded("cuInit", driver.cuInit(0)); !begun.ok()) return begun;
  int count = 0;
  if (Status got = recorded("cuDeviceGetCount", driver.cuDeviceGetCount(&count)); !got.ok()) {
    return got;
  }
  std::vector<std::string> gpus;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto gpu = describe_gpu(driver, ordinal);
    if (!gpu.ok()) return gpu.error();
    gpus.push_back(*std::move(gpu));
  }
  return gpus;
}

}  // namespace

CudaFacts facts_of(const Driver& driver) {
  CudaFacts facts;
  facts.driver_version = driver.version;
  for (std::size_t i = 0; i < kFeatureCount; ++i) {
    const auto feature = static_cast<Feature>(i);
    facts.features.push_back({std::string(feature_text(feature)), driver.why_off(feature)});
  }
  auto gpus = describe_gpus(driver);
  if (gpus.ok()) {
    facts.gpus = *std::move(gpus);
  } else {
    facts.why_no_gpus = gpus.error().message();
  }
  return facts;
}

}  // namespace cuda

Result<CudaFacts> describe_cuda() {
  const auto driver = cuda::load_driver();
  if (!driver.ok()) return driver.error();
  return cuda::facts_of(**driver);
}

}  // namespace anabranch
