// SPDX-License-Identifier: Apache-2.0
// Copies and fills: checked when they are queued, and again when they run.
#include <fmt/format.h>

#include <cstring>

#include "device/sim/machine.h"

namespace anabranch::sim {
namespace {

// One side of a copy; every shape is a box of rows.
struct Side {
  CuMemoryType type;
  Address base;
  std::size_t x, y, z, pitch, height;

  Address row(std::size_t line, std::size_t layer) const {
    return base + ((z + layer) * height + y + line) * pitch + x;
  }
};

Address address_of(CuMemoryType type, const void* host, CuDevicePtr device) {
  return type == CuMemoryType::kHost ? reinterpret_cast<Address>(host) : device;
}

Side source_of(const CuMemcpy3D& c) {
  return {c.src_memory_type, address_of(c.src_memory_type, c.src_host, c.src_device),
          c.src_x_bytes,     c.src_y,
          c.src_z,           c.src_pitch,
          c.src_height};
}

Side target_of(const CuMemcpy3D& c) {
  return {c.dst_memory_type, address_of(c.dst_memory_type, c.dst_host, c.dst_device),
          c.dst_x_bytes,     c.dst_y,
          c.dst_z,           c.dst_pitch,
          c.dst_height};
}

bool is_flat(const CuMemcpy3D& copy) { return copy.height <= 1 && copy.depth <= 1; }

CuMemcpy3D flat_copy(CuMemoryType dst_type, Address dst, CuMemoryType src_type, Address src,
                     std::size_t bytes) {
  CuMemcpy3D copy{};
  copy.src_memory_type = src_type;
  copy.src_host = reinterpret_cast<const void*>(src);
  copy.src_device = src;
  copy.dst_memory_type = dst_type;
  copy.dst_host = reinterpret_cast<void*>(dst);
  copy.dst_device = dst;
  copy.src_pitch = copy.dst_pitch = copy.width_bytes = bytes;
  copy.height = copy.depth = copy.src_height = copy.dst_height = 1;
  return copy;
}

CuMemcpy3D widened(const CuMemcpy2D& flat) {
  CuMemcpy3D copy{};
  copy.src_x_bytes = flat.src_x_bytes;
  copy.src_y = flat.src_y;
  copy.src_memory_type = flat.src_memory_type;
  copy.src_host = flat.src_host;
  copy.src_device = flat.src_device;
  copy.src_pitch = flat.src_pitch;
  copy.dst_x_bytes = flat.dst_x_bytes;
  copy.dst_y = flat.dst_y;
  copy.dst_memory_type = flat.dst_memory_type;
  copy.dst_host = flat.dst_host;
  copy.dst_device = flat.dst_device;
  copy.dst_pitch = flat.dst_pitch;
  copy.width_bytes = flat.width_bytes;
  copy.height = copy.src_height = copy.dst_height = flat.height;
  copy.depth = 1;
  return copy;
}

// The source's bytes as they are now, and a copy that reads them from there.
CopyOp stage(const CuMemcpy3D& copy) {
  const Side source = source_of(copy);
  auto staged =
      std::make_shared<std::vector<std::byte>>(copy.width_bytes * copy.height * copy.depth);
  std::byte* to = staged->data();
  for (std::size_t z = 0; z < copy.depth; ++z) {
    for (std::size_t y = 0; y < copy.height; ++y, to += copy.width_bytes) {
      std::memcpy(to, reinterpret_cast<const void*>(source.row(y, z)), copy.width_bytes);
    }
  }
  CopyOp op{copy, staged};
  op.copy.src_memory_type = CuMemoryType::kHost;
  op.copy.src_host = staged->data();
  op.copy.src_x_bytes = op.copy.src_y = op.copy.src_z = 0;
  op.copy.src_pitch = copy.width_bytes;
  op.copy.src_height = copy.height;
  return op;
}

}  // namespace

CuResult Machine::check_copy(const CuMemcpy3D& copy) const {
  for (const Side& side : {source_of(copy), target_of(copy)}) {
    if (side.type == CuMemoryType::kArray) return CuResult::kNotSupported;
    Range range;
    if (copy.width_bytes == 0) continue;
    const bool known = memory_.find(side.row(0, 0), &range);
    if (side.type == CuMemoryType::kDevice && !known) return CuResult::kInvalidValue;
    if (side.base == 0) return CuResult::kInvalidValue;
    if (!is_flat(copy) && side.pitch < copy.width_bytes) return CuResult::kInvalidValue;
  }
  return CuResult::kSuccess;
}

CopyOp Machine::bound(CopyOp op) const {
  const CuMemcpy3D& copy = op.copy;
  if (copy.height == 0 || copy.depth == 0) return op;
  const auto id_of = [&](const Side& side) {
    const Address first = side.row(0, 0), last = side.row(copy.height - 1, copy.depth - 1);
    return memory_.id_of(first, last - first + copy.width_bytes);
  };
  op.allocations = {id_of(source_of(copy)), id_of(target_of(copy))};
  return op;
}

bool Machine::is_bound_to_what_is_gone(const CopyOp& op) const {
  const CopyOp now = bound({op.copy, nullptr});
  for (std::size_t i = 0; i < now.allocations.size(); ++i) {
    if (op.allocations[i] != 0 && op.allocations[i] != now.allocations[i]) return true;
  }
  return false;
}

void Machine::run_copy(const CopyOp& op) {
  const CuMemcpy3D& copy = op.copy;
  if (is_bound_to_what_is_gone(op)) {
    return lose_context(CuResult::kLaunchFailed, "a copy was given memory that has been freed");
  }
  const Side source = source_of(copy), target = target_of(copy);
  for (std::size_t z = 0; z < copy.depth; ++z) {
    for (std::size_t y = 0; y < copy.height; ++y) {
      const Address from = source.row(y, z), to = target.row(y, z);
      for (const Address address : {from, to}) {
        if (!memory_.is_ours(address) || memory_.is_live(address, copy.width_bytes)) continue;
        return lose_context(CuResult::kIllegalAddress,
                            fmt::format("a copy of {} bytes touched {:#x}, which is not all live",
                                        copy.width_bytes, address));
      }
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from),
                   copy.width_bytes);
    }
  }
}

