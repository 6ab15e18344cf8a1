// SPDX-License-Identifier: Apache-2.0
#include "record/host/address_table.h"

#include <numeric>

#include "record/table_places.h"

namespace anabranch::host {
namespace {

constexpr std::uint32_t kNoSlot = ~0u;

std::vector<std::uint32_t> slots_by_buffer(const Plan& plan) {
  std::vector<std::uint32_t> slot_of(plan.program().buffers().size(), kNoSlot);
  for (std::uint32_t s = 0; s < plan.slots().size(); ++s) {
    slot_of[index_of(plan.slots()[s].buffer)] = s;
  }
  return slot_of;
}

std::vector<bool> written_buffers(const Program& program) {
  std::vector<bool> written(program.buffers().size());
  for (const Step& step : program.steps()) {
    for (const Access& access : step.accesses) {
      if (access.mode != AccessMode::kRead) written[index_of(access.view.buffer)] = true;
    }
  }
  return written;
}

}  // namespace

AddressTable::AddressTable(const Plan& plan, std::span<const StepId> steps, std::byte* arena,
                           std::byte* tables) {
  list_slots(plan);
  place_accesses(plan, steps, arena);
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const SlotKind kind = slots_[slot].kind;
    if (kind == SlotKind::kNumber || kind == SlotKind::kGrid) set(slot, &values_[slot]);
  }
  for (const TablePlace& place : place_tables(plan).places) set(place.slot, tables + place.offset);
}

void AddressTable::list_slots(const Plan& plan) {
  const std::vector<bool> written = written_buffers(plan.program());
  for (const Slot& slot : plan.slots()) {
    const Buffer& buffer = plan.program().buffer(slot.buffer);
    const bool is_written = written[index_of(slot.buffer)];
    const SlotKind kind = slot_kind_of(buffer.role);
    if (buffer.size_bytes != 0 && kind == SlotKind::kAddress) {
      extents_.push_back({0, 0, static_cast<std::uint32_t>(slots_.size()), is_written});
    }
    slots_.push_back({nullptr, buffer.size_bytes, buffer.alignment, slot.buffer, is_written, kind});
  }
  values_.resize(slots_.size());
}

void AddressTable::place_accesses(const Plan& plan, std::span<const StepId> steps,
                                  std::byte* arena) {
  const std::vector<std::uint32_t> slot_of = slots_by_buffer(plan);
  std::vector<std::uint32_t> slot_at;  // by place
  first_place_.assign(slots_.size() + 1, 0);
  for (const StepId id : steps) {
    for (const Access& access : plan.program().step(id).accesses) {
      const std::uint32_t buffer = index_of(access.view.buffer);
      const std::uint32_t slot = slot_of[buffer];
      const bool in_arena = slot == kNoSlot && plan.arena().offsets[buffer] != kNotInArena;
      addresses_.push_back(in_arena ? arena + plan.arena().offsets[buffer] : nullptr);
      slot_at.push_back(slot);
      if (slot != kNoSlot) ++first_place_[slot + 1];
    }
  }
  std::partial_sum(first_place_.begin(), first_place_.end(), first_place_.begin());
  places_.resize(first_place_.back());
  std::vector<std::uint32_t> next = first_place_;
  for (std::uint32_t place = 0; place < slot_at.size(); ++place) {
    if (slot_at[place] != kNoSlot) places_[next[slot_at[place]]++] = place;
  }
}

void AddressTable::set(std::uint32_t slot, void* address) noexcept {
  slots_[slot].address = address;
  for (std::uint32_t i = first_place_[slot]; i < first_place_[slot + 1]; ++i) {
    addresses_[places_[i]] = address;
  }
}

}  // namespace anabranch::host
