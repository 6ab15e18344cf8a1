// SPDX-License-Identifier: Apache-2.0
#include "anabranch/launch.h"

#include <cstddef>
#include <new>
#include <vector>

#include "handles.h"

namespace ab = anabranch;

namespace {

// More slots than this take memory from the heap for each launch.
constexpr uint32_t kSlotsOnStack = 256;

int32_t launch_with(const AnabranchRecording& recording, ab::Binding* bindings,
                    const uint64_t* addresses, const uint64_t* sizes_bytes, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    // std::construct_at would need an aggregate's parentheses, which clang 14 does not know.
    ::new (bindings + i) ab::Binding{reinterpret_cast<void*>(addresses[i]), sizes_bytes[i]};
  }
  const auto ticket = ab::launch(recording.recording, {bindings, count});
  return ticket.ok() ? 0 : ab::bridge::fail(ticket.error());
}

}  // namespace

int32_t anabranch_recording_launch(const AnabranchRecording* recording, const uint64_t* addresses,
                                   uint32_t count) {
  const auto& sizes = recording->sizes_bytes;
  if (count == sizes.size()) {
    return anabranch_recording_launch_sized(recording, addresses, sizes.data(), count);
  }
  return ab::bridge::guard([&] {  // launch() refuses the count in its own words
    std::vector<uint64_t> other(sizes);
    other.resize(count);
    return anabranch_recording_launch_sized(recording, addresses, other.data(), count);
  });
}

int32_t anabranch_recording_launch_sized(const AnabranchRecording* recording,
                                         const uint64_t* addresses, const uint64_t* sizes_bytes,
                                         uint32_t count) {
  if (count <= kSlotsOnStack) {
    alignas(ab::Binding) std::byte room[kSlotsOnStack * sizeof(ab::Binding)];
    auto* bindings = reinterpret_cast<ab::Binding*>(room);
    return launch_with(*recording, bindings, addresses, sizes_bytes, count);
  }
  return ab::bridge::guard([&] {
    std::vector<ab::Binding> bindings(count);
    return launch_with(*recording, bindings.data(), addresses, sizes_bytes, count);
  });
}
