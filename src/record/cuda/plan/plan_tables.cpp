// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/plan/plan_tables.h"

#include <utility>

#include "anabranch/program.h"

namespace anabranch::cuda {

Status StagedTables::allocate(const std::shared_ptr<CudaDevice>& device, std::uint64_t bytes,
                              Act act) {
  device_ = device;
  bytes_ = bytes;
  if (bytes == 0) return {};
  if (allocated_ == 0) {
    const CuResult got = driver().cuMemAlloc(&allocated_, bytes + kMaxTableAlignment - 1);
    if (Status made = driver_status(act, "cuMemAlloc", got); !made.ok()) return made;
    address_ = (allocated_ + kMaxTableAlignment - 1) / kMaxTableAlignment * kMaxTableAlignment;
  }
  if (pinned_) return {};
  void* pinned = nullptr;
  const CuResult got = driver().cuMemHostAlloc(&pinned, kBlocks * bytes, 0);
  if (Status made = driver_status(act, "cuMemHostAlloc", got); !made.ok()) return made;
  pinned_ = static_cast<std::byte*>(pinned);
  return {};
}

void StagedTables::free() {
  if (allocated_) driver().cuMemFree(allocated_);
  if (pinned_) driver().cuMemFreeHost(pinned_);
}

Result<std::span<std::byte>> StagedTables::begin() {
  if (const auto mark = std::exchange(read_[next_], nullptr)) {
    if (Status ended = mark->wait(); !ended.ok()) return ended;
  }
  return std::span(block(), bytes_);
}

Status StagedTables::copy(CuStream stream) {
  return launched("cuMemcpyHtoDAsync",
                  driver().cuMemcpyHtoDAsync(address_, block(), bytes_, stream));
}

void StagedTables::end(std::shared_ptr<LaunchMark> mark) {
  if (bytes_ == 0) return;
  read_[next_] = std::move(mark);
  next_ = (next_ + 1) % kBlocks;
}

}  // namespace anabranch::cuda
