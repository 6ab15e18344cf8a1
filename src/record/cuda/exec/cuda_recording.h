// SPDX-License-Identifier: Apache-2.0
// A captured step made real: executable graphs whose addresses are arguments.
// Ownership: owns its graphs and executables; the captures it was made from may be destroyed. The
//            modules of the kernels must stay loaded, and device code must outlive it.
// Threads:   make() for the current context. Executables are leased one launch at a time; the rest
//            is immutable.
// Failure:   make() is a Status and leaves nothing behind.
// Edges:     what the captures agree on is frozen: sizes, numbers, memory that belongs to no unit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "anabranch/captured_recording.h"
#include "anabranch/plan.h"
#include "anabranch/status.h"
#include "device/cuda/device_code.h"
#include "device/cuda/driver.h"
#include "record/cuda/arena/arena_parts.h"
#include "record/cuda/arena/sources.h"
#include "record/cuda/exec/cuda_exec.h"
#include "record/cuda/exec/repointing.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/order/memory_window.h"
#include "record/cuda/rewrite/tables.h"

namespace anabranch::cuda {

struct CudaRecordOptions {
  std::uint32_t executables = 1;  // more let more launches at settled addresses run at once
  // With it there are updating executables; without it all nodes are set from the host.
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
  // Keeps what the first capture had where bytes differ that are no address, see FoundSites. For a
  // caller that goes on to compare launches of both captures' recordings with the step itself.
  bool accept_unsure = false;
  // Where one of the captures has notes: nodes that may run side by side do, on so many lanes.
  std::uint32_t lanes = 1;
  std::uint64_t ahead_bytes = kAheadBytes;  // see copy_window.h
  std::uint64_t parallel_bytes = kNoBound;  // see memory_window.h
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

// What was found of a step while it was recorded; for reports.
struct StepCounts {
  std::uint32_t unsure = 0;          // words that differ between the captures and are no address
  std::uint32_t known = 0;           // nodes whose use of memory is known
  std::uint32_t host_copies = 0;     // of these, copies with the host's memory
  std::uint32_t lanes = 1;           // that are used; 1 where the captured order stays
  std::uint32_t captured_lanes = 1;  // that this has then, by streams of the step's own
};

// All of a recording but its executables.
struct RecordingParts {
  CuGraph original = nullptr;  // the captured graph; its nodes are those of the image
  Repointing repointing;
  std::vector<CudaSlot> slots;
  std::vector<CudaNumber> numbers;
  // As it was planned, before it was cut; a launch gives memory for the parts. What fresh units
  // lend is not in it.
  ArenaLayout arena;
  std::vector<SourceRule> rules;                   // by source
  std::shared_ptr<const DeviceBytes> table_bytes;  // that nodes read; null where none does
  StepCounts counts;
};

class CudaRecording {
 public:
  static Result<std::shared_ptr<CudaRecording>> make(const Driver& driver, RecordingParts parts,
                                                     const CudaRecordOptions& options = {});

  std::span<const CudaSlot> slots() const { return parts_.slots; }
  const ArenaLayout& arena() const { return parts_.arena; }
  std::vector<std::uint64_t> part_bytes() const;
  // By source, from the last of the parts on.
  std::span<const CudaNumber> numbers() const { return parts_.numbers; }
  std::span<const SourceRule> source_rules() const { return parts_.rules; }
  // Nodes that name a source.
  std::uint32_t node_count(std::size_t source) const {
    return parts_.repointing.first_node[source + 1] - parts_.repointing.first_node[source];
  }
  std::span<const PlacedSite> sites() const { return parts_.repointing.sites; }
  const GraphImage& image() const { return parts_.repointing.image; }
  const Repointing& repointing() const { return parts_.repointing; }
  const StepCounts& step_counts() const { return parts_.counts; }
  std::uint32_t node_count() const {
    return static_cast<std::uint32_t>(parts_.repointing.image.nodes.size());
  }
  const CudaRecordOptions& options() const { return options_; }
  std::span<const std::unique_ptr<CudaExec>> executables() const { return executables_; }
  std::span<const std::unique_ptr<CudaExec>> updating() const { return updating_; }
  CudaLaunchCounts& counts() { return counts_; }
  // Bytes of tables count in each recording that reads them.
  const HeldMemory& held() const { return held_; }

 private:
  CudaRecording(const Driver& driver, RecordingParts parts, const CudaRecordOptions& options)
      : driver_(driver), parts_(std::move(parts)), options_(options) {}
  Status make_executables();
  Status make_and_weigh_executables();

  const Driver& driver_;
  RecordingParts parts_;  // goes after the executables, which read table_bytes
  const CudaRecordOptions options_;
  HeldMemory held_;
  std::vector<std::unique_ptr<CudaExec>> executables_;
  std::vector<std::unique_ptr<CudaExec>> updating_;
  CudaLaunchCounts counts_;
};

}  // namespace anabranch::cuda
