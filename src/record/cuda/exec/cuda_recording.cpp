// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/exec/cuda_recording.h"

#include <algorithm>

#include "record/cuda/arena/check_places.h"
#include "record/cuda/exec/make_nodes.h"
#include "record/cuda/image/capture_memory.h"
#include "record/cuda/image/inline_children.h"
#include "record/cuda/image/match_captures.h"
#include "record/cuda/order/check_captured.h"
#include "record/cuda/order/check_relaxed.h"
#include "record/cuda/order/relax_order.h"
#include "record/cuda/rewrite/transfer_kernels.h"
#include "record/cuda/sites/host_copies.h"

namespace anabranch::cuda {
namespace {

std::uint64_t alignment_of(std::uint64_t address) {
  return std::min(address & (~address + 1), kPartAlignment);
}

std::uint64_t alignment_of(const Unit& unit) {
  return std::min(alignment_of(unit.first_address), alignment_of(unit.second_address));
}

// Given memory stays given where others that the capture's allocator put there cannot be told from
// it, and fresh where none of these was there before the launch. What a launch may put anywhere
// lends nothing: temporaries need their alignment.
std::vector<UnitKind> kinds_of_units(const Tenants& tenants, std::span<const UnitKind> kinds) {
  std::vector<UnitKind> of_units(tenants.units.size(), UnitKind::kTemporary);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    UnitKind& kind = of_units[tenants.tenant_of[i]];
    if (kinds[i] == UnitKind::kFresh && kind == UnitKind::kTemporary) kind = UnitKind::kFresh;
    if (kinds[i] == UnitKind::kGiven) kind = UnitKind::kGiven;
  }
  for (std::size_t i = 0; i < of_units.size(); ++i) {
    const bool is_aligned = alignment_of(tenants.units[i]) >= kUnitAlignment;
    if (of_units[i] == UnitKind::kFresh && !is_aligned) of_units[i] = UnitKind::kGiven;
  }
  return of_units;
}

// NCCL's events order its kernels with work outside of the graph; they touch no memory.
bool can_be_known(const NodeImage& node) {
  const bool is_event =
      node.type == CuNodeType::kWaitEvent || node.type == CuNodeType::kEventRecord;
  return node.type == CuNodeType::kKernel || (is_event && node.work == NodeImage::kInTurn);
}

Result<GraphImage> image_of(const Driver& driver, const Capture& capture) {
  return capture.image ? *capture.image : read_graph(driver, capture.graph);
}

// Which of them are known: kernels and events by notes, copies with the host's memory by
// themselves.
Status tell_nodes(const Driver& driver, const Tenants& tenants, FoundSites& found,
                  GraphImage& image) {
  for (std::size_t i = 0; i < image.nodes.size(); ++i) {
    NodeImage& node = image.nodes[i];
    node.work = tenants.work_of[i];
    node.is_known = can_be_known(node) && tenants.is_known[i];
  }
  return find_host_copies(driver, image, found.tables, found.sites);
}

// Memory of one kind or the other, for as long as executables are made. Nothing runs on it.
struct CopyRoom {
  std::unique_ptr<DeviceBytes> allocated;
  std::unique_ptr<CaptureMemory> mapped;
  CuDevicePtr address = 0;  // 0 where nothing needs it
};

Result<CopyRoom> make_copy_room(const Driver& driver, const Repointing& repointing) {
  CopyRoom room;
  std::uint64_t bytes = 0;
  for (const NodeImage& node : repointing.image.nodes) {
    if (is_made_elsewhere(node)) bytes = std::max(bytes, extent_of(node));
  }
  if (bytes == 0) return room;
  if (repointing.mapped_memory) {
    auto made = CaptureMemory::make(driver);
    if (!made.ok()) return made.error();
    const auto address = (*made)->allocate(bytes);
    if (!address.ok()) return address.error();
    room.mapped = *std::move(made);
    room.address = *address;
  } else {
    auto made = DeviceBytes::allocate(driver, bytes);
    if (!made.ok()) return made.error();
    room.address = (*made)->address();
    room.allocated = *std::move(made);
  }
  return room;
}

}  // namespace

Result<std::shared_ptr<CudaRecording>> CudaRecording::make(const Driver& driver,
                                                           const Capture& first,
                                                           const Capture& second,
                                                           std::span<const UnitKind> kinds,
                                                           const CudaRecordOptions& options) {
  std::shared_ptr<CudaRecording> made(new CudaRecording(driver, options));
  made->repointing_.mapped_memory = options.mapped_memory;
  if (Status current =
          recorded("cuCtxGetCurrent", driver.cuCtxGetCurrent(&made->repointing_.context));
      !current.ok()) {
    return current;
  }
  if (Status found = made->discover(first, second, kinds); !found.ok()) return found;
  made->index_sites();
  if (Status ready = made->make_and_weigh_executables(first.graph); !ready.ok()) return ready;
  return made;
}

