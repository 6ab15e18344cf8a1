// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/copy_box.h"

namespace anabranch::cuda {

Result<bool> is_pinned(const Driver& driver, CuDevicePtr address) {
  CuMemoryType type{};
  unsigned is_managed = 0;
  CuPointerAttribute wanted[] = {CuPointerAttribute::kMemoryType, CuPointerAttribute::kIsManaged};
  void* answers[] = {&type, &is_managed};
  if (Status asked = recorded("cuPointerGetAttributes",
                              driver.cuPointerGetAttributes(2, wanted, answers, address));
      !asked.ok()) {
    return asked;
  }
  return type == CuMemoryType::kHost && is_managed == 0;
}

namespace {

// Where the host finds a byte of pinned memory; null for any other. Only of pinned memory may the
// driver be asked that.
Result<const std::byte*> host_pointer(const Driver& driver, CuDevicePtr address) {
  const auto pinned = is_pinned(driver, address);
  if (!pinned.ok()) return pinned.error();
  const std::byte* host = nullptr;
  if (!*pinned) return host;
  const CuResult result =
      driver.cuPointerGetAttribute(&host, CuPointerAttribute::kHostPointer, address);
  if (result == CuResult::kInvalidValue) return nullptr;
  if (Status asked = recorded("cuPointerGetAttribute", result); !asked.ok()) return asked;
  return host;
}

}  // namespace

std::uint64_t source_of(const CuMemcpy3D& copy) {
  return copy.src_memory_type == CuMemoryType::kHost
             ? reinterpret_cast<std::uint64_t>(copy.src_host)
             : copy.src_device;
}

std::uint64_t destination_of(const CuMemcpy3D& copy) {
  return copy.dst_memory_type == CuMemoryType::kHost
             ? reinterpret_cast<std::uint64_t>(copy.dst_host)
             : copy.dst_device;
}

std::uint64_t source_shift(const CuMemcpy3D& copy) {
  return (copy.src_z * copy.src_height + copy.src_y) * copy.src_pitch + copy.src_x_bytes;
}

std::uint64_t destination_shift(const CuMemcpy3D& copy) {
  return (copy.dst_z * copy.dst_height + copy.dst_y) * copy.dst_pitch + copy.dst_x_bytes;
}

std::uint64_t source_extent(const CuMemcpy3D& copy) {
  return ((copy.depth - 1) * copy.src_height + copy.height - 1) * copy.src_pitch + copy.width_bytes;
}

std::uint64_t destination_extent(const CuMemcpy3D& copy) {
  return ((copy.depth - 1) * copy.dst_height + copy.height - 1) * copy.dst_pitch + copy.width_bytes;
}

std::uint64_t extent_of(const CuMemsetNodeParams& fill) {
  if (fill.height == 0) return 0;
  return (fill.height - 1) * fill.pitch + fill.width * fill.element_bytes;
}

bool is_understood(const CuMemcpy3D& copy) {
  if (copy.height == 0 || copy.depth == 0) return false;
  const bool one_row = copy.height == 1 && copy.depth == 1;
  const bool rows_fit = copy.src_pitch >= copy.width_bytes && copy.dst_pitch >= copy.width_bytes;
  const bool layers_fit = copy.src_height >= copy.height && copy.dst_height >= copy.height;
  return (one_row || rows_fit) && (copy.depth == 1 || layers_fit);
}

std::uint64_t bytes_in_one_piece(const CuMemcpy3D& copy) {
  if (!is_understood(copy)) return 0;
  const bool one_row = copy.height == 1 && copy.depth == 1;
  const bool rows_join = copy.src_pitch == copy.width_bytes && copy.dst_pitch == copy.width_bytes;
  const bool layers_join = copy.src_height == copy.height && copy.dst_height == copy.height;
  const bool joins = one_row || (rows_join && (copy.depth == 1 || layers_join));
  return joins ? copy.width_bytes * copy.height * copy.depth : 0;
}

Result<bool> is_here(const Driver& driver, CuDevice device, CuMemoryType said,
                     CuDevicePtr address) {
  if (said != CuMemoryType::kDevice && said != CuMemoryType::kUnified) return false;
  CuMemoryType type{};
  CuDevice found = -1;
  CuPointerAttribute wanted[] = {CuPointerAttribute::kMemoryType,
                                 CuPointerAttribute::kDeviceOrdinal};
  void* answers[] = {&type, &found};
  if (Status asked = recorded("cuPointerGetAttributes",
                              driver.cuPointerGetAttributes(2, wanted, answers, address));
      !asked.ok()) {
    return asked;
  }
  if (type == CuMemoryType{}) return said == CuMemoryType::kDevice;
  return type == CuMemoryType::kDevice && found == device;
}

Result<std::vector<std::byte>> read_pinned_source(const Driver& driver, const CuMemcpy3D& copy) {
  std::vector<std::byte> read;
  const std::uint64_t bytes = bytes_in_one_piece(copy);
  if (copy.src_memory_type == CuMemoryType::kArray || bytes == 0 || bytes > kMostSourceBytes) {
    return read;
  }
  const CuDevicePtr begin = source_of(copy) + source_shift(copy);
  const auto first = host_pointer(driver, begin);
  if (!first.ok()) return first.error();
  if (!*first) return read;
  const auto last = host_pointer(driver, begin + bytes - 1);
  if (!last.ok()) return last.error();
  if (*last == *first + (bytes - 1)) read.assign(*first, *first + bytes);
  return read;
}

}  // namespace anabranch::cuda
