// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/discover.h"

#include <algorithm>
#include <utility>

#include "record/cuda/arena/check_places.h"
#include "record/cuda/arena/placement.h"
#include "record/cuda/exec/repointing.h"
#include "record/cuda/image/inline_children.h"
#include "record/cuda/image/match_captures.h"
#include "record/cuda/order/check_captured.h"
#include "record/cuda/order/check_relaxed.h"
#include "record/cuda/order/early_edges.h"
#include "record/cuda/order/relax_order.h"
#include "record/cuda/rewrite/transfer_kernels.h"
#include "record/cuda/sites/host_copies.h"
#include "record/cuda/sites/node_accesses.h"
#include "record/cuda/sites/number_words.h"
#include "record/cuda/sites/sites.h"

namespace anabranch::cuda {
namespace {

// Both captures as data, with the children in which something moves taken in.
struct Images {
  GraphImage first, second;
};

Result<GraphImage> image_of(const Driver& driver, const Capture& capture) {
  return capture.image ? *capture.image : read_graph(driver, capture.graph);
}

Result<Images> read_images(const Driver& driver, const Capture& first, const Capture& second) {
  auto one = image_of(driver, first);
  if (!one.ok()) return one.error();
  auto other = image_of(driver, second);
  if (!other.ok()) return other.error();
  Images images{*std::move(one), *std::move(other)};
  inline_children(images.first, images.second);
  return images;
}

Result<FoundSites> find_addresses(const Images& images, const UnitTable& units,
                                  const std::string& why_opaque_maps) {
  if (Status same = match_captures(images.first, images.second); !same.ok()) return same;
  auto found = find_sites(images.first, images.second, units, why_opaque_maps);
  if (!found.ok()) return found;
  for (const GraphImage* image : {&images.first, &images.second}) {
    if (Status apart = check_tables(*image, found->tables); !apart.ok()) return apart;
  }
  return found;
}

// Whether the same children were opened in two images of one capture.
bool have_same_nodes(const GraphImage& a, const GraphImage& b) {
  return std::ranges::equal(a.nodes, b.nodes, [](const NodeImage& one, const NodeImage& other) {
    return one.handle == other.handle && one.child_of == other.child_of;
  });
}

// Words that follow numbers, of which the third capture has others. `image` is the first's.
Result<std::vector<ParamWord>> find_numbers_of(const Driver& driver, const Capture& first,
                                               const Capture& of_others, const FoundSites& found,
                                               const GraphImage& image,
                                               const std::string& why_opaque_maps) {
  auto images = read_images(driver, first, of_others);
  if (!images.ok()) return images.error();
  const auto units = UnitTable::make(first.allocations, of_others.allocations);
  if (!units.ok()) return units.error();
  auto other = find_addresses(*images, *units, why_opaque_maps);
  if (!other.ok()) return other.error();
  if (!have_same_nodes(images->first, image)) {
    return Status(StatusCode::kCapturesDiffer,
                  "record: numbers change in a child graph in which no address does. They are not "
                  "followed: each is recorded by itself.");
  }
  return find_numbers(found, *other);
}

// What nodes do in a capture. It is refused if it races.
Result<NodeAccesses> find_and_check_accesses(const GraphImage& image, const Capture& noted,
                                             bool of_second, const UnitTable& units,
                                             FoundSites& found) {
  NodeAccesses accesses = find_accesses(noted.allocations, units, of_second, noted.notes, image,
                                        std::move(found.sites));
  if (!has_branches(image)) return accesses;
  const CapturedUses uses =
      find_captured_uses(image, found.tables, accesses, units, of_second, noted.notes);
  if (Status ordered = check_captured(image, uses); !ordered.ok()) return ordered;
  return accesses;
}

// Tables first: they are copies too. Afterwards what copies read is not needed.
Result<Tables> replace_nodes(const Driver& driver, const DeviceCode* code,
                             std::span<const std::uint32_t> copies, StepGraph& step) {
  auto tables = replace_tables(driver, code, copies, step);
  if (!tables.ok()) return tables;
  for (NodeImage& node : step.image.nodes) node.source_bytes = {};
  if (!code) return tables;
  if (Status replaced = replace_transfers(driver, *code, step); !replaced.ok()) return replaced;
  return tables;
}

Result<Discovery> make_discovery(const Driver& driver, CuGraph original, GraphImage image,
                                 FoundSites found, NodeAccesses accesses,
                                 std::vector<ParamWord> numbers, KernelLayouts layouts,
                                 std::span<const UnitKind> kinds, const DeviceCode* code) {
  Discovery made;
  made.step = {std::move(image), std::move(accesses.facts), std::move(accesses.sites),
               std::move(numbers)};
  if (Status told = find_host_copies(driver, found.tables, made.step); !told.ok()) return told;
  auto tables = replace_nodes(driver, code, found.tables, made.step);
  if (!tables.ok()) return tables.error();
  close_early_edges(made.step.image);
  made.original = original;
  made.tables = std::move(tables->writes);
  made.table_bytes = std::move(tables->bytes);
  made.kinds = kinds_of_units(accesses, kinds);
  made.slots = find_slots(accesses.units, accesses.unit_of, made.kinds, made.step.sites);
  made.units = std::move(accesses.units);
  made.unit_of = std::move(accesses.unit_of);
  made.unsure = static_cast<std::uint32_t>(found.unsure.size());
  made.first_unsure = std::move(found.first_unsure);
  made.layouts = std::move(layouts);
  return made;
}

StepCounts count_step(const Discovery& discovery, const RelaxedOrder& order) {
  StepCounts counts{
      .unsure = discovery.unsure, .lanes = order.lanes, .captured_lanes = order.captured_lanes};
  for (const NodeFacts& node : discovery.step.facts) {
    counts.known += node.is_known;
    counts.host_copies += !node.host_bytes.empty();
  }
  return counts;
}

// By unit; 0 of those that are given.
std::vector<std::uint64_t> bytes_of_temporaries(const Discovery& discovery) {
  std::vector<std::uint64_t> bytes;
  for (std::size_t unit = 0; unit < discovery.units.size(); ++unit) {
    const bool is_placed = discovery.kinds[unit] == UnitKind::kTemporary;
    bytes.push_back(is_placed ? discovery.units[unit].bytes : 0);
  }
  return bytes;
}

}  // namespace

Result<Discovery> discover(const Driver& driver, const Capture& first, const Capture& second,
                           std::span<const UnitKind> kinds, const DiscoverOptions& options,
                           const Capture* of_others) {
  auto images = read_images(driver, first, second);
  if (!images.ok()) return images.error();
  const auto units = UnitTable::make(first.allocations, second.allocations);
  if (!units.ok()) return units.error();
  auto found = find_addresses(*images, *units, options.why_opaque_maps);
  if (!found.ok()) return found.error();
  std::vector<ParamWord> numbers;
  if (of_others) {
    auto words =
        find_numbers_of(driver, first, *of_others, *found, images->first, options.why_opaque_maps);
    if (!words.ok()) return words.error();
    numbers = *std::move(words);
  }
  KernelLayouts layouts;
  layouts.add(images->first, *found);
  const bool of_second = second.notes != nullptr;
  if ((of_second || first.notes) && !units->tells_by_address(of_second)) {
    return Status(StatusCode::kCapturesDiffer,
                  "record: notes are of a capture that uses memory again where the other one does "
                  "not. Note the other one.");
  }
  auto accesses = of_second ? find_and_check_accesses(images->second, second, true, *units, *found)
                            : find_and_check_accesses(images->first, first, false, *units, *found);
  if (!accesses.ok()) return accesses.error();
  return make_discovery(driver, first.graph, std::move(images->first), *std::move(found),
                        *std::move(accesses), std::move(numbers), std::move(layouts), kinds,
                        options.device_code);
}

Result<Discovery> discover_known(const Driver& driver, const Capture& capture,
                                 const KernelLayouts& known, std::span<const UnitKind> kinds,
                                 const DiscoverOptions& options) {
  auto image = image_of(driver, capture);
  if (!image.ok()) return image.error();
  const auto units = UnitTable::make(capture.allocations, capture.allocations);
  if (!units.ok()) return units.error();
  auto found = find_known_sites(driver, known, *image, *units);
  if (!found.ok()) return found.error();
  auto accesses = find_and_check_accesses(*image, capture, false, *units, *found);
  if (!accesses.ok()) return accesses.error();
  auto made = make_discovery(driver, capture.graph, *std::move(image), *std::move(found),
                             *std::move(accesses), {}, {}, kinds, options.device_code);
  if (made.ok()) made->is_of_one = true;
  return made;
}

Result<std::shared_ptr<CudaRecording>> make_recording(const Driver& driver,
                                                      const Discovery& discovery,
                                                      const CudaRecordOptions& options) {
  if (discovery.unsure != 0 && !options.accept_unsure) return discovery.first_unsure;
  const StepGraph& step = discovery.step;
  const std::vector<std::uint64_t> own_bytes = bytes_of_temporaries(discovery);
  RelaxedOrder order =
      relax_order(step, discovery.tables, discovery.units,
                  {options.lanes, options.ahead_bytes, options.parallel_bytes, own_bytes});
  if (order.lanes > 1) {
    if (Status kept = check_relaxed(step, order.edges, discovery.tables); !kept.ok()) return kept;
  }
  GraphImage ordered{step.image.nodes, std::move(order.edges)};
  auto placement = place_units(ordered, step.sites, discovery.units, discovery.kinds,
                               discovery.slots, discovery.tables, options.least_part_bytes);
  if (!placement.ok()) return placement.error();
  const PlacedStep placed{step.sites,      placement->sites, discovery.units,
                          discovery.kinds, placement->slots, placement->rules};
  if (Status apart = check_places(ordered, placed, discovery.tables); !apart.ok()) return apart;
  RecordingParts parts;
  parts.numbers = place_numbers(step.numbers, *placement);
  parts.original = discovery.original;
  parts.repointing = make_repointing(std::move(ordered), step.facts, order, *placement);
  parts.repointing.is_stretch = discovery.is_stretch;
  parts.slots = std::move(placement->slots);
  parts.arena = std::move(placement->arena);
  parts.rules = std::move(placement->rules);
  parts.table_bytes = discovery.table_bytes;
  parts.counts = count_step(discovery, order);
  CudaRecordOptions chosen = options;
  if (discovery.is_of_one) chosen.updating_executables = std::min(1u, options.updating_executables);
  return CudaRecording::make(driver, std::move(parts), chosen);
}

Result<std::shared_ptr<CudaRecording>> record_captures(const Driver& driver, const Capture& first,
                                                       const Capture& second,
                                                       std::span<const UnitKind> kinds,
                                                       const CudaRecordOptions& options) {
  const auto discovery =
      discover(driver, first, second, kinds, {.device_code = options.device_code});
  if (!discovery.ok()) return discovery.error();
  return make_recording(driver, *discovery, options);
}

}  // namespace anabranch::cuda
