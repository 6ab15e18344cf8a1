// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/plan/plan_recording.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "device/cuda/context_scope.h"
#include "record/cuda/discover.h"
#include "record/cuda/plan/plan_capture.h"
#include "record/cuda/plan/plan_grids.h"
#include "record/cuda/plan/plan_units.h"
#include "record/cuda/step_recording.h"
#include "record/region_table.h"

namespace anabranch::cuda {

Status InFlight::prepare(const std::shared_ptr<CudaDevice>& device, const CudaRecording& recording,
                         std::uint64_t table_bytes, Act act) {
  if (ready_) return {};
  device_ = device;
  if (Status made = tables_.allocate(device, table_bytes, act); !made.ok()) return made;
  addresses_.resize(recording.source_rules().size());
  if (const std::uint64_t bytes = recording.arena().size_bytes; bytes != 0) {
    const CuResult result = device_->driver().cuMemAlloc(&block_, bytes + kPartAlignment - 1);
    if (Status got = driver_status(act, "cuMemAlloc", result); !got.ok()) return got;
    addresses_[recording.slots().size()] =  // the one part
        (block_ + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  }
  ready_ = true;
  return {};
}

void InFlight::free() {
  if (last) (void)last->wait();
  if (block_) device_->driver().cuMemFree(block_);
  tables_.free();
}

Result<std::shared_ptr<LaunchMark>> InFlight::take_mark() {
  if (auto mark = marks_.find_unused()) return mark;
  auto made = LaunchMark::make(device_);
  if (made.ok()) marks_.add(*made);
  return made;
}

Result<std::shared_ptr<PlanRecording>> PlanRecording::make(
    const Plan& plan, const std::shared_ptr<CudaDevice>& device, const RegionTable& regions) {
  if (Status checked = check_regions(plan, regions); !checked.ok()) return checked;
  const ContextScope current(*device);
  if (!current.status().ok()) return current.status();
  std::shared_ptr<PlanRecording> made(new PlanRecording(plan, device));
  if (Status captured = made->capture(regions); !captured.ok()) return captured;
  // The first launch should not be the one to find that there is no memory.
  if (Status ready = made->in_flight_[0].prepare(device, *made->graph_, made->tables_.size_bytes,
                                                 Act::kRecord);
      !ready.ok()) {
    return ready;
  }
  return made;
}

// One of the captures of a plan, with memory of its own.
struct PlanCaptured {
  std::unique_ptr<PlanMemory> memory;
  std::unique_ptr<CapturedGraph> graph;
  GraphImage image;

  Capture capture() const { return {graph->get(), memory->allocations(), &image}; }
};

namespace {

Result<PlanCaptured> capture_once(const Driver& driver, const Plan& plan, const PlanUnits& units,
                                  std::span<const PlanNumber> numbers, std::size_t value,
                                  const RegionTable& regions) {
  std::vector<PlanValue> values = values_of(plan.program(), numbers, value);
  PlanCaptured made;
  auto allocated = PlanMemory::make(driver, units);
  if (!allocated.ok()) return allocated.error();
  made.memory = *std::move(allocated);
  auto captured = capture_plan(driver, plan, units, made.memory->allocations(), values, regions);
  if (!captured.ok()) return captured.error();
  made.graph = *std::move(captured);
  auto image = read_graph(driver, made.graph->get());  // before the next one uses pinned memory
  if (!image.ok()) return image.error();
  made.image = *std::move(image);
  return made;
}

}  // namespace

Status PlanRecording::capture(const RegionTable& regions) {
  const Driver& driver = device_->driver();
  const auto units = find_plan_units(plan_, device_->device_code() == nullptr);
  if (!units.ok()) return units.error();
  auto numbers = choose_numbers(plan_);
  if (!numbers.ok()) return numbers.error();
  numbers_ = *std::move(numbers);
  std::vector<PlanCaptured> captured;
  const std::size_t count = numbers_.empty() ? 2 : 1 + kNumberValues;
  for (std::size_t i = 0; i < count; ++i) {
    auto one = capture_once(driver, plan_, *units, numbers_, i == 0 ? 0 : i - 1, regions);
    if (!one.ok()) return one.error();
    captured.push_back(*std::move(one));
  }
  const auto discovery = discover_captures(captured, *units);
  if (!discovery.ok()) return discovery.error();
  CudaRecordOptions options;
  options.device_code = device_->device_code();
  options.least_part_bytes = ~std::uint64_t{0};  // a launch has one block
  auto recording = make_recording(driver, *discovery, options);
  if (!recording.ok()) return recording.error();
  graph_ = *std::move(recording);
  number_words_ = explain_numbers(numbers_, graph_->numbers());
  place_sources_of_tables();
  return {};
}

// What the first two have in common, with the words and grids that the others say to follow.
Result<Discovery> PlanRecording::discover_captures(std::vector<PlanCaptured>& captured,
                                                   const PlanUnits& units) {
  const auto discovered = [&](const PlanCaptured* with) {
    const auto others = with ? std::optional(with->capture()) : std::nullopt;
    return discover(device_->driver(), captured[0].capture(), captured[1].capture(), units.kinds,
                    {.device_code = device_->device_code()}, others ? &*others : nullptr);
  };
  if (numbers_.empty()) return discovered(nullptr);
  const auto grids =
      follow_grids(numbers_, captured[0].image, captured[2].image, captured[3].image);
  if (!grids.ok()) return grids.error();
  auto discovery = discovered(&captured[2]);
  if (!discovery.ok()) return discovery;
  const auto check = discovered(&captured[3]);
  if (!check.ok()) return check;
  if (Status explained = check_numbers(numbers_, discovery->step, check->step); !explained.ok()) {
    return explained;
  }
  add_grids(numbers_, *grids, discovery->step);
  return discovery;
}

void PlanRecording::place_sources_of_tables() {
  for (std::uint32_t source = 0; source < graph_->slots().size(); ++source) {
    const auto found =
        std::ranges::find(tables_.places, graph_->slots()[source].unit, &TablePlace::slot);
    if (found != tables_.places.end()) placed_tables_.push_back({source, found->offset});
  }
}

PlanRecording::~PlanRecording() {
  const ContextScope current(*device_);
  for (InFlight& entry : in_flight_) entry.free();
  graph_.reset();
}

std::string PlanRecording::dump() const { return describe_graph(*device_, *graph_); }

}  // namespace anabranch::cuda
