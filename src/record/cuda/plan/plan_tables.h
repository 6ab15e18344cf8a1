// SPDX-License-Identifier: Apache-2.0
// The tables of launches that run one after another: one block on the device, which a copy before
// each launch fills, and a ring of pinned blocks, out of which these copies read.
// Ownership: owns the blocks; keeps the device, and marks of launches as long as their blocks.
// Threads:   belongs to the launch that leases it; with the device's context current.
// Failure:   a Status that names the call.
// Edges:     without bytes there are no blocks, and no calls.
//
//   begin():  waits for the launch that read the block last; the caller fills it
//   copy():   queues the copy to the device, behind all that is queued on the stream
//   end():    the launch whose copy that was is queued; or, without a mark, has ended
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "anabranch/status.h"
#include "device/cuda/cuda_device.h"
#include "record/cuda/exec/launch_mark.h"

namespace anabranch::cuda {

class StagedTables {
 public:
  static constexpr std::size_t kBlocks = 8;

  Status allocate(const std::shared_ptr<CudaDevice>& device, std::uint64_t bytes, Act act);
  // Once no launch reads any.
  void free();

  // Of the block on the device, which stays.
  CuDevicePtr address() const { return address_; }
  Result<std::span<std::byte>> begin();
  Status copy(CuStream stream);
  void end(std::shared_ptr<LaunchMark> mark);

 private:
  const Driver& driver() const { return device_->driver(); }
  std::byte* block() const { return pinned_ + next_ * bytes_; }

  std::shared_ptr<CudaDevice> device_;
  std::uint64_t bytes_ = 0;
  CuDevicePtr allocated_ = 0, address_ = 0;
  std::byte* pinned_ = nullptr;
  std::size_t next_ = 0;                                   // block
  std::array<std::shared_ptr<LaunchMark>, kBlocks> read_;  // by block; null: it is free
};

}  // namespace anabranch::cuda
