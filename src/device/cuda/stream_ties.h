// SPDX-License-Identifier: Apache-2.0
// Ties between streams of one device: what StreamTies in device.h does.
// Ownership: keeps the device, and events of it: as many as threads ever made a tie at a time.
// Threads:   any; an event is one call's alone, and no lock is held over a call of the driver.
// Failure:   a Status with the driver's call; ties that were made before it stay.
// Edges:     see device.h. Streams are of the device, in its primary context.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "device/cuda/cuda_device.h"

namespace anabranch::cuda {

class StreamTies {
 public:
  explicit StreamTies(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}
  ~StreamTies();
  StreamTies(const StreamTies&) = delete;
  StreamTies& operator=(const StreamTies&) = delete;

  Status join(CuStream stream, std::span<const CuStream> others);
  Status fork(CuStream stream, std::span<const CuStream> others);

 private:
  class Mark;
  template <typename Tie>
  Status with_mark(CuStream stream, Tie tie);

  std::shared_ptr<CudaDevice> device_;
  std::mutex mutex_;
  std::vector<CuEvent> unused_;
};

}  // namespace anabranch::cuda
