// SPDX-License-Identifier: Apache-2.0
// The interval of bytes that a view spans.
// Ownership: values.
// Threads:   pure.
// Failure:   a view that reaches outside its buffer has no bounds; no arithmetic wraps around.
// Edges:     a view without bytes has equal bounds, and its offset may be the end of the buffer.
#pragma once

#include <cstdint>
#include <optional>

#include "anabranch/program.h"

namespace anabranch {

struct ViewBounds {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // one past the last byte
};

// Whether the view has no bytes at all.
bool is_empty(const View& view);

// Nothing if the view reaches below 0 or above `size_bytes` (at most kMaxBufferBytes).
std::optional<ViewBounds> find_bounds(const View& view, std::uint64_t size_bytes);

}  // namespace anabranch
