// SPDX-License-Identifier: Apache-2.0
// CudaDevice on the simulated driver.
#include "device/cuda/context_scope.h"

#include <thread>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::HasSubstr;

class CudaDeviceTest : public SimTest {
 protected:
  CudaDeviceTest() : SimTest({.device_count = 2}) {}
  const std::string image = add_device_code(*sim);
};

TEST_F(CudaDeviceTest, UsesThePrimaryContextThatOthersUse) {
  const auto device = CudaDevice::make(*d, 0, image.c_str());
  ASSERT_TRUE(device.ok()) << device.error().message();
  EXPECT_NE((*device)->device_code(), nullptr);
  std::thread([&] {
    const ContextScope scope(**device);
    EXPECT_TRUE(scope.status().ok());
    CuContext current = nullptr;
    EXPECT_CU(d->cuCtxGetCurrent(&current));
    EXPECT_EQ(current, context);
  }).join();
}

TEST_F(CudaDeviceTest, MakingOneAndItsEndLeaveTheCallersContext) {
  CuContext other = nullptr, current = nullptr;
  ASSERT_CU(d->cuDevicePrimaryCtxRetain(&other, 1));
  ASSERT_CU(d->cuCtxSetCurrent(other));
  {
    const auto device = CudaDevice::make(*d, 0, image.c_str());
    ASSERT_TRUE(device.ok()) << device.error().message();
    EXPECT_CU(d->cuCtxGetCurrent(&current));
    EXPECT_EQ(current, other);
  }
  EXPECT_CU(d->cuCtxGetCurrent(&current));
  EXPECT_EQ(current, other);
  EXPECT_CU(d->cuCtxSetCurrent(context));
  EXPECT_CU(d->cuDevicePrimaryCtxRelease(1));
}

TEST_F(CudaDeviceTest, WithoutDeviceCodeHasAReason) {
  const std::string other = SimDriver::make_image({"add_one"});
  const auto device = CudaDevice::make(*d, 0, other.c_str());
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->device_code(), nullptr);
  EXPECT_THAT((*device)->why_no_device_code(), HasSubstr("cuModuleGetFunction"));
}

TEST_F(CudaDeviceTest, RefusesADeviceThatIsNotThere) {
  const auto device = CudaDevice::make(*d, 7, image.c_str());
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(device.error().message(), HasSubstr("cuDeviceGet"));
}

TEST_F(CudaDeviceTest, LeavesNothingBehind) {
  const std::size_t before = sim->live_objects();
  { const auto device = CudaDevice::make(*d, 0, image.c_str()); }
  EXPECT_EQ(sim->live_objects(), before);
}

}  // namespace
}  // namespace anabranch::sim