Status CudaRecording::make_and_weigh_executables(CuGraph original) {
  std::size_t before = 0, after = 0, total = 0;
  if (Status asked = recorded("cuMemGetInfo", driver_.cuMemGetInfo(&before, &total)); !asked.ok()) {
    return asked;
  }
  if (Status made = make_executables(original); !made.ok()) return made;
  if (Status asked = recorded("cuMemGetInfo", driver_.cuMemGetInfo(&after, &total)); !asked.ok()) {
    return asked;
  }
  for (const auto* execs : {&executables_, &updating_}) {
    for (const auto& exec : *execs) {
      held_.device += exec->held().device;
      held_.host += exec->held().host;
    }
  }
  if (before > after + held_.device) held_.driver = before - after - held_.device;
  if (table_bytes_) held_.device += table_bytes_->size();
  return {};
}

Status CudaRecording::make_executables(CuGraph original) {
  const auto room = make_copy_room(driver_, repointing_);
  if (!room.ok()) return room.error();
  repointing_.copy_room = room->address;
  const auto add = [&](std::vector<std::unique_ptr<CudaExec>>& to, const CudaExec::Kind& kind) {
    auto exec = CudaExec::make(driver_, original, repointing_, kind);
    if (!exec.ok()) return exec.error();
    to.push_back(*std::move(exec));
    return Status();
  };
  const CudaExec::Kind settled{.is_launchable = node_count() >= options_.launchable_settled};
  const CudaExec::Kind updating{
      .updater = options_.device_code ? &options_.device_code->updater() : nullptr,
      .repoint_in_two = options_.repoint_in_two,
      .is_launchable = node_count() >= options_.launchable_updating};
  for (std::uint32_t i = 0; i < options_.executables; ++i) {
    if (Status made = add(executables_, settled); !made.ok()) return made;
  }
  for (std::uint32_t i = 0; options_.device_code && i < options_.updating_executables; ++i) {
    if (Status made = add(updating_, updating); !made.ok()) return made;
  }
  return {};
}

Status CudaRecording::discover(const Capture& first, const Capture& second,
                               std::span<const UnitKind> kinds) {
  auto image = image_of(driver_, first);
  if (!image.ok()) return image.error();
  auto other = image_of(driver_, second);
  if (!other.ok()) return other.error();
  inline_children(*image, *other);
  const auto units = UnitTable::make(first.allocations, second.allocations);
  if (!units.ok()) return units.error();
  auto found = find(*image, *other, *units);
  if (!found.ok()) return found.error();
  const bool of_second = second.notes != nullptr;
  const Capture& noted = of_second ? second : first;
  const GraphImage& as_noted = of_second ? *other : *image;
  const Tenants tenants =
      find_accesses(noted.allocations, *units, of_second, noted.notes, as_noted, found->sites);
  if (has_branches(as_noted)) {
    const CapturedUses uses = find_captured_uses(as_noted, found->sites, found->tables, tenants,
                                                 *units, of_second, noted.notes);
    if (Status ordered = check_captured(as_noted, uses); !ordered.ok()) return ordered;
  }
  if (Status told = tell_nodes(driver_, tenants, *found, *image); !told.ok()) return told;
  auto tables = replace(*found, *image);
  if (!tables.ok()) return tables.error();
  if (Status kept = reorder(*image, found->sites, tables->writes, tenants.units); !kept.ok()) {
    return kept;
  }
  if (Status placed = place(*image, tenants, kinds, found->sites, tables->writes); !placed.ok()) {
    return placed;
  }
  repointing_.image = *std::move(image);
  table_bytes_ = std::move(tables->bytes);
  return {};
}

Status CudaRecording::place(const GraphImage& image, const Tenants& tenants,
                            std::span<const UnitKind> kinds, std::span<const Site> sites,
                            std::span<const TableWrite> tables) {
  const std::span<const Unit> units = tenants.units;
  const auto of_units = kinds_of_units(tenants, kinds);
  auto plan = plan_arena(image, sites, units, of_units, tables);
  if (!plan.ok()) return plan.error();
  name_slots(tenants, of_units, sites);
  arena_ = std::move(plan->parts.arena);
  const ArenaParts parts = cut_arena(arena_, units, options_.least_part_bytes);
  list_sources(parts.bytes);
  repointing_.sites.assign(sites.begin(), sites.end());
  name_sources(parts.places, plan->loans, repointing_.sites);
  return check_places(image, {sites, repointing_.sites, units, of_units, slots_, source_rules_},
                      tables);
}

Status CudaRecording::reorder(GraphImage& image, std::span<const Site> sites,
                              std::span<const TableWrite> tables, std::span<const Unit> units) {
  const std::vector<EdgeImage> captured = image.edges;
  lanes_ = relax_order(image, sites, tables, units, options_.lanes, options_.ahead_bytes);
  repointing_.is_reordered = lanes_ > 1;
  return repointing_.is_reordered ? check_relaxed(image, captured, sites, tables) : Status();
}

