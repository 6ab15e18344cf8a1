// SPDX-License-Identifier: Apache-2.0
// A plan made real on the host: a list of actions a lane, and the addresses they are given.
// Ownership: keeps plan, device and arena; the contexts of regions belong to the caller.
// Threads:   everything non-const belongs to the launch that holds the recording (HostHold).
// Failure:   make_host_recording() is a Status; a refused one leaves nothing behind.
// Edges:     in a forked child a launch that the parent was running does not hold the recording.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "anabranch/device.h"
#include "anabranch/plan.h"
#include "anabranch/record.h"
#include "base/event_ring.h"
#include "device/host/futex.h"
#include "device/host/host_device.h"
#include "record/host/address_table.h"
#include "record/host/host_transfer.h"
#include "record/host/lane_schedule.h"

namespace anabranch::host {

// One step on its lane.
struct Action {
  Region region;               // no function: the step only orders
  std::uint32_t position = 0;  // in the plan's order
  std::uint32_t lane = 0;
  StepId step{};
  std::uint32_t first_address = 0;  // in the address table
  std::uint32_t address_count = 0;
  std::uint32_t first_wait = 0;  // in waits()
  std::uint32_t wait_count = 0;
  std::uint32_t point = 0;  // what the lane has reached afterwards; 0: no lane waits for it
};

inline constexpr std::uint32_t kNoPosition = ~0u;
inline constexpr std::size_t kErrorBytes = 512;

// The first step that failed on a lane.
struct Failure {
  std::uint32_t position = kNoPosition;
  std::int32_t code = 0;
  bool threw = false;
  std::array<char, kErrorBytes> text{};
};

struct HostLane {
  Gate gate;  // the points the lane has reached, over all launches
  std::span<const Action> actions;
  Failure failure;
};

struct ArenaDeleter {
  std::align_val_t alignment{};
  void operator()(std::byte* arena) const noexcept { ::operator delete(arena, alignment); }
};
using ArenaPointer = std::unique_ptr<std::byte, ArenaDeleter>;

class HostRecording {
 public:
  const Plan& plan() const noexcept { return plan_; }
  HostDevice& device() const noexcept { return *device_; }
  std::uint32_t lane_count() const noexcept { return static_cast<std::uint32_t>(lanes_.size()); }
  HostLane& lane(std::uint32_t index) noexcept { return lanes_[index]; }
  // By position in the plan's order.
  std::span<const Action* const> serial_order() const noexcept { return serial_order_; }
  std::span<const LaneWait> waits() const noexcept { return waits_; }
  std::span<const Phase> phases() const noexcept { return phases_; }
  // The actions of a lane in a phase.
  std::span<const Action> actions(const Phase& phase, std::uint32_t lane) const noexcept {
    return phase_actions_[static_cast<std::size_t>(&phase - phases_.data()) * lanes_.size() + lane];
  }
  AddressTable& addresses() noexcept { return addresses_; }

  // Points of this launch come after the answer, and after all points of launches before.
  std::uint32_t take_points() noexcept;

  // Where launches write what happens; nullptr: nowhere. Not while a launch runs.
  void set_event_ring(EventRing* ring) noexcept { ring_.store(ring, std::memory_order_release); }
  EventRing* event_ring() const noexcept { return ring_.load(std::memory_order_acquire); }

  bool try_hold() noexcept;
  void release() noexcept { holder_.store(0, std::memory_order_release); }

 private:
  friend Result<std::shared_ptr<HostRecording>> make_host_recording(
      const Plan& plan, const std::shared_ptr<HostDevice>& device, const RegionTable& regions);
  // The steps lane by lane, each lane in plan order.
  struct LaneOrder {
    LaneSchedule schedule;
    std::uint32_t lane_count = 1;
    std::vector<StepId> steps;
    std::vector<std::uint32_t> positions;
  };
  static LaneOrder make_lane_order(const Plan& plan, std::uint32_t max_lanes);
  HostRecording(const Plan& plan, std::shared_ptr<HostDevice> device, ArenaPointer arena,
                ArenaPointer tables, LaneOrder order, const RegionTable& regions);
  void add_action(const LaneOrder& order, std::size_t index, const RegionTable& regions);
  Region region_of(const Step& step, const RegionTable& regions);
  void share_out_phases();

  const Plan plan_;
  const std::shared_ptr<HostDevice> device_;
  const ArenaPointer arena_;
  const ArenaPointer tables_;
  AddressTable addresses_;
  const std::vector<LaneWait> waits_;
  const std::vector<Phase> phases_;
  const std::uint32_t points_;  // that a launch takes
  std::vector<Action> actions_;
  std::vector<const Action*> serial_order_;
  std::deque<HostTransfer> transfers_;
  std::vector<HostLane> lanes_;
  std::vector<std::span<const Action>> phase_actions_;  // phase by phase, lane by lane
  std::uint32_t points_taken_ = 0;
  std::atomic<EventRing*> ring_{nullptr};
  std::atomic<std::uint32_t> holder_{0};  // process_generation() of the launch that runs, or 0
};

Result<std::shared_ptr<HostRecording>> make_host_recording(
    const Plan& plan, const std::shared_ptr<HostDevice>& device, const RegionTable& regions);

// One launch's hold on a recording; empty if another launch has it.
class HostHold {
 public:
  explicit HostHold(HostRecording& recording) noexcept
      : recording_(recording.try_hold() ? &recording : nullptr) {}
  ~HostHold() {
    if (recording_) recording_->release();
  }
  HostHold(const HostHold&) = delete;
  HostHold& operator=(const HostHold&) = delete;

  explicit operator bool() const noexcept { return recording_ != nullptr; }

 private:
  HostRecording* recording_;
};

}  // namespace anabranch::host
