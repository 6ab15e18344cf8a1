// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/plan/plan_recording.h"

#include "device/cuda/context_scope.h"
#include "record/cuda/discover.h"
#include "record/cuda/plan/plan_capture.h"
#include "record/cuda/plan/plan_units.h"
#include "record/cuda/step_recording.h"
#include "record/region_table.h"

namespace anabranch::cuda {

Status InFlight::prepare(const std::shared_ptr<CudaDevice>& device, const CudaRecording& recording,
                         Act act) {
  if (ready_) return {};
  device_ = device;
  addresses_.resize(recording.source_rules().size());
  if (const std::uint64_t bytes = recording.arena().size_bytes; bytes != 0) {
    const CuResult result = device_->driver().cuMemAlloc(&block_, bytes + kPartAlignment - 1);
    if (Status got = driver_status(act, "cuMemAlloc", result); !got.ok()) return got;
    addresses_.back() = (block_ + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
  }
  ready_ = true;
  return {};
}

void InFlight::free() {
  if (last) (void)last->wait();
  if (block_) device_->driver().cuMemFree(block_);
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
  if (Status ready = made->in_flight_[0].prepare(device, *made->graph_, Act::kRecord);
      !ready.ok()) {
    return ready;
  }
  return made;
}

Status PlanRecording::capture(const RegionTable& regions) {
  const Driver& driver = device_->driver();
  const auto units = find_plan_units(plan_, device_->device_code() == nullptr);
  if (!units.ok()) return units.error();
  std::array<std::unique_ptr<PlanMemory>, 2> memory;
  std::array<std::unique_ptr<CapturedGraph>, 2> graph;
  std::array<GraphImage, 2> images;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    auto allocated = PlanMemory::make(driver, *units);
    if (!allocated.ok()) return allocated.error();
    memory[i] = *std::move(allocated);
    auto captured = capture_plan(driver, plan_, *units, memory[i]->allocations(), regions);
    if (!captured.ok()) return captured.error();
    graph[i] = *std::move(captured);
    auto image = read_graph(driver, graph[i]->get());  // before the next one uses pinned memory
    if (!image.ok()) return image.error();
    images[i] = *std::move(image);
  }
  CudaRecordOptions options;
  options.device_code = device_->device_code();
  options.least_part_bytes = ~std::uint64_t{0};  // a launch has one block
  auto recording = record_captures(driver, {graph[0]->get(), memory[0]->allocations(), &images[0]},
                                   {graph[1]->get(), memory[1]->allocations(), &images[1]},
                                   units->kinds, options);
  if (!recording.ok()) return recording.error();
  graph_ = *std::move(recording);
  return {};
}

PlanRecording::~PlanRecording() {
  const ContextScope current(*device_);
  for (InFlight& entry : in_flight_) entry.free();
  graph_.reset();
}

std::string PlanRecording::dump() const { return describe_graph(*device_, *graph_); }

}  // namespace anabranch::cuda
