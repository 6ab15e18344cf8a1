// SPDX-License-Identifier: Apache-2.0
// Giving a recording the addresses of one launch.
// Ownership: the bound memory stays the caller's.
// Threads:   for whoever holds the recording.
// Failure:   a Status naming binding and slot; then no address has changed.
// Edges:     addresses that are as they were cost a comparison each and nothing more.
#pragma once

#include <span>

#include "anabranch/launch.h"
#include "record/host/address_table.h"

namespace anabranch::host {

Status bind_slots(const Program& program, AddressTable& table, std::span<const Binding> bindings);

}  // namespace anabranch::host

namespace anabranch {

// What every device asks of bindings: one for each slot, large enough, at an address and aligned; a
// number of the slot's kind, between its bounds.
Status check_bindings(const Plan& plan, std::span<const Binding> bindings);

}  // namespace anabranch
