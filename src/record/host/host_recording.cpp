// SPDX-License-Identifier: Apache-2.0
#include "record/host/host_recording.h"

#include <fmt/format.h>

#include <algorithm>

#include "record/host/lane_assignment.h"
#include "record/region_table.h"
#include "record/table_places.h"

namespace anabranch::host {
namespace {

Result<ArenaPointer> allocate(const char* what, std::uint64_t size, std::uint64_t alignment) {
  const ArenaDeleter deleter{std::align_val_t{alignment}};
  if (size == 0) return ArenaPointer(nullptr, deleter);
  void* block = ::operator new(size, deleter.alignment, std::nothrow);
  if (!block) {
    return Status(StatusCode::kRecordFailed,
                  fmt::format("record: {} of {} bytes, aligned to {}, could not be allocated. Free "
                              "memory, or record a smaller program.",
                              what, size, alignment));
  }
  return ArenaPointer(static_cast<std::byte*>(block), deleter);
}

Result<ArenaPointer> make_arena(const Plan& plan) {
  std::uint64_t alignment = 64;
  for (const Buffer& buffer : plan.program().buffers()) {
    if (buffer.role == Role::kTemporary) alignment = std::max(alignment, buffer.alignment);
  }
  return allocate("the arena", plan.arena().size_bytes, alignment);
}

}  // namespace

HostRecording::LaneOrder HostRecording::make_lane_order(const Plan& plan, std::uint32_t max_lanes) {
  const LaneAssignment lanes = assign_lanes(plan, max_lanes);
  LaneOrder order{make_lane_schedule(plan, lanes), lanes.lane_count, {}, {}};
  order.positions.resize(plan.order().size());
  for (std::uint32_t p = 0; p < order.positions.size(); ++p) order.positions[p] = p;
  std::stable_sort(order.positions.begin(), order.positions.end(),
                   [&lane = order.schedule.lane](std::uint32_t a, std::uint32_t b) {
                     return lane[a] < lane[b];
                   });
  for (const std::uint32_t p : order.positions) order.steps.push_back(plan.order()[p]);
  return order;
}

HostRecording::HostRecording(const Plan& plan, std::shared_ptr<HostDevice> device,
                             ArenaPointer arena, ArenaPointer tables, LaneOrder order,
                             const RegionTable& regions)
    : plan_(plan),
      device_(std::move(device)),
      arena_(std::move(arena)),
      tables_(std::move(tables)),
      addresses_(plan, order.steps, arena_.get(), tables_.get()),
      waits_(std::move(order.schedule.waits)),
      phases_(std::move(order.schedule.phases)),
      points_(order.schedule.most_points),
      serial_order_(order.steps.size()),
      lanes_(order.lane_count) {
  actions_.reserve(order.steps.size());
  for (std::size_t i = 0; i < order.steps.size(); ++i) add_action(order, i, regions);
  const Action* begin = actions_.data();
  for (std::uint32_t lane = 0; lane < lane_count(); ++lane) {
    const auto count = std::count(order.schedule.lane.begin(), order.schedule.lane.end(), lane);
    lanes_[lane].actions = {begin, static_cast<std::size_t>(count)};
    begin += count;
  }
  share_out_phases();
}

void HostRecording::share_out_phases() {
  std::vector<std::span<const Action>> left;
  for (const HostLane& lane : lanes_) left.push_back(lane.actions);
  for (const Phase& phase : phases_) {
    for (auto& actions : left) {
      const auto later = std::find_if(actions.begin(), actions.end(), [&](const Action& action) {
        return action.position >= phase.end;
      });
      const auto count = static_cast<std::size_t>(later - actions.begin());
      phase_actions_.push_back(actions.first(count));
      actions = actions.subspan(count);
    }
  }
}

void HostRecording::add_action(const LaneOrder& order, std::size_t index,
                               const RegionTable& regions) {
  const std::uint32_t position = order.positions[index];
  const Step& step = plan_.program().step(order.steps[index]);
  Action action;
  action.region = region_of(step, regions);
  action.position = position;
  action.lane = order.schedule.lane[position];
  action.step = order.steps[index];
  if (!actions_.empty()) {
    action.first_address = actions_.back().first_address + actions_.back().address_count;
  }
  action.address_count = static_cast<std::uint32_t>(step.accesses.size());
  action.first_wait = order.schedule.first_wait[position];
  action.wait_count = order.schedule.first_wait[position + 1] - action.first_wait;
  action.point = order.schedule.point[position];
  actions_.push_back(action);
  serial_order_[position] = &actions_.back();
}

Region HostRecording::region_of(const Step& step, const RegionTable& regions) {
  if (runs_region(step)) return regions.find(step.name)->second;
  if (step.kind == StepKind::kCopy || step.kind == StepKind::kFill) {
    return transfers_.emplace_back(step).region();
  }
  return {};
}

std::uint32_t HostRecording::take_points() noexcept {
  const std::uint32_t before = points_taken_;
  points_taken_ += points_;
  return before;
}

bool HostRecording::try_hold() noexcept {
  const std::uint32_t self = process_generation();
  std::uint32_t holder = holder_.load(std::memory_order_relaxed);
  return holder != self && holder_.compare_exchange_strong(holder, self, std::memory_order_acquire);
}

Result<std::shared_ptr<HostRecording>> make_host_recording(
    const Plan& plan, const std::shared_ptr<HostDevice>& device, const RegionTable& regions) {
  if (Status checked = check_regions(plan, regions); !checked.ok()) return checked;
  Result<ArenaPointer> arena = make_arena(plan);
  if (!arena.ok()) return arena.error();
  Result<ArenaPointer> tables =
      allocate("tables", place_tables(plan).size_bytes, kMaxTableAlignment);
  if (!tables.ok()) return tables.error();
  HostRecording::LaneOrder order = HostRecording::make_lane_order(plan, device->max_lanes());
  if (Status ready = device->prepare_workers(order.lane_count - 1); !ready.ok()) return ready;
  return std::shared_ptr<HostRecording>(new HostRecording(
      plan, device, *std::move(arena), *std::move(tables), std::move(order), regions));
}

}  // namespace anabranch::host
