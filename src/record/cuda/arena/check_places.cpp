// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/arena/check_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "record/cuda/rewrite/table_reach.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kNowhere = ~0u;
constexpr const char* kOurMistake = "Its memory is planned wrongly: please report this.";

struct UnitPlace {
  std::uint32_t source = kNowhere;
  std::uint64_t begin = 0;
  bool operator==(const UnitPlace&) const = default;
};

Status misplaced(std::uint32_t unit, const std::string& why) {
  return Status(StatusCode::kPlanInvalid,
                fmt::format("record: unit {} of the step {}. {}", unit, why, kOurMistake));
}

// All nodes of the first unit are to have ended when those of the second begin.
struct Demand {
  std::uint32_t first = 0, second = 0;            // nodes
  std::uint32_t first_unit = 0, second_unit = 0;  // which share bytes
};

class PlaceCheck {
 public:
  PlaceCheck(const GraphImage& image, const PlacedStep& placed)
      : image_(image), placed_(placed), places_(placed.units.size()), nodes_(placed.units.size()) {}

  Status find_places();
  Status find_nodes(std::span<const TableWrite> tables);
  Status find_demands();
  Status check_demands();

 private:
  bool is_slot(std::uint32_t source) const { return source < placed_.slots.size(); }
  bool is_owner(std::uint32_t unit) const { return placed_.kinds[unit] != UnitKind::kTemporary; }
  std::uint64_t end_of(std::uint32_t unit) const {
    return places_[unit].begin + placed_.units[unit].bytes;
  }
  std::string name(std::uint32_t source) const {
    return is_slot(source) ? fmt::format("slot {}", source)
                           : fmt::format("arena part {}", source - placed_.slots.size());
  }
  std::string shared_bytes(std::uint32_t a, std::uint32_t b) const {
    return fmt::format("bytes {}..{} of {}", std::max(places_[a].begin, places_[b].begin),
                       std::min(end_of(a), end_of(b)), name(places_[a].source));
  }
  Status check_place(std::uint32_t unit) const;
  Status check_owner(std::uint32_t unit) const;
  Status check_source(std::span<const std::uint32_t> tenants);
  Status follow(std::uint32_t before, std::uint32_t unit);
  Status check_block(std::span<const Demand> demands);

  const GraphImage& image_;
  const PlacedStep& placed_;
  std::vector<UnitPlace> places_;                  // by unit
  std::vector<std::vector<std::uint32_t>> nodes_;  // by unit, in their order
  std::vector<Demand> demands_;
  std::vector<std::uint64_t> ended_;  // by node: which of 64 nodes have when it begins
};

Status PlaceCheck::find_places() {
  const auto& by_unit = placed_.by_unit;
  const auto& by_source = placed_.by_source;
  for (std::size_t i = 0; i < by_unit.size(); ++i) {
    const Site& of_unit = by_unit[i];
    const UnitPlace here{by_source[i].source, by_source[i].shift - of_unit.shift};
    UnitPlace& place = places_[of_unit.unit];
    if (place.source == kNowhere) place = here;
    if (place != here) return misplaced(of_unit.unit, "lies in two places");
  }
  for (std::uint32_t unit = 0; unit < places_.size(); ++unit) {
    if (places_[unit].source == kNowhere || placed_.units[unit].bytes == 0) continue;
    if (Status placed = check_place(unit); !placed.ok()) return placed;
  }
  return {};
}

Status PlaceCheck::check_place(std::uint32_t unit) const {
  const UnitPlace& place = places_[unit];
  if (place.source >= placed_.rules.size()) return misplaced(unit, "lies in no source");
  const SourceRule& rule = placed_.rules[place.source];
  const std::uint64_t bytes = placed_.units[unit].bytes;
  if (place.begin > rule.bytes() || bytes > rule.bytes() - place.begin) {
    return misplaced(unit, fmt::format("has {} bytes at {} of {}, which has {}", bytes, place.begin,
                                       name(place.source), rule.bytes()));
  }
  if (is_owner(unit)) return check_owner(unit);
  if (place.begin % kUnitAlignment != 0 || rule.mask() + 1 < kUnitAlignment) {
    return misplaced(unit, fmt::format("lies at {} of {}, which is aligned to {}", place.begin,
                                       name(place.source), rule.mask() + 1));
  }
  if (is_slot(place.source) &&
      placed_.kinds[placed_.slots[place.source].unit] != UnitKind::kFresh) {
    return misplaced(
        unit, fmt::format("lies in {}, which holds what a launch is given", name(place.source)));
  }
  return {};
}

Status PlaceCheck::check_owner(std::uint32_t unit) const {
  const UnitPlace& place = places_[unit];
  if (is_slot(place.source) && placed_.slots[place.source].unit == unit && place.begin == 0) {
    return {};
  }
  return misplaced(unit, "is given, and lies elsewhere than in its slot");
}

