// SPDX-License-Identifier: Apache-2.0
// The box that a copy moves: where its first byte lies on either side, its shape, what is there.
// Ownership: values.
// Threads:   is_here(), is_pinned() and read_pinned_source() call the driver for the current
// context; the rest
//            is pure.
// Failure:   a Status of a driver call.
// Edges:     arrays have no addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "anabranch/status.h"
#include "device/cuda/driver.h"

namespace anabranch::cuda {

// The addresses of operands, whatever kind of memory they name.
std::uint64_t source_of(const CuMemcpy3D& copy);
std::uint64_t destination_of(const CuMemcpy3D& copy);

// From those to the first byte of the box.
std::uint64_t source_shift(const CuMemcpy3D& copy);
std::uint64_t destination_shift(const CuMemcpy3D& copy);

// From there to the end of its last row, for a box whose rows and layers lie one behind the other.
std::uint64_t source_extent(const CuMemcpy3D& copy);
std::uint64_t destination_extent(const CuMemcpy3D& copy);
// The same of a fill; 0 without rows.
std::uint64_t extent_of(const CuMemsetNodeParams& fill);

// Whether rows and layers lie one behind the other.
bool is_understood(const CuMemcpy3D& copy);

// How many bytes it moves from one piece to one piece; 0 for any other shape.
std::uint64_t bytes_in_one_piece(const CuMemcpy3D& copy);

// Whether it is memory of this device. Of memory that is gone the driver knows nothing, and what a
// node says of it is taken for true.
Result<bool> is_here(const Driver& driver, CuDevice device, CuMemoryType said, CuDevicePtr address);

// Whether it is memory of the host that the driver allocated or registered.
Result<bool> is_pinned(const Driver& driver, CuDevicePtr address);

// Far above any array of addresses: torch's `_chunk_cat`, the largest known, has 8 bytes for each
// 2 KiB that it writes.
inline constexpr std::uint64_t kMostSourceBytes = std::uint64_t{16} << 20;

// What it would copy, were it to run now. Empty where that cannot be known: memory that the driver
// did not allocate or register, more than kMostSourceBytes, several pieces.
Result<std::vector<std::byte>> read_pinned_source(const Driver& driver, const CuMemcpy3D& copy);

}  // namespace anabranch::cuda
