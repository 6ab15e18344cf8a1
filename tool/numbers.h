// SPDX-License-Identifier: Apache-2.0
// Numbers of the command line. None is cut, wrapped around or taken in part.
// Ownership: values.
// Threads:   pure.
// Failure:   nothing, where the text is no whole number from 0 to `most`.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace anabranch::tool {

std::optional<std::uint64_t> parse_count(std::string_view text, std::uint64_t most);
// With a unit behind it, if any: k, m, g or t, also as kb or kib, all powers of 1024.
std::optional<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace anabranch::tool
