// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace anabranch::cuda {
namespace {

Status differs(const std::string& how) {
  return Status(StatusCode::kCapturesDiffer,
                fmt::format("record: two captures allocate differently: {}. The step does not "
                            "repeat, so it runs unrecorded; strict=True raises.",
                            how));
}

template <std::uint64_t Unit::*kAddress>
UnitTable::Hit find_in(std::span<const Unit> units, std::span<const std::uint32_t> sorted,
                       std::uint64_t address) {
  const auto after = std::upper_bound(
      sorted.begin(), sorted.end(), address,
      [&](std::uint64_t value, std::uint32_t unit) { return value < units[unit].*kAddress; });
  if (after == sorted.begin()) return {UnitTable::kNone, 0};
  const std::uint32_t unit = *std::prev(after);
  const std::uint64_t offset = address - units[unit].*kAddress;
  return offset <= units[unit].bytes ? UnitTable::Hit{unit, offset}
                                     : UnitTable::Hit{UnitTable::kNone, 0};
}

// Whether there is a gap between each and the next, so that an end pointer of one is no address of
// the other. Refused where they overlap, and without a gap where there `has_to_be` one.
template <std::uint64_t Unit::*kAddress>
Result<bool> sort_units(std::span<const Unit> units, bool has_to_be,
                        std::vector<std::uint32_t>& sorted) {
  sorted.resize(units.size());
  std::iota(sorted.begin(), sorted.end(), 0u);
  std::sort(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
    return units[a].*kAddress < units[b].*kAddress;
  });
  bool are_apart = true;
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const Unit &low = units[sorted[i - 1]], &high = units[sorted[i]];
    const std::uint64_t end = low.*kAddress + low.bytes;
    are_apart &= end < high.*kAddress;
    if (end > high.*kAddress || (has_to_be && !are_apart)) {
      return differs(fmt::format("units of {} bytes at {:#x} and {} at {:#x} touch", low.bytes,
                                 low.*kAddress, high.bytes, high.*kAddress));
    }
  }
  return are_apart;
}

}  // namespace

Result<UnitTable> UnitTable::make(std::span<const CaptureAllocation> first,
                                  std::span<const CaptureAllocation> second) {
  if (first.size() != second.size()) {
    return differs(fmt::format("{} times and {}", first.size(), second.size()));
  }
  UnitTable table;
  std::unordered_map<std::uint64_t, std::uint32_t> unit_of_first, unit_of_second;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto &a = first[i], &b = second[i];
    if (a.bytes != b.bytes) {
      return differs(fmt::format("allocation {} has {} bytes and {}", i, a.bytes, b.bytes));
    }
    const auto number = static_cast<std::uint32_t>(table.units_.size());
    const auto [at_first, new_first] = unit_of_first.try_emplace(a.address, number);
    const auto [at_second, new_second] = unit_of_second.try_emplace(b.address, number);
    if (at_first->second != at_second->second) {
      return differs(fmt::format("allocation {} takes memory used before in one only", i));
    }
    if (new_first) table.units_.push_back({a.address, b.address, 0});
    Unit& unit = table.units_[at_first->second];
    unit.bytes = std::max(unit.bytes, a.bytes);
  }
  if (Status sorted = table.sort(); !sorted.ok()) return sorted;
  return table;
}

Status UnitTable::sort() {
  const auto first = sort_units<&Unit::first_address>(units_, false, by_first_);
  if (!first.ok()) return first.error();
  are_apart_in_first_ = *first;
  const auto second = sort_units<&Unit::second_address>(units_, !*first, by_second_);
  return second.ok() ? Status() : second.error();
}

UnitTable::Hit UnitTable::find(std::uint64_t first, std::uint64_t second) const {
  const Hit hit = are_apart_in_first_ ? find_in_first(first) : find_in_second(second);
  if (hit.unit == kNone) return hit;
  const Unit& unit = units_[hit.unit];
  const bool is_one =
      unit.first_address + hit.offset == first && unit.second_address + hit.offset == second;
  return is_one ? hit : Hit{kNone, 0};
}

UnitTable::Hit UnitTable::find_in_first(std::uint64_t address) const {
  return find_in<&Unit::first_address>(units_, by_first_, address);
}

UnitTable::Hit UnitTable::find_in_second(std::uint64_t address) const {
  return find_in<&Unit::second_address>(units_, by_second_, address);
}

}  // namespace anabranch::cuda