Status PlaceCheck::find_nodes(std::span<const TableWrite> tables) {
  std::vector<std::vector<std::uint32_t>> units(image_.nodes.size());  // by node
  for (const Site& site : placed_.by_unit) units[site.node].push_back(site.unit);
  add_units_of_tables(image_, tables, units);
  for (std::uint32_t node = 0; node < units.size(); ++node) {
    for (const std::uint32_t unit : units[node]) {
      if (places_[unit].source == kNowhere) return misplaced(unit, "is used and has no place");
      if (nodes_[unit].empty() || nodes_[unit].back() != node) nodes_[unit].push_back(node);
    }
  }
  return {};
}

Status PlaceCheck::find_demands() {
  std::vector<std::vector<std::uint32_t>> tenants(placed_.rules.size());  // by source
  for (std::uint32_t unit = 0; unit < places_.size(); ++unit) {
    const bool is_there = places_[unit].source != kNowhere && placed_.units[unit].bytes != 0;
    if (is_there) tenants[places_[unit].source].push_back(unit);
  }
  for (auto& of_source : tenants) {
    std::ranges::stable_sort(of_source, {}, [&](std::uint32_t unit) { return nodes_[unit][0]; });
    if (Status checked = check_source(of_source); !checked.ok()) return checked;
  }
  return {};
}

// Tenants come by their first nodes. Each follows, byte by byte, the last that had the byte; those
// before it were followed by that one.
Status PlaceCheck::check_source(std::span<const std::uint32_t> tenants) {
  std::vector<std::uint64_t> cuts;
  for (const std::uint32_t unit : tenants) {
    cuts.push_back(places_[unit].begin);
    cuts.push_back(end_of(unit));
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<std::uint32_t> last(cuts.size(), kNowhere);  // by piece, from one cut to the next
  for (const std::uint32_t unit : tenants) {
    std::vector<std::uint32_t> before;
    auto cut = std::ranges::lower_bound(cuts, places_[unit].begin);
    for (; *cut != end_of(unit); ++cut) {
      auto& tenant = last[static_cast<std::size_t>(cut - cuts.begin())];
      if (tenant != kNowhere && (before.empty() || before.back() != tenant)) {
        before.push_back(tenant);
      }
      tenant = unit;
    }
    std::ranges::sort(before);
    before.erase(std::unique(before.begin(), before.end()), before.end());
    for (const std::uint32_t tenant : before) {
      if (Status followed = follow(tenant, unit); !followed.ok()) return followed;
    }
  }
  return {};
}

Status PlaceCheck::follow(std::uint32_t before, std::uint32_t unit) {
  if (is_owner(before)) {
    return Status(
        StatusCode::kRace,
        fmt::format(
            "record: {} uses a temporary at {}, which {} has used for a result before it. {}",
            describe_node(image_, nodes_[unit][0]), shared_bytes(before, unit),
            describe_node(image_, nodes_[before][0]), kOurMistake));
  }
  for (const std::uint32_t first : nodes_[before]) {
    for (const std::uint32_t second : nodes_[unit]) {
      demands_.push_back({first, second, before, unit});
    }
  }
  return {};
}

Status PlaceCheck::check_demands() {
  std::ranges::stable_sort(demands_, {}, &Demand::first);
  for (std::size_t begin = 0; begin < demands_.size();) {
    std::size_t end = begin;
    while (end < demands_.size() && demands_[end].first / 64 == demands_[begin].first / 64) ++end;
    const auto block = std::span(demands_).subspan(begin, end - begin);
    if (Status checked = check_block(block); !checked.ok()) return checked;
    begin = end;
  }
  return {};
}

// Demands whose first nodes are of one block of 64.
Status PlaceCheck::check_block(std::span<const Demand> demands) {
  ended_.assign(image_.nodes.size(), 0);
  const std::uint32_t block = demands[0].first / 64;
  for (const EdgeImage& edge : image_.edges) {  // sorted by `to`: those to `from` are done
    ended_[edge.to] |= ended_[edge.from];
    const bool counts = edge.from / 64 == block && !is_early(edge);
    if (counts) ended_[edge.to] |= std::uint64_t{1} << edge.from % 64;
  }
  for (const Demand& demand : demands) {
    if (ended_[demand.second] >> demand.first % 64 & 1) continue;
    return Status(
        StatusCode::kRace,
        fmt::format("record: {} and {} use two temporaries, or a temporary and a result, "
                    "at {}, and nothing orders them. {}",
                    describe_node(image_, demand.first), describe_node(image_, demand.second),
                    shared_bytes(demand.first_unit, demand.second_unit), kOurMistake));
  }
  return {};
}

}  // namespace

Status check_places(const GraphImage& image, const PlacedStep& placed,
                    std::span<const TableWrite> tables) {
  PlaceCheck check(image, placed);
  if (Status found = check.find_places(); !found.ok()) return found;
  if (Status found = check.find_nodes(tables); !found.ok()) return found;
  if (Status found = check.find_demands(); !found.ok()) return found;
  return check.check_demands();
}

}  // namespace anabranch::cuda
