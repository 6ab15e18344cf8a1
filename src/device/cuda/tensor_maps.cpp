// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/tensor_maps.h"

#include <fmt/format.h>

#include <iterator>

namespace anabranch::cuda {
namespace {

struct Shape {
  CuTensorType type;
  std::uint64_t item_bytes;
  std::uint32_t rank;
  CuTensorSwizzle swizzle;
};

constexpr Shape kShapes[] = {
    {CuTensorType::kUint8, 1, 1, CuTensorSwizzle::kNone},
    {CuTensorType::kBfloat16, 2, 2, CuTensorSwizzle::k32B},
    {CuTensorType::kFloat16, 2, 3, CuTensorSwizzle::k128B},
    {CuTensorType::kFloat32, 4, 4, CuTensorSwizzle::k64B},
    {CuTensorType::kFloat32, 4, 5, CuTensorSwizzle::kNone},
};

// Any two differ in nearly all bits that an address of a tensor may have; the first two in all.
constexpr std::uint64_t kAddresses[] = {0x2aaaaaaaaaa0, 0x555555555550, 0x0ff00ff00ff0,
                                        0x7f0123456780};

CuResult encode(const Driver& driver, const Shape& shape, std::uint64_t address, CuTensorMap& map) {
  constexpr std::uint64_t kSizes[] = {64, 32, 8, 4, 2};
  constexpr std::uint32_t kBox[] = {16, 8, 2, 1, 1}, kSteps[] = {1, 1, 1, 1, 1};
  std::uint64_t strides[std::size(kSizes)] = {};
  std::uint64_t bytes = shape.item_bytes;
  for (std::size_t i = 0; i < std::size(kSizes); ++i) strides[i] = bytes *= kSizes[i];
  map = {};
  return driver.cuTensorMapEncodeTiled(
      &map, shape.type, shape.rank, reinterpret_cast<void*>(address), kSizes, strides, kBox, kSteps,
      CuTensorInterleave::kNone, shape.swizzle, CuTensorL2Promotion::kNone, CuTensorOobFill::kNone);
}

// Whether they differ, and only in words that are `a` there and `b` here.
bool differ_by_address(const CuTensorMap& at_a, const CuTensorMap& at_b, std::uint64_t a,
                       std::uint64_t b) {
  bool differ = false;
  for (std::size_t i = 0; i < std::size(at_a.opaque); ++i) {
    if (at_a.opaque[i] == at_b.opaque[i]) continue;
    if (at_a.opaque[i] != a || at_b.opaque[i] != b) return false;
    differ = true;
  }
  return differ;
}

std::string try_shape(const Driver& driver, const Shape& shape) {
  CuTensorMap maps[std::size(kAddresses)];
  for (std::size_t i = 0; i < std::size(kAddresses); ++i) {
    const CuResult made = encode(driver, shape, kAddresses[i], maps[i]);
    if (made != CuResult::kSuccess) {
      return "cuTensorMapEncodeTiled answers " + result_text(made);
    }
    if (i != 0 && !differ_by_address(maps[0], maps[i], kAddresses[0], kAddresses[i])) {
      return fmt::format("maps of rank {} at two addresses differ in more than these", shape.rank);
    }
  }
  return {};
}

}  // namespace

std::string why_tensor_maps_are_opaque(const Driver& driver, CuDevice device) {
  int has_maps = 0;
  const CuResult asked =
      driver.cuDeviceGetAttribute(&has_maps, CuDeviceAttribute::kTensorMapAccess, device);
  if (asked == CuResult::kSuccess && has_maps == 0) return {};
  if (!driver.has(Feature::kTensorMaps)) return driver.why_off(Feature::kTensorMaps);
  for (const Shape& shape : kShapes) {
    if (std::string why = try_shape(driver, shape); !why.empty()) return why;
  }
  return {};
}

}  // namespace anabranch::cuda
