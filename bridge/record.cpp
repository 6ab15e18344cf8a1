// SPDX-License-Identifier: Apache-2.0
#include "anabranch/record.h"

#include "handles.h"

namespace ab = anabranch;

AnabranchRecording* anabranch_recording_make(const AnabranchPlan* plan,
                                             const AnabranchDevice* device, size_t regions,
                                             const char* const* names, void* const* functions,
                                             void* const* contexts) {
  return ab::bridge::guard([&] {
    ab::RegionTable table;
    for (size_t i = 0; i < regions; ++i) {
      table[names[i]] = {reinterpret_cast<ab::RegionFunction>(functions[i]), contexts[i]};
    }
    auto recording = ab::record(plan->plan, device->device, table);
    if (!recording.ok()) return ab::bridge::refuse<AnabranchRecording>(recording.error());
    std::vector<uint64_t> sizes;
    for (const ab::RecordingSlot& slot : recording->slots()) sizes.push_back(slot.size_bytes);
    return new AnabranchRecording{std::move(*recording), std::move(sizes)};
  });
}

void anabranch_recording_free(AnabranchRecording* recording) { delete recording; }

uint32_t anabranch_recording_lane_count(const AnabranchRecording* recording) {
  return recording->recording.lane_count();
}
