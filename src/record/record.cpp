// SPDX-License-Identifier: Apache-2.0
#include "anabranch/record.h"

#include <fmt/format.h>

#include "record/cuda/plan/plan_recording.h"
#include "record/host/host_recording.h"

namespace anabranch {

std::uint32_t Recording::lane_count() const { return host_ ? host_->lane_count() : 1; }

Result<Recording> record(const Plan& plan, const Device& device, const RegionTable& regions) {
  if (device.cuda_device()) {
    auto recording = cuda::PlanRecording::make(plan, device.cuda_device(), regions);
    if (!recording.ok()) return recording.error();
    return Recording(plan, *std::move(recording));
  }
  auto recording = host::make_host_recording(plan, device.host_device(), regions);
  if (!recording.ok()) return recording.error();
  return Recording(plan, *std::move(recording));
}

std::string dump_recording(const Recording& recording) {
  if (recording.cuda_recording()) return recording.cuda_recording()->dump();
  const std::uint32_t lanes = recording.lane_count();
  return fmt::format("host: {} steps on {} lane{}, an arena of {} bytes",
                     recording.plan().order().size(), lanes, lanes == 1 ? "" : "s",
                     recording.plan().arena().size_bytes);
}

}  // namespace anabranch
