// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.h"

#include <gmock/gmock.h>

namespace anabranch::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CudaDriver, IsAReasonAndNoFailureWhereThereIsNoLibrary) {
  const Result<Driver> driver = open_driver("libcuda_that_is_nowhere.so.1");
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code(), StatusCode::kDriverMissing);
  EXPECT_THAT(driver.error().message(), HasSubstr("libcuda_that_is_nowhere.so.1"));
}

TEST(CudaDriver, IsTooOldWhenItCannotBeAskedForVersions) {
  const Result<Driver> driver = open_driver(ANABRANCH_FAKE_FINDER);
  ASSERT_FALSE(driver);
  EXPECT_THAT(driver.error().message(), HasSubstr("it has no cuGetProcAddress_v2"));
}

TEST(CudaDriver, NamesBothVersionsWhenItIsTooOld) {
  const Result<Driver> driver = open_driver(ANABRANCH_FAKE_VERSION);
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().message(),
            "record: the CUDA driver is for CUDA 11.8, at least 12.0 is needed. Update the driver. "
            "[E0306]");
}

TEST(CudaDriver, SwitchesOffOnlyTheFeaturesThatAreTooNewForIt) {
  const Result<Driver> driver = open_driver(ANABRANCH_FAKE_NOTHING);
  ASSERT_TRUE(driver) << driver.error().message();
  EXPECT_EQ(driver->version, 12020);
  EXPECT_EQ(feature_text(Feature::kEdgeData), "edge data");
  EXPECT_THAT(driver->why_off(Feature::kCore), IsEmpty());
  EXPECT_THAT(driver->why_off(Feature::kTensorMaps), IsEmpty());
  EXPECT_EQ(driver->why_off(Feature::kEdgeData),
            "needs a driver for CUDA 12.3, this one is for 12.2");
  EXPECT_EQ(driver->why_off(Feature::kDeviceUpdates),
            "needs a driver for CUDA 12.4, this one is for 12.2");
  EXPECT_NE(driver->cuGraphLaunch, nullptr);
  EXPECT_EQ(driver->cuGraphGetEdges, nullptr);
}

TEST(CudaDriver, SwitchesAFeatureOffAsAWholeWhenOneOfItsSymbolsIsMissing) {
  const Result<Driver> driver = open_driver(ANABRANCH_FAKE_SYMBOL);
  ASSERT_TRUE(driver) << driver.error().message();
  EXPECT_EQ(driver->why_off(Feature::kTensorMaps),
            "the driver (CUDA 12.2) has no cuTensorMapReplaceAddress of CUDA 12.0");
  EXPECT_EQ(driver->cuTensorMapEncodeTiled, nullptr);
  EXPECT_TRUE(driver->has(Feature::kVirtualMemory));
}

TEST(CudaDriver, AnswersTheSameEveryTime) {
  const Result<const Driver*> first = load_driver(), second = load_driver();
  ASSERT_EQ(first.ok(), second.ok());
  if (first) {
    EXPECT_EQ(*first, *second);
  } else {
    EXPECT_EQ(first.error().code(), StatusCode::kDriverMissing);
  }
}

TEST(CudaDriver, TellsAFailureByActCallNameAndNumber) {
  const Status record =
      driver_status(Act::kRecord, "cuGraphInstantiateWithParams", CuResult::kOutOfMemory);
  EXPECT_EQ(record.code(), StatusCode::kDriverFailed);
  EXPECT_EQ(record.message(),
            "record: cuGraphInstantiateWithParams answered CUDA_ERROR_OUT_OF_MEMORY (2) [E0307]");
  const Status launch = driver_status(Act::kLaunch, "cuGraphLaunch", CuResult{12345});
  EXPECT_EQ(launch.code(), StatusCode::kLaunchDriverFailed);
  EXPECT_THAT(launch.message(), HasSubstr("cuGraphLaunch answered an unknown code (12345)"));
  EXPECT_TRUE(driver_status(Act::kLaunch, "cuGraphLaunch", CuResult::kSuccess).ok());
}

TEST(CudaDriver, SaysThatAStickyErrorMayBeAnEarlierOne) {
  EXPECT_EQ(driver_status(Act::kLaunch, "cuGraphLaunch", CuResult::kIllegalAddress).message(),
            "launch: cuGraphLaunch answered CUDA_ERROR_ILLEGAL_ADDRESS (700); it may stem from "
            "work queued earlier, and the context is lost [E0404]");
}

}  // namespace
}  // namespace anabranch::cuda
