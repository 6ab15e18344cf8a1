// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/check_captured.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "record/cuda/image/copy_box.h"
#include "record/cuda/order/reachability.h"

namespace anabranch::cuda {
namespace {

using Extent = CapturedUse::Extent;

std::int64_t signed_of(std::uint64_t bytes) { return static_cast<std::int64_t>(bytes); }

Bytes bytes_of_copy(const Site& site, const CuMemcpy3D& copy) {
  const bool is_source = site.operand == Operand::kSource;
  const std::uint64_t pitch = is_source ? copy.src_pitch : copy.dst_pitch;
  const std::uint64_t height = is_source ? copy.src_height : copy.dst_height;
  return make_bytes(
      {.offset_bytes = site.shift + (is_source ? source_shift(copy) : destination_shift(copy)),
       .item_bytes = copy.width_bytes,
       .dims = {{copy.depth, signed_of(pitch * height)}, {copy.height, signed_of(pitch)}}});
}

Bytes bytes_of_fill(const Site& site, const CuMemsetNodeParams& fill) {
  return make_bytes({.offset_bytes = site.shift,
                     .item_bytes = fill.width * fill.element_bytes,
                     .dims = {{fill.height, signed_of(fill.pitch)}}});
}

// What notes say of the nodes of one mark.
struct Noted {
  std::map<std::uint64_t, bool> writes;  // by the address of a unit
  std::size_t written = 0;               // how many of those
};

std::vector<Noted> noted_by_mark(const UnitTable& units, bool of_second, const Notes& notes) {
  std::vector<Noted> noted(notes.marks->count() + 1);
  std::size_t next = 0;
  for (const CaptureWork& work : notes.works) {
    const auto uses = notes.uses.subspan(next, work.uses);
    next += work.uses;
    if (work.mark >= notes.marks->count()) continue;
    for (const CaptureUse& use : uses) {
      const auto hit =
          of_second ? units.find_in_second(use.address) : units.find_in_first(use.address);
      if (hit.unit == UnitTable::kNone) continue;
      noted[work.mark].writes[units.units()[hit.unit].address] |= use.writes;
    }
  }
  for (Noted& work : noted) {
    work.written = static_cast<std::size_t>(std::count_if(work.writes.begin(), work.writes.end(),
                                                          [](auto& use) { return use.second; }));
  }
  return noted;
}

// Work without any effect is not queued: where it may write in one place only, it does.
CapturedUse use_of_kernel(const Site& site, const Unit& unit, const Noted& noted) {
  const auto use = noted.writes.find(unit.address);
  if (use == noted.writes.end()) return {site.node, site.unit, true, Extent::kUnknown};
  const bool is_certain = !use->second || noted.written == 1;
  return {site.node, site.unit, use->second, is_certain ? Extent::kSome : Extent::kMaybe};
}

CapturedUse use_of_transfer(const Site& site, const NodeImage& node) {
  if (site.operand == Operand::kTable) return {site.node, site.unit, true, Extent::kUnknown};
  const bool writes = site.operand == Operand::kDestination;
  if (node.type == CuNodeType::kMemset) {
    return {site.node, site.unit, writes, Extent::kBytes, bytes_of_fill(site, node.fill)};
  }
  if (!is_understood(node.copy)) return {site.node, site.unit, writes, Extent::kUnknown};
  return {site.node, site.unit, writes, Extent::kBytes, bytes_of_copy(site, node.copy)};
}

// Where a copy's host side has a site it is memory of a unit.
void add_uses_of_host(const GraphImage& image, std::span<const Site> sites,
                      std::span<const std::uint32_t> tables, CapturedUses& found) {
  const auto unit = static_cast<std::uint32_t>(found.units.size());
  found.units.push_back({~std::uint64_t{0}, false});
  std::set<std::pair<std::uint32_t, Operand>> moved;
  for (const Site& site : sites) moved.emplace(site.node, site.operand);
  const auto add = [&](std::uint32_t node, CuMemoryType type, Operand operand, std::uint64_t at) {
    if (type != CuMemoryType::kHost || moved.contains({node, operand})) return;
    found.uses.push_back(use_of_transfer({node, operand, 0, unit, at}, image.nodes[node]));
  };
  for (std::uint32_t node = 0; node < image.nodes.size(); ++node) {
    const NodeImage& there = image.nodes[node];
    if (there.type != CuNodeType::kMemcpy) continue;
    if (std::binary_search(tables.begin(), tables.end(), node)) continue;
    const CuMemcpy3D& copy = there.copy;
    add(node, copy.src_memory_type, Operand::kSource, source_of(copy));
    add(node, copy.dst_memory_type, Operand::kDestination, destination_of(copy));
  }
}

std::vector<CapturedUnit> units_of_capture(const NodeAccesses& accesses, const Notes* notes) {
  std::vector<CapturedUnit> units;
  for (const Unit& unit : accesses.units) units.push_back({unit.bytes, notes != nullptr});
  for (std::uint32_t i = 0; notes && i < notes->before; ++i) {
    units[accesses.unit_of[i]].is_fresh = false;
  }
  for (const Site& site : accesses.sites) {
    if (site.operand == Operand::kTable) units[site.unit].is_fresh = false;
  }
  return units;
}

class CaptureCheck {
 public:
  CaptureCheck(const GraphImage& image, const CapturedUses& uses)
      : image_(image), units_(uses.units), before_(image.nodes.size()), of_(uses.units.size()) {
    // As if all kernels waited that start early: what may be ordered is no certain race.
    for (const EdgeImage& edge : image.edges) before_.add({edge.from, edge.to});
    for (const CapturedUse& use : uses.uses) of_[use.unit].push_back(&use);
  }

