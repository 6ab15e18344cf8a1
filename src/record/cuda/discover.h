// SPDX-License-Identifier: Apache-2.0
// Recording a captured step: what two captures of it have in common is discovered once, and
// recorded from that for one lane or for several. Where all kernels are known one capture will do.
// Ownership: a Discovery keeps the bytes of the step's tables; the graph of the first capture is
//            borrowed and must be there as long as recordings are made. Recordings keep what they
//            need of a discovery. Device code must outlive both.
// Threads:   for the current context. A Discovery is immutable: several threads may record from it.
// Failure:   a Status; nothing is left behind.
// Edges:     given memory that no node names is no slot.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "anabranch/status.h"
#include "device/cuda/device_code.h"
#include "device/cuda/driver.h"
#include "record/cuda/arena/plan_arena.h"
#include "record/cuda/arena/sources.h"
#include "record/cuda/exec/cuda_recording.h"
#include "record/cuda/image/capture_marks.h"
#include "record/cuda/image/capture_memory.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/rewrite/tables.h"
#include "record/cuda/sites/kernel_layouts.h"
#include "record/cuda/sites/step_graph.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// One of the two captures of a step, and what was allocated while it ran or was given to it. Its
// image, read as soon as it had ended: what it copies from pinned memory may be there no longer
// when the other one has. Without one, the graph is read when it is discovered.
struct Capture {
  CuGraph graph = nullptr;
  std::span<const CaptureAllocation> allocations;
  const GraphImage* image = nullptr;
  const Notes* notes = nullptr;  // of one of the two at most
};

struct DiscoverOptions {
  // With it copies and fills are kernels, which take memory of any kind, and tables can be
  // recorded; without it the driver's nodes stay.
  const DeviceCode* device_code = nullptr;
  // Why addresses in tensor maps must stay as they are, if they must (device/cuda/tensor_maps.h): a
  // kernel with such an address where a map may lie is refused.
  std::string why_opaque_maps{};
};

// All that does not depend on lanes, nor on the memory that launches give.
struct Discovery {
  CuGraph original = nullptr;      // of the first capture
  StepGraph step;                  // in captured order, tables and transfers replaced
  std::vector<TableWrite> tables;  // sorted by node
  std::shared_ptr<const DeviceBytes> table_bytes;
  std::vector<Unit> units;
  std::vector<std::uint32_t> unit_of;  // by allocation
  std::vector<UnitKind> kinds;         // by unit
  std::vector<CudaSlot> slots;
  // Bytes that differ between the captures and are no address, see FoundSites; words of them.
  std::uint32_t unsure = 0;
  Status first_unsure;
  KernelLayouts layouts;    // of its kernels, for captures of other sizes; empty where it is of one
  bool is_of_one = false;   // capture, as one of many sizes: its recording has fewer executables
  bool is_stretch = false;  // some of the nodes of `original`, see stretches.h
};

// `kinds` says of each allocation what it is; an address that was given is a slot even where the
// capture's allocator gave it out again. `of_others`: a third capture, made with other numbers than
// these two, at addresses of its own; words that follow numbers may then change between launches.
Result<Discovery> discover(const Driver& driver, const Capture& first, const Capture& second,
                           std::span<const UnitKind> kinds, const DiscoverOptions& options = {},
                           const Capture* of_others = nullptr);

// Of one capture, as far as its kernels are known; none of its words is unsure then.
Result<Discovery> discover_known(const Driver& driver, const Capture& capture,
                                 const KernelLayouts& known, std::span<const UnitKind> kinds,
                                 const DiscoverOptions& options = {});

// Refused where words are unsure and these are not accepted, and where two units would share bytes
// and nothing orders them (check_places.h).
Result<std::shared_ptr<CudaRecording>> make_recording(const Driver& driver,
                                                      const Discovery& discovery,
                                                      const CudaRecordOptions& options = {});

// Both, for a step that is recorded once, with the device code that the options name.
Result<std::shared_ptr<CudaRecording>> record_captures(const Driver& driver, const Capture& first,
                                                       const Capture& second,
                                                       std::span<const UnitKind> kinds,
                                                       const CudaRecordOptions& options = {});

}  // namespace anabranch::cuda
