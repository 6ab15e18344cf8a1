// SPDX-License-Identifier: Apache-2.0
// What a driver and its GPUs are, told of the simulated driver.
#include "device/cuda/cuda_facts.h"

#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(CudaFacts, NameEveryGpuAndEveryFeatureWithWhyItIsOff) {
  SimDriver driver({.device_count = 2, .driver_version = 12020});
  const CudaFacts facts = cuda::facts_of(driver.table());
  EXPECT_EQ(facts.driver_version, 12020);
  EXPECT_THAT(facts.gpus, SizeIs(2));
  EXPECT_THAT(facts.gpus[1], HasSubstr("GiB"));
  EXPECT_THAT(facts.why_no_gpus, IsEmpty());
  ASSERT_THAT(facts.features, SizeIs(cuda::kFeatureCount));
  for (std::size_t i = 0; i < cuda::kFeatureCount; ++i) {
    const auto feature = static_cast<cuda::Feature>(i);
    EXPECT_EQ(facts.features[i].name, cuda::feature_text(feature));
    EXPECT_EQ(facts.features[i].why_off, driver.table().why_off(feature));
  }
}

TEST(CudaFacts, TellWhyThereIsNoGpu) {
  SimDriver driver({.device_count = 0});
  const CudaFacts facts = cuda::facts_of(driver.table());
  EXPECT_THAT(facts.gpus, IsEmpty());
  EXPECT_THAT(facts.why_no_gpus, HasSubstr("CUDA_ERROR_NO_DEVICE"));
}

TEST(CudaFacts, TellWhichCallFailed) {
  for (const char* call : {"cuInit", "cuDeviceGetCount", "cuDeviceGetName", "cuDeviceTotalMem"}) {
    SimDriver driver;
    driver.fail_call(1, cuda::CuResult::kUnknown, call);
    const CudaFacts facts = cuda::facts_of(driver.table());
    EXPECT_THAT(facts.why_no_gpus, HasSubstr(call));
    EXPECT_THAT(facts.gpus, IsEmpty());
  }
}

TEST(CudaFacts, OfThisMachineAreThereOrHaveAReason) {
  const Result<CudaFacts> facts = describe_cuda();
  if (facts.ok()) {
    EXPECT_NE(facts->gpus.empty(), facts->why_no_gpus.empty());
  } else {
    EXPECT_EQ(facts.error().code(), StatusCode::kDriverMissing) << facts.error().message();
  }
}

}  // namespace
}  // namespace anabranch::sim
