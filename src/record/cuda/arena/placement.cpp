// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/arena/placement.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "record/cuda/arena/arena_parts.h"

namespace anabranch::cuda {
namespace {

std::uint64_t alignment_of(const Unit& unit) { return std::min(unit.alignment, kPartAlignment); }

std::vector<CudaSlot> with_room(std::span<const CudaSlot> slots, std::span<const Unit> units,
                                std::span<const Loan> loans) {
  std::vector<std::uint64_t> ends(units.size());  // of what lies in a unit
  for (const Loan& loan : loans) {
    std::uint64_t& end = ends[index_of(loan.lender)];
    end = std::max(end, loan.offset + units[index_of(loan.temporary)].bytes);
  }
  std::vector<CudaSlot> made(slots.begin(), slots.end());
  for (CudaSlot& slot : made) slot.bytes = std::max(slot.bytes, ends[slot.unit]);
  return made;
}

void list_sources(std::span<const CudaSlot> slots, std::span<const std::uint64_t> part_bytes,
                  Placement& placement) {
  const auto add = [&](std::uint64_t bytes, std::uint64_t alignment) {
    if (bytes != 0) {
      placement.with_bytes.push_back(static_cast<std::uint32_t>(placement.rules.size()));
    }
    placement.rules.emplace_back(bytes, bytes != 0 ? alignment - 1 : 0);
  };
  for (const CudaSlot& slot : slots) add(slot.bytes, slot.alignment);
  for (const std::uint64_t bytes : part_bytes) add(bytes, kPartAlignment);
}

struct SourceOffset {
  std::uint32_t source = 0;
  std::uint64_t offset = 0;
};

// By unit. A borrowed place is one in its lender's slot.
std::vector<SourceOffset> offsets_of_units(std::span<const ArenaParts::PartOffset> in_arena,
                                           std::span<const CudaSlot> slots,
                                           std::span<const Loan> loans) {
  const auto first_part = static_cast<std::uint32_t>(slots.size());
  std::vector<SourceOffset> of_units;
  for (const ArenaParts::PartOffset& place : in_arena) {
    of_units.push_back({first_part + place.part, place.offset});
  }
  for (std::uint32_t slot = 0; slot < first_part; ++slot) of_units[slots[slot].unit] = {slot, 0};
  for (const Loan& loan : loans) {
    const SourceOffset& lender = of_units[index_of(loan.lender)];
    of_units[index_of(loan.temporary)] = {lender.source, loan.offset};
  }
  return of_units;
}

}  // namespace

std::vector<UnitKind> kinds_of_units(const NodeAccesses& accesses,
                                     std::span<const UnitKind> kinds) {
  std::vector<UnitKind> of_units(accesses.units.size(), UnitKind::kTemporary);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    UnitKind& kind = of_units[accesses.unit_of[i]];
    if (kinds[i] == UnitKind::kFresh && kind == UnitKind::kTemporary) kind = UnitKind::kFresh;
    if (kinds[i] == UnitKind::kGiven) kind = UnitKind::kGiven;
  }
  for (std::size_t i = 0; i < of_units.size(); ++i) {
    if (of_units[i] == UnitKind::kFresh) of_units[i] = kind_of_allocated(accesses.units[i]);
  }
  return of_units;
}

UnitKind kind_of_allocated(const Unit& unit) {
  return alignment_of(unit) >= kUnitAlignment ? UnitKind::kFresh : UnitKind::kGiven;
}

std::vector<CudaSlot> find_slots(std::span<const Unit> units,
                                 std::span<const std::uint32_t> unit_of,
                                 std::span<const UnitKind> of_units, std::span<const Site> sites) {
  std::vector<bool> is_named(units.size());
  for (const Site& site : sites) is_named[site.unit] = true;
  std::vector<std::uint32_t> allocation(units.size());
  for (std::uint32_t i = 0; i < unit_of.size(); ++i) allocation[unit_of[i]] = i;
  std::vector<CudaSlot> slots;
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    if (of_units[unit] == UnitKind::kTemporary || !is_named[unit]) continue;
    const Unit& there = units[unit];
    slots.push_back({unit, allocation[unit], there.bytes, alignment_of(there)});
  }
  return slots;
}

Result<Placement> place_units(const GraphImage& image, std::span<const Site> sites,
                              std::span<const Unit> units, std::span<const UnitKind> kinds,
                              std::span<const CudaSlot> slots, std::span<const TableWrite> tables,
                              std::uint64_t least_part_bytes) {
  auto plan = plan_arena(image, sites, units, kinds, tables);
  if (!plan.ok()) return plan.error();
  Placement placement;
  placement.arena = std::move(plan->parts.arena);
  placement.slots = with_room(slots, units, plan->loans);
  const ArenaParts parts = cut_arena(placement.arena, units, least_part_bytes);
  list_sources(placement.slots, parts.bytes, placement);
  const auto of_units = offsets_of_units(parts.places, placement.slots, plan->loans);
  for (const Site& site : sites) {
    const auto [source, offset] = of_units[site.unit];
    placement.sites.push_back({site.node, site.operand, site.offset, source, site.shift + offset});
  }
  return placement;
}

std::vector<CudaNumber> place_numbers(std::span<const ParamWord> words, Placement& placement) {
  const auto first_source = static_cast<std::uint32_t>(placement.rules.size());
  std::vector<CudaNumber> numbers;
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, std::uint32_t> known;
  for (const ParamWord& word : words) {
    const auto next = static_cast<std::uint32_t>(numbers.size());
    const auto [at, is_new] = known.try_emplace({word.bytes, word.first, word.second}, next);
    if (is_new) {
      numbers.push_back({word.bytes, word.first, word.second});
      placement.rules.emplace_back(0, 0);
    }
    placement.sites.push_back(
        {word.node, word.operand, word.offset, first_source + at->second, 0, word.bytes});
  }
  std::ranges::stable_sort(placement.sites, {}, &PlacedSite::node);
  return numbers;
}

}  // namespace anabranch::cuda
