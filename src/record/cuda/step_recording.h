// SPDX-License-Identifier: Apache-2.0
// A captured step as launches take it: its graph, and the marks of their ends.
// Ownership: keeps the device; owns the executables.
// Threads:   immutable but for the marks, which are handed out one at a time.
// Failure:   take_mark() is a Status that names the call.
// Edges:     the memory of launches is the caller's, the arena's parts too.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "anabranch/status.h"
#include "device/cuda/cuda_device.h"
#include "record/cuda/exec/cuda_recording.h"
#include "record/cuda/exec/launch_mark.h"

namespace anabranch::cuda {

class StepRecording {
 public:
  StepRecording(std::shared_ptr<CudaDevice> device, std::shared_ptr<CudaRecording> graph)
      : device_(std::move(device)), graph_(std::move(graph)) {}
  ~StepRecording();
  StepRecording(const StepRecording&) = delete;
  StepRecording& operator=(const StepRecording&) = delete;

  const std::shared_ptr<CudaDevice>& device() const { return device_; }
  CudaRecording& graph() const { return *graph_; }
  // One that no ticket has, with the device's context current.
  Result<std::shared_ptr<LaunchMark>> take_mark();

 private:
  const std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<CudaRecording> graph_;
  std::mutex taking_;  // never held over a call of the driver
  LaunchMarks marks_;
};

// Text for people: what was recorded, and how launches so far gave it their addresses.
std::string describe_graph(const CudaDevice& device, CudaRecording& graph);

}  // namespace anabranch::cuda
