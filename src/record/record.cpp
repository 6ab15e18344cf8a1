// SPDX-License-Identifier: Apache-2.0
#include "anabranch/record.h"

#include <fmt/format.h>

#include "base/inside.h"
#include "record/cuda/plan/plan_recording.h"
#include "record/host/host_recording.h"

namespace anabranch {

std::uint32_t Recording::lane_count() const { return host_ ? host_->lane_count() : 1; }

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
  const std::uint32_t lanes = recording.lane_count();
  return fmt::format("host: {} steps on {} lane{}, an arena of {} bytes",
                     recording.plan().order().size(), lanes, lanes == 1 ? "" : "s",
                     recording.plan().arena().size_bytes);
}

}  // namespace anabranch
