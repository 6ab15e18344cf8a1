// SPDX-License-Identifier: Apache-2.0
#include "anabranch/record.h"

#include "record/host_recording.h"

namespace anabranch {

std::uint32_t Recording::lane_count() const { return host_->lane_count(); }

Result<Recording> record(const Plan& plan, const Device& device, const RegionTable& regions) {
  auto recording = host::make_host_recording(plan, device.host_device(), regions);
  if (!recording.ok()) return recording.error();
  return Recording(plan, *std::move(recording));
}

}  // namespace anabranch
