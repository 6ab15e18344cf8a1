// SPDX-License-Identifier: Apache-2.0
// What memory a plan needs while it is captured on CUDA, and getting it.
// Ownership: a PlanMemory owns its addresses; the graphs of a capture must be re-pointed or
//            destroyed before it goes.
// Threads:   one at a time; for the current context.
// Failure:   find_plan_units() is kNotRecordable and names the step or buffer, allocation a Status
//            that names the call.
// Edges:     temporaries that no step uses have no unit; buffers without bytes have one.
//
// A buffer is a unit. Captured addresses have the alignment that the program declares and no more:
// a library that picks a kernel by it picks one that every launch can run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "record/cuda/arena/plan_arena.h"
#include "record/cuda/image/capture_memory.h"
#include "record/cuda/sites/units.h"
#include "record/transfer_loops.h"

namespace anabranch::cuda {

// A copy or fill as a list of contiguous pieces; executables take new addresses for no other kind.
inline constexpr std::uint64_t kMostPieces = 1024;
// Of places in the arena, and of what a slot can ask for: see plan_arena.cpp.
inline constexpr std::uint64_t kArenaAlignment = 512;

// What a copy or fill step does. Where source and destination share bytes, it goes by way of a
// scratch unit: `loops` end in it, `unstage` begin there.
struct Transfer {
  TransferLoops loops;
  TransferLoops unstage;
  std::uint32_t scratch = UnitTable::kNone;
};

// Of such a buffer a device has no bytes: regions read it on the host.
constexpr bool is_value(Role role) { return role == Role::kNumber || role == Role::kGrid; }

struct PlanUnit {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;
  bool is_ordinary = false;  // captured on memory of cuMemAlloc
};

struct PlanUnits {
  std::vector<PlanUnit> units;  // those of the plan's slots first, in their order
  std::vector<UnitKind> kinds;
  std::vector<std::uint32_t> of_buffer;  // kNone where there is none
  std::vector<Transfer> transfers;       // by step; empty but for copies and fills
};

// `driver_copies`: copies stay nodes of the driver, which keep the kind of memory they were
// captured with; so what is copied is captured on memory of the kind that launches bring.
Result<PlanUnits> find_plan_units(const Plan& plan, bool driver_copies);

class PlanMemory {
 public:
  static Result<std::unique_ptr<PlanMemory>> make(const Driver& driver, const PlanUnits& units);
  ~PlanMemory();
  PlanMemory(const PlanMemory&) = delete;
  PlanMemory& operator=(const PlanMemory&) = delete;

  // By unit.
  std::span<const CaptureAllocation> allocations() const { return allocations_; }

 private:
  explicit PlanMemory(const Driver& driver) : driver_(driver) {}
  Result<std::uint64_t> allocate(const PlanUnit& unit);

  const Driver& driver_;
  std::unique_ptr<CaptureMemory> virtual_;
  std::vector<CuDevicePtr> blocks_;
  std::vector<CaptureAllocation> allocations_;
};

}  // namespace anabranch::cuda
