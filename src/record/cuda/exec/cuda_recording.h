// SPDX-License-Identifier: Apache-2.0
// A captured step made real: executable graphs whose addresses are arguments.
// Ownership: owns its graphs and executables; the captures it was made from may be destroyed. The
//            modules of the kernels must stay loaded.
// Threads:   make() for the current context. Executables are leased one launch at a time; the rest
//            is immutable.
// Failure:   make() is a Status and leaves nothing behind.
// Edges:     what two captures agree on is frozen: sizes, numbers, memory that belongs to no unit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "anabranch/capture.h"
#include "anabranch/plan.h"
#include "anabranch/status.h"
#include "device/cuda/device_code.h"
#include "device/cuda/driver.h"
#include "record/cuda/arena/arena_parts.h"
#include "record/cuda/arena/plan_arena.h"
#include "record/cuda/arena/sources.h"
#include "record/cuda/exec/cuda_exec.h"
#include "record/cuda/exec/repointing.h"
#include "record/cuda/image/capture_marks.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/rewrite/tables.h"
#include "record/cuda/sites/node_accesses.h"
#include "record/cuda/sites/sites.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// One of the two captures of a step, and what was allocated while it ran or was given to it. Its
// image, read as soon as it had ended: what it copies from pinned memory may be there no longer
// when the other one has. Without one, the graph is read when the recording is made.
struct Capture {
  CuGraph graph = nullptr;
  std::span<const CaptureAllocation> allocations;
  const GraphImage* image = nullptr;
  const Notes* notes = nullptr;  // of one of the two at most
};

struct CudaRecordOptions {
  std::uint32_t executables = 1;  // more let more launches at settled addresses run at once
  // With it copies and fills are kernels, which take memory of any kind, and there are updating
  // executables; without it the driver's nodes stay, and all are set from the host.
  const DeviceCode* device_code = nullptr;
  std::uint32_t updating_executables = 2;  // launches on so many streams run at once
  bool repoint_in_two = false;             // kernels, also where one would do; see CudaExec
  // Updating executables of so many nodes are launchable, and the others of so many: about where
  // the one is done as early either way, and the other takes the CPU as long, on an H200.
  std::uint32_t launchable_updating = 400;
  std::uint32_t launchable_settled = 3000;
  // Up to so many nodes are set from the host. About where the two cost the same on an H200.
  std::uint32_t few_nodes = 20;
  // After so many launches at the same addresses all nodes are set from the host, once, and the
  // launches that follow cost what a frozen graph does.
  std::uint32_t settle_after = 10;
  // Keeps what the first capture had where bytes differ that are no address. For a caller that
  // goes on to compare launches of both captures' recordings with the step itself.
  bool accept_unsure = false;
  // Why addresses in tensor maps must stay as they are, if they must (device/cuda/tensor_maps.h): a
  // kernel with such an address where a map may lie is refused.
  std::string why_opaque_maps{};
  // Where one of the captures has notes: nodes that may run side by side do, on so many lanes.
  std::uint32_t lanes = 1;
  std::uint64_t ahead_bytes = kAheadBytes;  // see copy_window.h
  // Launches give memory that is mapped (cuMemMap), else memory of cuMemAlloc. The driver's copies
  // take the one or the other.
  bool mapped_memory = false;
  // See arena_parts.h. A caller with one block for the arena takes one part, by the largest number.
  std::uint64_t least_part_bytes = kLeastPartBytes;
};

// How launches went; for reports.
struct CudaLaunchCounts {
  std::atomic<std::uint64_t> unchanged{0};  // no node had to be set
  std::atomic<std::uint64_t> from_host{0};
  std::atomic<std::uint64_t> from_device{0};
};

class CudaRecording {
 public:
  // `kinds` says of each allocation what it is; an address that was given is a slot even where the
  // capture's allocator gave it out again. Device code must outlive the recording. Refused where
  // two units would share bytes and nothing orders them (check_places.h).
  static Result<std::shared_ptr<CudaRecording>> make(const Driver& driver, const Capture& first,
                                                     const Capture& second,
                                                     std::span<const UnitKind> kinds,
                                                     const CudaRecordOptions& options = {});

  std::span<const CudaSlot> slots() const { return slots_; }
  // As it was planned, before it was cut; a launch gives memory for the parts. What fresh units
  // lend is not in it.
  const ArenaLayout& arena() const { return arena_; }
  std::vector<std::uint64_t> part_bytes() const;
  std::span<const SourceRule> source_rules() const { return source_rules_; }  // by source
  // Nodes that name a source.
  std::uint32_t node_count(std::size_t source) const {
    return repointing_.first_node[source + 1] - repointing_.first_node[source];
  }
  // Bytes that differ between the captures and are no address, see FoundSites; words of them.
  std::uint32_t unsure() const { return unsure_; }
  std::span<const Site> sites() const { return repointing_.sites; }
  const GraphImage& image() const { return repointing_.image; }
  std::uint32_t lanes() const { return lanes_; }  // that are used; 1 where the captured order stays
  std::uint32_t node_count() const {
    return static_cast<std::uint32_t>(repointing_.image.nodes.size());
  }
  const CudaRecordOptions& options() const { return options_; }
  std::span<const std::unique_ptr<CudaExec>> executables() const { return executables_; }
  std::span<const std::unique_ptr<CudaExec>> updating() const { return updating_; }
  CudaLaunchCounts& counts() { return counts_; }
  const HeldMemory& held() const { return held_; }

 private:
  CudaRecording(const Driver& driver, const CudaRecordOptions& options)
      : driver_(driver), options_(options) {}
  Status make_executables(CuGraph original);
  Status make_and_weigh_executables(CuGraph original);
  Status discover(const Capture& first, const Capture& second, std::span<const UnitKind> kinds);
  Result<FoundSites> find(const GraphImage& first, const GraphImage& second,
                          const UnitTable& units);
  Result<Tables> replace(FoundSites& found, GraphImage& image);
  Status reorder(GraphImage& image, std::span<const Site> sites, std::span<const TableWrite> tables,
                 std::span<const Unit> units);
  // Gives units their places, and sites their sources, which name units.
  Status place(const GraphImage& image, const Tenants& tenants, std::span<const UnitKind> kinds,
               std::span<const Site> sites, std::span<const TableWrite> tables);
  void name_slots(const Tenants& tenants, std::span<const UnitKind> kinds,
                  std::span<const Site> sites);
  void list_sources(std::span<const std::uint64_t> part_bytes);
  void name_sources(std::span<const ArenaParts::PartOffset> places, std::span<const Loan> loans,
                    std::vector<Site>& sites) const;
  void index_sites();

  const Driver& driver_;
  Repointing repointing_;
  std::vector<CudaSlot> slots_;
  ArenaLayout arena_;
  std::vector<SourceRule> source_rules_;
  std::uint32_t unsure_ = 0;
  std::uint32_t lanes_ = 1;
  const CudaRecordOptions options_;
  HeldMemory held_;
  std::unique_ptr<DeviceBytes> table_bytes_;  // goes after the executables that read it
  std::vector<std::unique_ptr<CudaExec>> executables_;
  std::vector<std::unique_ptr<CudaExec>> updating_;
  CudaLaunchCounts counts_;
};

}  // namespace anabranch::cuda
