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
UnitTable::Hit find(std::span<const Unit> units, std::span<const std::uint32_t> sorted,
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

template <std::uint64_t Unit::*kAddress>
Status sort_units(std::span<const Unit> units, std::vector<std::uint32_t>& sorted) {
  sorted.resize(units.size());
  std::iota(sorted.begin(), sorted.end(), 0u);
  std::sort(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
    return units[a].*kAddress < units[b].*kAddress;
  });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const Unit &low = units[sorted[i - 1]], &high = units[sorted[i]];
    // A gap, so that an end pointer of one is no address of the next.
    if (low.*kAddress + low.bytes >= high.*kAddress) {
      return differs(fmt::format("units of {} bytes at {:#x} and {} at {:#x} touch", low.bytes,
                                 low.*kAddress, high.bytes, high.*kAddress));
    }
  }
  return {};
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
  if (Status first = sort_units<&Unit::first_address>(units_, by_first_); !first.ok()) return first;
  return sort_units<&Unit::second_address>(units_, by_second_);
}

UnitTable::Hit UnitTable::find_in_first(std::uint64_t address) const {
  return find<&Unit::first_address>(units_, by_first_, address);
}

UnitTable::Hit UnitTable::find_in_second(std::uint64_t address) const {
  return find<&Unit::second_address>(units_, by_second_, address);
}

}  // namespace anabranch::cuda