Result<FoundSites> CudaRecording::find(const GraphImage& first, const GraphImage& second,
                                       const UnitTable& units) {
  if (Status same = match_captures(first, second); !same.ok()) return same;
  auto found = find_sites(first, second, units, options_.why_opaque_maps);
  if (!found.ok()) return found;
  unsure_ = found->unsure;
  if (unsure_ != 0 && !options_.accept_unsure) return found->first_unsure;
  for (const GraphImage* image : {&first, &second}) {
    if (Status apart = check_tables(*image, found->tables); !apart.ok()) return apart;
  }
  return found;
}

// Tables first: they are copies too. Afterwards what copies read is not needed.
Result<Tables> CudaRecording::replace(FoundSites& found, GraphImage& image) {
  auto tables = replace_tables(driver_, options_.device_code, found.tables, image, found.sites);
  if (!tables.ok()) return tables;
  for (NodeImage& node : image.nodes) node.source_bytes = {};
  if (!options_.device_code) return tables;
  if (Status replaced = replace_transfers(driver_, *options_.device_code, image, found.sites);
      !replaced.ok()) {
    return replaced;
  }
  return tables;
}

void CudaRecording::name_slots(const Tenants& tenants, std::span<const UnitKind> kinds,
                               std::span<const Site> sites) {
  std::vector<bool> is_named(tenants.units.size());
  for (const Site& site : sites) is_named[site.unit] = true;
  std::vector<std::uint32_t> allocation(tenants.units.size());
  for (std::uint32_t i = 0; i < tenants.tenant_of.size(); ++i) {
    allocation[tenants.tenant_of[i]] = i;
  }
  for (std::uint32_t unit = 0; unit < tenants.units.size(); ++unit) {
    if (kinds[unit] == UnitKind::kTemporary || !is_named[unit]) continue;
    const Unit& there = tenants.units[unit];
    slots_.push_back({unit, allocation[unit], there.bytes, alignment_of(there)});
  }
}

std::vector<std::uint64_t> CudaRecording::part_bytes() const {
  std::vector<std::uint64_t> bytes;
  for (const SourceRule& part : source_rules().subspan(slots_.size())) {
    bytes.push_back(part.bytes());
  }
  return bytes;
}

void CudaRecording::list_sources(std::span<const std::uint64_t> part_bytes) {
  const auto add = [&](std::uint64_t bytes, std::uint64_t alignment) {
    if (bytes != 0) {
      repointing_.with_bytes.push_back(static_cast<std::uint32_t>(source_rules_.size()));
    }
    source_rules_.emplace_back(bytes, bytes != 0 ? alignment - 1 : 0);
  };
  for (const CudaSlot& slot : slots_) add(slot.bytes, slot.alignment);
  for (const std::uint64_t bytes : part_bytes) add(bytes, kPartAlignment);
}

// Sites so far name units. A borrowed place is one in its lender's slot.
void CudaRecording::name_sources(std::span<const ArenaParts::PartOffset> places,
                                 std::span<const Loan> loans, std::vector<Site>& sites) const {
  struct SourceOffset {
    std::uint32_t source = 0;
    std::uint64_t offset = 0;
  };
  const auto first_part = static_cast<std::uint32_t>(slots_.size());
  std::vector<SourceOffset> of_units;
  for (const ArenaParts::PartOffset& place : places) {
    of_units.push_back({first_part + place.part, place.offset});
  }
  for (std::uint32_t slot = 0; slot < first_part; ++slot) of_units[slots_[slot].unit] = {slot, 0};
  for (const Loan& loan : loans) {
    const SourceOffset& lender = of_units[index_of(loan.lender)];
    of_units[index_of(loan.temporary)] = {lender.source, loan.offset};
  }
  for (Site& site : sites) {
    const SourceOffset& place = of_units[site.unit];
    site.unit = place.source;
    site.shift += place.offset;
  }
}

void CudaRecording::index_sites() {
  Repointing& to = repointing_;
  to.first_site.assign(to.image.nodes.size() + 1, 0);
  std::vector<std::vector<std::uint32_t>> nodes(source_rules_.size());
  for (const Site& site : to.sites) {
    ++to.first_site[site.node + 1];
    if (nodes[site.unit].empty() || nodes[site.unit].back() != site.node) {
      nodes[site.unit].push_back(site.node);
    }
  }
  for (std::size_t i = 1; i < to.first_site.size(); ++i) to.first_site[i] += to.first_site[i - 1];
  to.first_node.push_back(0);
  for (const auto& of_source : nodes) {
    to.nodes.insert(to.nodes.end(), of_source.begin(), of_source.end());
    to.first_node.push_back(static_cast<std::uint32_t>(to.nodes.size()));
  }
  for (const NodeImage& node : to.image.nodes) {
    to.most_fields =
        std::max(to.most_fields, static_cast<std::uint32_t>(node.kernel.fields.size()));
  }
}

}  // namespace anabranch::cuda