  Status run() const {
    for (std::uint32_t unit = 0; unit < of_.size(); ++unit) {
      if (Status certain = check_certain(unit); !certain.ok()) return certain;
      if (!units_[unit].is_fresh) continue;
      if (Status served = check_readers(unit); !served.ok()) return served;
    }
    return {};
  }

 private:
  // One of two that are certain to meet goes by bytes.
  Status check_certain(std::uint32_t unit) const {
    std::vector<const CapturedUse*> exact;
    for (const CapturedUse* use : of_[unit]) {
      if (use->extent == Extent::kBytes) exact.push_back(use);
    }
    std::stable_sort(exact.begin(), exact.end(), [](const CapturedUse* a, const CapturedUse* b) {
      return a->bytes.begin < b->bytes.begin;
    });
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const Bytes& bytes = exact[i]->bytes;
      for (std::size_t j = i + 1; j < exact.size() && exact[j]->bytes.begin < bytes.end; ++j) {
        if (!may_race(*exact[i], *exact[j])) continue;
        if (find_overlap(bytes, exact[j]->bytes) == Overlap::kOverlap) {
          return refuse(*exact[i], *exact[j]);
        }
      }
      if (!is_whole(*exact[i])) continue;
      for (const CapturedUse* use : of_[unit]) {
        if (use->extent != Extent::kSome || !may_race(*exact[i], *use)) continue;
        return refuse(*exact[i], *use);
      }
    }
    return {};
  }

  bool may_race(const CapturedUse& a, const CapturedUse& b) const {
    return (a.writes || b.writes) && !are_ordered(a.node, b.node);
  }

  bool is_whole(const CapturedUse& use) const {
    return use.bytes.repeats.empty() && use.bytes.begin == 0 &&
           use.bytes.end >= signed_of(units_[use.unit].bytes);
  }

  Status check_readers(std::uint32_t unit) const {
    std::vector<const CapturedUse*> writers;
    for (const CapturedUse* use : of_[unit]) {
      if (use->writes) writers.push_back(use);
    }
    for (const CapturedUse* use : of_[unit]) {
      if (use->writes || use->extent == Extent::kUnknown) continue;
      const CapturedUse* const missed = find_missed(*use, writers);
      if (missed) return refuse(*missed, *use);
    }
    return {};
  }

  // The last known writer before a reader, if that comes behind no writer at all.
  const CapturedUse* find_missed(const CapturedUse& reader,
                                 std::span<const CapturedUse* const> writers) const {
    const CapturedUse* missed = nullptr;
    for (const CapturedUse* writer : writers) {
      if (writer->node > reader.node) break;
      if (writer->node == reader.node || before_.contains(reader.node, writer->node)) {
        return nullptr;
      }
      if (writer->extent != Extent::kUnknown) missed = writer;
    }
    return missed;
  }

  bool are_ordered(std::uint32_t a, std::uint32_t b) const {
    return a == b || before_.contains(std::max(a, b), std::min(a, b));
  }

  Status refuse(const CapturedUse& a, const CapturedUse& b) const {
    const CapturedUse &first = a.node < b.node ? a : b, &second = a.node < b.node ? b : a;
    return Status(
        StatusCode::kRace,
        fmt::format(
            "record: {0} {1} what {2} {3}, and the captured graph has no path from {0} to {2}: "
            "which comes first is left to chance. Between the two, let the stream of the second "
            "wait for that of the first (wait_stream, or an event). The step runs unrecorded; "
            "strict=True raises.",
            describe_node(image_, first.node), first.writes ? "writes" : "reads",
            describe_node(image_, second.node), second.writes ? "writes" : "reads"));
  }

  const GraphImage& image_;
  std::span<const CapturedUnit> units_;
  Reachability before_;
  std::vector<std::vector<const CapturedUse*>> of_;  // by unit, sorted by node
};

}  // namespace

bool has_branches(const GraphImage& image) {
  std::uint32_t end = 0;  // of the chain of nodes, each behind the one before it
  for (const EdgeImage& edge : image.edges) {
    if (edge.from == end && edge.to == end + 1) ++end;
  }
  return end + 1 < image.nodes.size();
}

CapturedUses find_captured_uses(const GraphImage& image, std::span<const std::uint32_t> tables,
                                const NodeAccesses& accesses, const UnitTable& units,
                                bool of_second, const Notes* notes) {
  std::vector<Noted> noted;
  if (notes) noted = noted_by_mark(units, of_second, *notes);
  CapturedUses found{{}, units_of_capture(accesses, notes)};
  for (const Site& site : accesses.sites) {
    const NodeImage& node = image.nodes[site.node];
    if (node.type != CuNodeType::kKernel) {
      found.uses.push_back(use_of_transfer(site, node));
    } else if (accesses.facts[site.node].is_known) {
      const std::uint32_t mark = notes->marks->mark_of(node.captured());
      found.uses.push_back(use_of_kernel(site, accesses.units[site.unit], noted[mark]));
    } else {
      found.uses.push_back({site.node, site.unit, true, Extent::kUnknown});
    }
  }
  add_uses_of_host(image, accesses.sites, tables, found);
  return found;
}

Status check_captured(const GraphImage& image, const CapturedUses& uses) {
  if (!has_branches(image) || image.nodes.size() > kMostRaceNodes) return {};
  return CaptureCheck(image, uses).run();
}

}  // namespace anabranch::cuda
