// SPDX-License-Identifier: Apache-2.0
// The addresses that a recording's steps are given, and which of them each slot moves.
// Ownership: owns numbers and grids, at addresses that stay, and nothing else it points to.
// Threads:   belongs to the launch that holds the recording.
// Failure:   none; launch checks an address before it sets it.
// Edges:     addresses in the arena and of tables never change; a slot's are null at first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "anabranch/record.h"

namespace anabranch::host {

// The bytes of a number or of a grid, where regions read them.
using SlotValue = std::array<std::uint64_t, 2>;

struct SlotState {
  void* address = nullptr;
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment = 1;
  BufferId buffer{};
  bool written = false;
  SlotKind kind = SlotKind::kAddress;
};

// Where the buffer of a slot lies. Room for launch's overlap check, so that it allocates nothing.
struct SlotExtent {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uint32_t slot = 0;
  bool written = false;
};

class AddressTable {
 public:
  // `steps` in the order in which their addresses lie in the table, an address an access.
  AddressTable(const Plan& plan, std::span<const StepId> steps, std::byte* arena,
               std::byte* tables = nullptr);

  void* const* data() const noexcept { return addresses_.data(); }
  std::span<const SlotState> slots() const noexcept { return slots_; }
  void set(std::uint32_t slot, void* address) noexcept;
  // Of a number or grid: its bytes are the lowest.
  void set_value(std::uint32_t slot, const SlotValue& value) noexcept { values_[slot] = value; }

  // What regions read of a slot that is a table.
  std::span<std::byte> table(std::uint32_t slot) const noexcept {
    return {static_cast<std::byte*>(slots_[slot].address), slots_[slot].size_bytes};
  }

  // One for each slot that has bytes of the caller's, in any order.
  std::span<SlotExtent> extents() noexcept { return extents_; }

 private:
  void list_slots(const Plan& plan);
  void place_accesses(const Plan& plan, std::span<const StepId> steps, std::byte* arena);

  std::vector<void*> addresses_;
  std::vector<SlotState> slots_;
  std::vector<std::uint32_t> first_place_;  // by slot, into places_
  std::vector<std::uint32_t> places_;       // in addresses_
  std::vector<SlotExtent> extents_;
  std::vector<SlotValue> values_;  // by slot
};

}  // namespace anabranch::host
