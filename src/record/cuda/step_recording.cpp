// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/step_recording.h"

#include <fmt/format.h>

#include "device/cuda/context_scope.h"

namespace anabranch::cuda {

StepRecording::~StepRecording() {
  const ContextScope current(*device_);
  graph_.reset();
}

Result<std::shared_ptr<LaunchMark>> StepRecording::take_mark() {
  {
    const std::lock_guard lock(taking_);
    if (auto mark = marks_.find_unused()) return mark;
  }
  auto made = LaunchMark::make(device_);
  if (!made.ok()) return made;
  const std::lock_guard lock(taking_);
  marks_.add(*made);
  return made;
}

std::string describe_graph(const CudaDevice& device, CudaRecording& graph) {
  std::size_t nodes = 0;
  const PlacedSite* before = nullptr;
  for (const PlacedSite& site : graph.sites()) {
    nodes += !before || before->node != site.node;
    before = &site;
  }
  const CudaLaunchCounts& counts = graph.counts();
  return fmt::format(
      "cuda {}: {} addresses in {} nodes, an arena of {} bytes; launched {} times with nothing "
      "moved, {} times re-pointed by the host, {} times by the device",
      device.ordinal(), graph.sites().size(), nodes, graph.arena().size_bytes,
      counts.unchanged.load(), counts.from_host.load(), counts.from_device.load());
}

}  // namespace anabranch::cuda
