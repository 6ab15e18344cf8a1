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

CuResult encode_sum(CuTensorMap* map, CuTensorType, std::uint32_t, void* address,
                    const std::uint64_t*, const std::uint64_t*, const std::uint32_t*,
                    const std::uint32_t*, CuTensorInterleave, CuTensorSwizzle, CuTensorL2Promotion,
                    CuTensorOobFill) {
  map->opaque[0] = reinterpret_cast<std::uint64_t>(address);
  map->opaque[1] = map->opaque[0] + 1;
  return CuResult::kSuccess;
}

TEST_F(CudaDeviceTest, KnowsWhetherTensorMapsHoldTheirAddressesAsWords) {
  const auto why = [&](const Driver& driver) {
    const auto device = CudaDevice::make(driver, 0, image.c_str());
    return device.ok() ? (*device)->why_tensor_maps_are_opaque() : device.error().message();
  };
  EXPECT_EQ(why(*d), "");
  Driver other = *d;
  other.cuTensorMapEncodeTiled = encode_sum;
  EXPECT_THAT(why(other), HasSubstr("at two addresses differ in more than these"));
  other.cuTensorMapEncodeTiled = [](auto...) { return CuResult::kNotSupported; };
  EXPECT_THAT(why(other), HasSubstr("cuTensorMapEncodeTiled answers"));
  other.cuDeviceGetAttribute = [](int* value, CuDeviceAttribute, CuDevice) {
    *value = 0;
    return CuResult::kSuccess;
  };
  EXPECT_EQ(why(other), "");  // no kernel can use one
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
