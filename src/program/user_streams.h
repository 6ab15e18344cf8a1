// SPDX-License-Identifier: Apache-2.0
// Whether a program has streams that the user synchronises; most have none.
#pragma once

#include <algorithm>
#include <span>

#include "anabranch/program.h"

namespace anabranch {

inline bool has_user_streams(std::span<const StreamOrigin> origins) {
  return std::find(origins.begin(), origins.end(), StreamOrigin::kUserSynchronised) !=
         origins.end();
}

}  // namespace anabranch