CuResult Machine::check_fill(const CuMemsetNodeParams& params) const {
  Range range;
  const bool element =
      params.element_bytes == 1 || params.element_bytes == 2 || params.element_bytes == 4;
  if (!element || params.dst % params.element_bytes != 0) return CuResult::kInvalidValue;
  if (params.width == 0 || params.height == 0) return CuResult::kSuccess;
  if (params.height > 1 && params.pitch < params.width * params.element_bytes) {
    return CuResult::kInvalidValue;
  }
  return memory_.find(params.dst, &range) ? CuResult::kSuccess : CuResult::kInvalidValue;
}

void Machine::run_fill(const FillOp& op) {
  const CuMemsetNodeParams& p = op.params;
  const std::size_t row_bytes = p.width * p.element_bytes;
  for (std::size_t y = 0; y < p.height; ++y) {
    const Address row = p.dst + y * p.pitch;
    if (!memory_.is_live(row, row_bytes)) {
      return lose_context(
          CuResult::kIllegalAddress,
          fmt::format("a fill of {} bytes touched {:#x}, which is not all live", row_bytes, row));
    }
    for (std::size_t x = 0; x < row_bytes; x += p.element_bytes) {
      std::memcpy(reinterpret_cast<void*>(row + x), &p.value, p.element_bytes);
    }
  }
}

// Pageable memory is read before the call returns, or written before it returns; a capture keeps
// the bare address.
CuResult Machine::submit_copy(const CuMemcpy3D& copy, CuStream handle) {
  Stream* stream = nullptr;
  CuResult result = find_stream(handle, &stream);
  if (result == CuResult::kSuccess) result = check_copy(copy);
  if (result != CuResult::kSuccess) return result;
  const bool empty = copy.width_bytes == 0 || copy.height == 0 || copy.depth == 0;
  if (stream->capture || empty) return submit(handle, CopyOp{copy, nullptr});
  Range range;
  const bool from_pageable = !memory_.find(source_of(copy).row(0, 0), &range);
  const bool to_pageable = !memory_.find(target_of(copy).row(0, 0), &range);
  result = submit(handle, from_pageable ? stage(copy) : CopyOp{copy, nullptr});
  if (result != CuResult::kSuccess || !to_pageable) return result;
  return finish({{stream->tail}});
}

CuResult Machine::submit_fill(const CuMemsetNodeParams& params, CuStream stream) {
  const CuResult result = check_fill(params);
  return result == CuResult::kSuccess ? submit(stream, FillOp{params}) : result;
}

CuResult Machine::cuMemcpyAsync(CuDevicePtr dst, CuDevicePtr src, std::size_t bytes,
                                CuStream stream) {
  return submit_copy(flat_copy(CuMemoryType::kUnified, dst, CuMemoryType::kUnified, src, bytes),
                     stream);
}

CuResult Machine::cuMemcpyHtoDAsync(CuDevicePtr dst, const void* src, std::size_t bytes,
                                    CuStream stream) {
  return submit_copy(flat_copy(CuMemoryType::kDevice, dst, CuMemoryType::kHost,
                               reinterpret_cast<Address>(src), bytes),
                     stream);
}

CuResult Machine::cuMemcpyDtoHAsync(void* dst, CuDevicePtr src, std::size_t bytes,
                                    CuStream stream) {
  return submit_copy(flat_copy(CuMemoryType::kHost, reinterpret_cast<Address>(dst),
                               CuMemoryType::kDevice, src, bytes),
                     stream);
}

