// SPDX-License-Identifier: Apache-2.0
// A plan made real on a CUDA device: captured twice, and twice more where it has numbers or grids;
// re-pointed at every launch.
// Ownership: keeps plan and device; owns the executables and the arenas.
// Threads:   immutable but for in_flight(), whose entries belong each to the launch that leases it.
// Failure:   make() is a Status and leaves nothing behind.
// Edges:     the destructor waits for launches that still run.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "anabranch/record.h"
#include "device/cuda/cuda_device.h"
#include "record/cuda/discover.h"
#include "record/cuda/exec/cuda_recording.h"
#include "record/cuda/exec/launch_mark.h"
#include "record/cuda/plan/plan_numbers.h"
#include "record/cuda/plan/plan_tables.h"
#include "record/table_places.h"

namespace anabranch::cuda {

// So many launches of one recording run at once, as many as updating executables send; a further
// one waits, on the device, for one before.
inline constexpr std::size_t kMostInFlight = 2;

// What a launch has to itself from its call to its end: an arena, tables, and the mark of that end.
class InFlight {
 public:
  bool try_lease() noexcept { return !leased_.exchange(true, std::memory_order_acquire); }
  void release() noexcept { leased_.store(false, std::memory_order_release); }

  // For the lessee.
  bool is_ready() const { return ready_; }
  // Allocates the arena and the tables, once.
  Status prepare(const std::shared_ptr<CudaDevice>& device, const CudaRecording& recording,
                 std::uint64_t table_bytes, Act act);
  void free();
  // Of a launch: of the graph's slots, which the lessee writes, and of the arena.
  std::span<std::uint64_t> addresses() { return addresses_; }
  StagedTables& tables() { return tables_; }
  // One that no ticket has.
  Result<std::shared_ptr<LaunchMark>> take_mark();
  // The end of the launch that was here last; null: it has ended.
  std::shared_ptr<LaunchMark> last;
  CuStream last_stream = nullptr;

 private:
  std::atomic<bool> leased_{false};
  bool ready_ = false;
  std::shared_ptr<CudaDevice> device_;
  CuDevicePtr block_ = 0;
  std::vector<std::uint64_t> addresses_;
  StagedTables tables_;
  LaunchMarks marks_;
};

// The source of the graph that is a table's address, and where that lies in the block of tables.
struct PlacedTable {
  std::uint32_t source = 0;
  std::uint64_t offset = 0;
};

struct PlanCaptured;  // in plan_recording.cpp
struct PlanUnits;     // plan_units.h

class PlanRecording {
 public:
  static Result<std::shared_ptr<PlanRecording>> make(const Plan& plan,
                                                     const std::shared_ptr<CudaDevice>& device,
                                                     const RegionTable& regions);
  ~PlanRecording();
  PlanRecording(const PlanRecording&) = delete;
  PlanRecording& operator=(const PlanRecording&) = delete;

  const Plan& plan() const { return plan_; }
  const std::shared_ptr<CudaDevice>& device() const { return device_; }
  // Its slots name those of the plan as units.
  CudaRecording& graph() { return *graph_; }
  // By the graph's numbers; those of which they are made are at numbers().
  std::span<const NumberWord> number_words() const { return number_words_; }
  std::span<const PlanNumber> numbers() const { return numbers_; }
  const TablePlaces& tables() const { return tables_; }
  // Those that kernels are given.
  std::span<const PlacedTable> placed_tables() const { return placed_tables_; }
  std::array<InFlight, kMostInFlight>& in_flight() { return in_flight_; }
  std::string dump() const;

 private:
  PlanRecording(const Plan& plan, std::shared_ptr<CudaDevice> device)
      : plan_(plan), device_(std::move(device)), tables_(place_tables(plan)) {}
  Status capture(const RegionTable& regions);
  Result<Discovery> discover_captures(std::vector<PlanCaptured>& captured, const PlanUnits& units);
  void place_sources_of_tables();

  const Plan plan_;
  const std::shared_ptr<CudaDevice> device_;
  const TablePlaces tables_;
  std::vector<PlacedTable> placed_tables_;
  std::shared_ptr<CudaRecording> graph_;
  std::vector<PlanNumber> numbers_;
  std::vector<NumberWord> number_words_;
  std::array<InFlight, kMostInFlight> in_flight_;
};

}  // namespace anabranch::cuda
