// SPDX-License-Identifier: Apache-2.0
// Slots in the order of their addresses.
// Ownership: borrowed memory; nothing is allocated.
// Threads:   pure.
// Failure:   none.
// Edges:     slots at one address keep the order that they had.
#pragma once

#include <cstdint>
#include <span>

namespace anabranch::cuda {

// Sorts `order`, which holds slots, by `addresses`, which are by slot. `spare` is as long as
// `order`; what it holds afterwards means nothing.
void sort_by_address(std::span<const std::uint64_t> addresses, std::span<std::uint32_t> order,
                     std::span<std::uint32_t> spare) noexcept;

}  // namespace anabranch::cuda