CuResult Machine::cuMemcpyDtoDAsync(CuDevicePtr dst, CuDevicePtr src, std::size_t bytes,
                                    CuStream stream) {
  return submit_copy(flat_copy(CuMemoryType::kDevice, dst, CuMemoryType::kDevice, src, bytes),
                     stream);
}

CuResult Machine::cuMemcpy2DAsync(const CuMemcpy2D* copy, CuStream stream) {
  return copy ? submit_copy(widened(*copy), stream) : CuResult::kInvalidValue;
}

CuResult Machine::cuMemcpy3DAsync(const CuMemcpy3D* copy, CuStream stream) {
  return copy ? submit_copy(*copy, stream) : CuResult::kInvalidValue;
}

// The synchronous ones are the asynchronous ones on the legacy stream, and a wait.
CuResult Machine::cuMemcpy(CuDevicePtr dst, CuDevicePtr src, std::size_t bytes) {
  const CuResult result = cuMemcpyAsync(dst, src, bytes, nullptr);
  return result == CuResult::kSuccess ? cuStreamSynchronize(nullptr) : result;
}

CuResult Machine::cuMemcpyHtoD(CuDevicePtr dst, const void* src, std::size_t bytes) {
  const CuResult result = cuMemcpyHtoDAsync(dst, src, bytes, nullptr);
  return result == CuResult::kSuccess ? cuStreamSynchronize(nullptr) : result;
}

CuResult Machine::cuMemcpyDtoH(void* dst, CuDevicePtr src, std::size_t bytes) {
  const CuResult result = cuMemcpyDtoHAsync(dst, src, bytes, nullptr);
  return result == CuResult::kSuccess ? cuStreamSynchronize(nullptr) : result;
}

CuResult Machine::cuMemsetD8(CuDevicePtr dst, unsigned char value, std::size_t count) {
  const CuResult result = cuMemsetD8Async(dst, value, count, nullptr);
  return result == CuResult::kSuccess ? cuStreamSynchronize(nullptr) : result;
}

CuResult Machine::cuMemsetD8Async(CuDevicePtr dst, unsigned char value, std::size_t count,
                                  CuStream stream) {
  return submit_fill({dst, 0, value, 1, count, 1}, stream);
}

CuResult Machine::cuMemsetD16Async(CuDevicePtr dst, unsigned short value, std::size_t count,
                                   CuStream stream) {
  return submit_fill({dst, 0, value, 2, count, 1}, stream);
}

CuResult Machine::cuMemsetD32Async(CuDevicePtr dst, unsigned value, std::size_t count,
                                   CuStream stream) {
  return submit_fill({dst, 0, value, 4, count, 1}, stream);
}

CuResult Machine::cuMemsetD2D8Async(CuDevicePtr dst, std::size_t pitch, unsigned char value,
                                    std::size_t width, std::size_t height, CuStream stream) {
  return submit_fill({dst, pitch, value, 1, width, height}, stream);
}

CuResult Machine::cuMemsetD2D32Async(CuDevicePtr dst, std::size_t pitch, unsigned value,
                                     std::size_t width, std::size_t height, CuStream stream) {
  return submit_fill({dst, pitch, value, 4, width, height}, stream);
}

// The limits of an executable's setter: one dimension stays one, nothing empty, same places.
CuResult Machine::check_same_operands(const CuMemcpy3D& before, const CuMemcpy3D& after) const {
  if (!is_flat(before) || !is_flat(after) || after.width_bytes == 0) {
    return CuResult::kInvalidValue;
  }
  const Side sides[2][2] = {{source_of(before), source_of(after)},
                            {target_of(before), target_of(after)}};
  for (const auto& [old_side, new_side] : sides) {
    Range was, is;
    const bool was_found = memory_.find(old_side.row(0, 0), &was);
    const bool is_found = memory_.find(new_side.row(0, 0), &is);
    if (new_side.type == CuMemoryType::kDevice && !is_found) return CuResult::kInvalidValue;
    // What was freed since can no longer be compared.
    const bool gone = !was_found && memory_.is_ours(old_side.row(0, 0));
    if (gone) continue;
    if (was_found != is_found || was.place != is.place || was.device != is.device) {
      return CuResult::kInvalidValue;
    }
  }
  return CuResult::kSuccess;
}

// A fill of two dimensions keeps them; one of one keeps its height, and may narrow or widen.
CuResult Machine::check_same_fill(const CuMemsetNodeParams& before,
                                  const CuMemsetNodeParams& after) const {
  const bool same_shape = before.width == after.width && before.pitch == after.pitch &&
                          before.element_bytes == after.element_bytes;
  if (before.height != after.height || (before.height > 1 && !same_shape)) {
    return CuResult::kInvalidValue;
  }
  if (after.width == 0 || after.height == 0) return CuResult::kInvalidValue;
  Range was, is;
  if (memory_.find(before.dst, &was) && memory_.find(after.dst, &is) &&
      (was.place != is.place || was.device != is.device)) {
    return CuResult::kInvalidValue;
  }
  return check_fill(after);
}

}  // namespace anabranch::sim
