// SPDX-License-Identifier: Apache-2.0
#include "program/view_bounds.h"

#include <algorithm>

namespace anabranch {
namespace {

std::uint64_t magnitude(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  return value < 0 ? ~bits + 1 : bits;
}

}  // namespace

bool is_empty(const View& view) {
  return view.item_bytes == 0 || std::any_of(view.dims.begin(), view.dims.end(),
                                             [](const Dim& dim) { return dim.size == 0; });
}

std::optional<ViewBounds> find_bounds(const View& view, std::uint64_t size_bytes) {
  if (view.offset_bytes > size_bytes) return std::nullopt;
  if (is_empty(view)) return ViewBounds{view.offset_bytes, view.offset_bytes};
  // What is left below and above the first item; both stay within size_bytes.
  std::uint64_t below = view.offset_bytes;
  std::uint64_t above = size_bytes - view.offset_bytes;
  if (view.item_bytes > above) return std::nullopt;
  above -= view.item_bytes;
  for (const Dim& dim : view.dims) {
    std::uint64_t reach = 0;
    if (__builtin_mul_overflow(dim.size - 1, magnitude(dim.stride_bytes), &reach)) {
      return std::nullopt;
    }
    std::uint64_t& room = dim.stride_bytes < 0 ? below : above;
    if (reach > room) return std::nullopt;
    room -= reach;
  }
  return ViewBounds{below, size_bytes - above};
}

}  // namespace anabranch
