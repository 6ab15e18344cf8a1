// SPDX-License-Identifier: Apache-2.0
#include "anabranch/record.h"

#include <fmt/format.h>

#include "base/inside.h"
#include "record/cuda/plan/plan_recording.h"
#include "record/cuda/step_recording.h"
#include "record/host/host_recording.h"

namespace anabranch {

std::uint32_t Recording::lane_count() const { return host_ ? host_->lane_count() : 1; }

std::vector<RecordingSlot> Recording::slots() const {
  std::vector<RecordingSlot> slots;
  if (!has_plan()) {
    const cuda::CudaRecording& graph = step_->graph();
    const std::span<const cuda::CudaSlot> given = graph.slots();
    const std::span<const cuda::SourceRule> rules = graph.source_rules();
    const std::size_t memory = rules.size() - graph.numbers().size();
    for (std::size_t i = 0; i < memory; ++i) {
      slots.push_back({i < given.size() ? fmt::format("block {}", given[i].allocation)
                                        : fmt::format("arena part {}", i - given.size()),
                       rules[i].bytes(), rules[i].mask() + 1});
    }
    for (std::size_t i = 0; i < graph.numbers().size(); ++i) {
      slots.push_back({fmt::format("number {}", i), graph.numbers()[i].bytes, 1, NumberKind::kNone,
                       SlotKind::kNumber});
    }
    return slots;
  }
  for (const Slot& slot : plan().slots()) {
    const Buffer& buffer = plan().program().buffer(slot.buffer);
    slots.push_back({buffer.name, buffer.size_bytes, buffer.alignment, buffer.number,
                     slot_kind_of(buffer.role)});
  }
  return slots;
}

Result<Recording> record(const Plan& plan, const Device& device, const RegionTable& regions) {
  if (const auto& gpu = detail::Inside::cuda(device)) {
    auto recording = cuda::PlanRecording::make(plan, gpu, regions);
    if (!recording.ok()) return recording.error();
    return detail::Inside::make<Recording>(plan, *std::move(recording));
  }
  auto recording = host::make_host_recording(plan, detail::Inside::host(device), regions);
  if (!recording.ok()) return recording.error();
  return detail::Inside::make<Recording>(plan, *std::move(recording));
}

std::string dump_recording(const Recording& recording) {
  if (const auto& on_gpu = detail::Inside::cuda(recording)) return on_gpu->dump();
  if (const auto& step = detail::Inside::step(recording)) {
    return cuda::describe_graph(*step->device(), step->graph());
  }
  const std::uint32_t lanes = recording.lane_count();
  return fmt::format("host: {} steps on {} lane{}, an arena of {} bytes",
                     recording.plan().order().size(), lanes, lanes == 1 ? "" : "s",
                     recording.plan().arena().size_bytes);
}

}  // namespace anabranch
