// SPDX-License-Identifier: Apache-2.0
// Giving a recording the addresses of one launch.
// Ownership: the bound memory stays the caller's.
// Threads:   for whoever holds the recording.
// Failure:   a Status naming binding and slot; then no address has changed.
// Edges:     addresses that are as they were cost a comparison each and nothing more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "anabranch/launch.h"
#include "record/host/address_table.h"

namespace anabranch::host {

Status bind_slots(const Program& program, AddressTable& table, std::span<const Binding> bindings);

}  // namespace anabranch::host

namespace anabranch {

// What every device asks of bindings: one for each slot, of its kind, large enough, at an address
// and aligned; a number of the slot's kind, between its bounds; a table that is not too
// large; a grid of some blocks, and not too many.
Status check_bindings(const Plan& plan, std::span<const Binding> bindings);

// "a table"
std::string_view text_of(SlotKind kind);

// What regions read of a number or a grid; its bytes are the lowest.
std::array<std::uint64_t, 2> value_of_slot(const Binding& binding);

// What regions read of a table that fits there: what it leaves out is zero.
void write_table(const Binding& table, std::span<std::byte> to);

}  // namespace anabranch
