// SPDX-License-Identifier: Apache-2.0
// Tensor maps. The real format is secret; this one keeps the address in its first word, which is
// where replacing it, and a search for words that are addresses, finds it.
#include "device/sim/machine.h"

namespace anabranch::sim {
namespace {

constexpr std::uint32_t kMaxRank = 5;
constexpr std::uintptr_t kAlignment = 16, kMapAlignment = 64;

bool is_aligned(const void* pointer, std::uintptr_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x100000001b3;
}

}  // namespace

CuResult Machine::cuTensorMapEncodeTiled(CuTensorMap* map, CuTensorType type, std::uint32_t rank,
                                         void* address, const std::uint64_t* dims,
                                         const std::uint64_t* strides, const std::uint32_t* box,
                                         const std::uint32_t* element_strides,
                                         CuTensorInterleave interleave, CuTensorSwizzle swizzle,
                                         CuTensorL2Promotion promotion, CuTensorOobFill fill) {
  if (rank == 0 || rank > kMaxRank || !address || !is_aligned(address, kAlignment) ||
      !is_aligned(map, kMapAlignment)) {
    return CuResult::kInvalidValue;
  }
  std::uint64_t shape = mixed(0xcbf29ce484222325, rank);
  for (std::uint32_t i = 0; i < rank; ++i) {
    const bool strided = i + 1 < rank;
    if (dims[i] == 0 || box[i] == 0 || box[i] > 256 || element_strides[i] == 0 ||
        (strided && strides[i] % kAlignment != 0)) {
      return CuResult::kInvalidValue;
    }
    for (const std::uint64_t value :
         {dims[i], std::uint64_t{box[i]}, std::uint64_t{element_strides[i]},
          strided ? strides[i] : 0}) {
      shape = mixed(shape, value);
    }
  }
  for (const int value :
       {static_cast<int>(type), static_cast<int>(interleave), static_cast<int>(swizzle),
        static_cast<int>(promotion), static_cast<int>(fill)}) {
    shape = mixed(shape, static_cast<std::uint64_t>(value));
  }
  *map = {};
  map->opaque[0] = reinterpret_cast<std::uint64_t>(address);
  map->opaque[1] = shape | 1;
  return CuResult::kSuccess;
}

CuResult Machine::cuTensorMapReplaceAddress(CuTensorMap* map, void* address) {
  if (!map || !address || !is_aligned(address, kAlignment)) return CuResult::kInvalidValue;
  map->opaque[0] = reinterpret_cast<std::uint64_t>(address);
  return CuResult::kSuccess;
}

}  // namespace anabranch::sim
