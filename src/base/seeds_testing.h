// SPDX-License-Identifier: Apache-2.0
// How much of a random test is run under a sanitizer.
#pragma once

#include <algorithm>
#include <cstdint>

namespace anabranch {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // g++
inline constexpr bool kIsSanitized = true;
#elif defined(__clang__)
inline constexpr bool kIsSanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kIsSanitized = false;
#endif

// The seeds or rounds to run of `all`: a tenth, and no fewer than 20, under a sanitizer, by which
// each takes many times as long. What is rare is looked for by the other builds.
constexpr std::uint32_t rounds_of(std::uint32_t all) {
  return kIsSanitized ? std::min(all, std::max(all / 10, std::uint32_t{20})) : all;
}

}  // namespace anabranch
