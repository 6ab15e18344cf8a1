// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace anabranch::cuda {
namespace {

Status differs(const std::string& how) {
  return Status(StatusCode::kCapturesDiffer,
                fmt::format("record: two captures allocate differently: {}. The step does not "
                            "repeat, so it runs unrecorded; strict=True raises.",
                            how));
}

// Whether tenants of different addresses keep a gap, however often an address is used again.
bool have_gaps(std::span<const CaptureAllocation> allocations) {
  std::vector<CaptureAllocation> sorted(allocations.begin(), allocations.end());
  std::ranges::sort(sorted, {}, &CaptureAllocation::address);
  std::uint64_t begin = 0, end = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const auto& [address, bytes] = sorted[i];
    if (i != 0 && address != begin && address <= end) return false;
    begin = address;
    end = std::max(end, address + bytes);
  }
  return true;
}

std::uint64_t alignment_of(std::uint64_t address) { return address & (~address + 1); }

}  // namespace

Result<UnitTable> UnitTable::make(std::span<const CaptureAllocation> first,
                                  std::span<const CaptureAllocation> second) {
  if (first.size() != second.size()) {
    return differs(fmt::format("{} times and {}", first.size(), second.size()));
  }
  UnitTable table;
  table.telling_ = have_gaps(first) ? 0 : 1;
  const auto telling = table.telling_ == 0 ? first : second;
  std::unordered_map<std::uint64_t, std::uint32_t> unit_at;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto &a = first[i], &b = second[i];
    if (a.bytes != b.bytes) {
      return differs(fmt::format("allocation {} has {} bytes and {}", i, a.bytes, b.bytes));
    }
    const std::uint64_t address = telling[i].address,
                        alignment = alignment_of(a.address | b.address);
    const auto number = static_cast<std::uint32_t>(table.units_.size());
    const auto [at, is_new] = unit_at.try_emplace(address, number);
    if (is_new) table.units_.push_back({address, alignment, 0});
    Unit& unit = table.units_[at->second];
    unit.bytes = std::max(unit.bytes, a.bytes);
    unit.alignment = std::min(unit.alignment, alignment);
    table.unit_of_.push_back(at->second);
    table.places_[0].push_back({a.address, at->second});
    table.places_[1].push_back({b.address, at->second});
  }
  for (const int capture : {0, 1}) {
    auto& places = table.places_[capture];
    std::ranges::sort(places);
    places.erase(std::unique(places.begin(), places.end()), places.end());
    table.tells_[capture] = places.size() == table.units_.size() && table.are_apart(capture, 0);
  }
  if (!table.are_apart(table.telling_, 1)) {
    return differs("memory that is given or allocated touches other such memory in both");
  }
  return table;
}

// Whether each place ends so many bytes before the next, at least.
bool UnitTable::are_apart(int capture, std::uint64_t gap) const {
  const auto& places = places_[capture];
  return std::adjacent_find(places.begin(), places.end(), [&](const Place& low, const Place& high) {
           return low.address + units_[low.unit].bytes + gap > high.address;
         }) == places.end();
}

UnitTable::Hit UnitTable::find_in(int capture, std::uint64_t address) const {
  const auto after = std::ranges::upper_bound(places_[capture], address, {}, &Place::address);
  if (after == places_[capture].begin()) return {kNone, 0};
  const Place& place = *std::prev(after);
  const std::uint64_t offset = address - place.address;
  return offset <= units_[place.unit].bytes ? Hit{place.unit, offset} : Hit{kNone, 0};
}

UnitTable::Hit UnitTable::find(std::uint64_t first, std::uint64_t second) const {
  const Hit hit = find_in(telling_, telling_ == 0 ? first : second);
  if (hit.unit == kNone) return hit;
  const Place other{(telling_ == 0 ? second : first) - hit.offset, hit.unit};
  return std::ranges::binary_search(places_[1 - telling_], other) ? hit : Hit{kNone, 0};
}

}  // namespace anabranch::cuda
