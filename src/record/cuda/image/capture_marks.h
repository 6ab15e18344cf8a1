// SPDX-License-Identifier: Apache-2.0
// Notes of a capture that were taken while it ran: which nodes came when, and what memory some of
// them use.
// Ownership: borrows the driver; marks are kept by the caller that records.
// Threads:   any, one at a time, with the context current.
// Failure:   a Status where the stream is not captured, or another graph than before is, or a
//            driver call fails.
// Edges:     nodes that no mark followed count as of after the last one.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "anabranch/capture.h"
#include "anabranch/status.h"
#include "device/cuda/driver.h"

namespace anabranch::cuda {

class CaptureMarks {
 public:
  explicit CaptureMarks(const Driver& driver) : driver_(driver) {}

  // Gives the nodes that came since the mark before the next number, and answers it.
  // `allocations` is how many there have been since the capture began.
  Result<std::uint32_t> mark(CuStream stream, std::uint64_t allocations);

  // Whether nodes have come since; false where the stream is not captured into their graph.
  Result<bool> has_new(CuStream stream) const;

  std::uint32_t count() const { return static_cast<std::uint32_t>(allocations_.size()); }
  // count() for a node that none followed.
  std::uint32_t mark_of(CuGraphNode node) const;
  // Allocations up to a mark, which every node of it came before.
  std::uint64_t allocations(std::uint32_t mark) const { return allocations_[mark]; }

 private:
  const Driver& driver_;
  CuGraph graph_ = nullptr;  // that all marks are of
  std::unordered_map<CuGraphNode, std::uint32_t> marks_;
  std::vector<std::uint64_t> allocations_;  // by mark
};

// What CaptureNotes is to the room.
struct Notes {
  const CaptureMarks* marks = nullptr;
  std::uint32_t before = 0;  // how many of the allocations were there before the capture
  std::span<const CaptureWork> works;
  std::span<const CaptureUse> uses;
};

}  // namespace anabranch::cuda
