// SPDX-License-Identifier: Apache-2.0
// The version of these headers. Written by hand; a test holds it equal to the project's.
// Ownership: constants.
// Threads:   constants.
// Failure:   none.
// Edges:     before 1.0 a minor version may break its users.
#pragma once

#include <string_view>

#define ANABRANCH_VERSION_MAJOR 0
#define ANABRANCH_VERSION_MINOR 1
#define ANABRANCH_VERSION_PATCH 0

namespace anabranch {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace anabranch
