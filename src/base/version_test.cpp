// SPDX-License-Identifier: Apache-2.0
#include "anabranch/version.h"

#include <gtest/gtest.h>

#include <string>

namespace anabranch {
namespace {

TEST(Version, OfTheHeadersIsThatOfTheProject) { EXPECT_EQ(kVersion, PROJECT_VERSION); }

TEST(Version, OfThePreprocessorIsThatOfTheConstant) {
  EXPECT_EQ(kVersion, std::to_string(ANABRANCH_VERSION_MAJOR) + "." +
                          std::to_string(ANABRANCH_VERSION_MINOR) + "." +
                          std::to_string(ANABRANCH_VERSION_PATCH));
}

}  // namespace
}  // namespace anabranch
