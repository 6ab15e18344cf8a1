// SPDX-License-Identifier: Apache-2.0
// Memory for captures: addresses that cost nothing. Nothing runs while a graph is captured, so
// every allocation gets fresh virtual addresses, all of them backed by one physical page. The
// driver's copies of a recording for mapped memory are instantiated at such addresses too. Memory
// of a capture that is launched as it is, a kept one, has pages of its own behind each allocation.
// Ownership: owns the page and all addresses; they are gone with it, so the graphs of a capture are
//            re-pointed or destroyed first.
// Threads:   one at a time.
// Failure:   a Status, for a driver without virtual memory or one that is out of addresses.
// Edges:     an address is never given out twice, freed or not, and never touches another one's
//            bytes, so two captures share none and an end pointer belongs to one allocation alone.
//            Addresses rise, as far as one range of them goes: an allocator above that prefers low
//            ones then decides alike in both captures. Captures that begin with begin_capture()
//            and allocate alike have addresses of which neither the upper nor the lower 32 bits
//            are the same, nor the second byte, nor the third: what compilers leave between
//            members often is part of an old address, which makes a whole one with a number or
//            flags beside it, and these are the same in both. Two captures of kept memory have
//            the second and the third byte in common.
//            Work that runs on memory that is not kept reads and writes the one page.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "device/cuda/driver.h"

namespace anabranch::cuda {

// One allocation made while a capture ran, or memory that was given to it, in order of time.
struct CaptureAllocation {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

class CaptureMemory {
 public:
  // On the device of the current context.
  static Result<std::unique_ptr<CaptureMemory>> make(const Driver& driver, bool is_kept = false);
  ~CaptureMemory();
  CaptureMemory(const CaptureMemory&) = delete;
  CaptureMemory& operator=(const CaptureMemory&) = delete;

  // What is allocated from now on is of another capture.
  void begin_capture() { is_new_ = true; }
  // May be called while a stream is captured.
  Result<std::uint64_t> allocate(std::uint64_t bytes);

  // Of a kept one. Takes the memory away from allocations at these addresses, behind all that has
  // been queued: nothing may use them until they are given some. Anything else is left as it is,
  // and so is all while that cannot be waited for.
  void take_own(std::span<const std::uint64_t> addresses);
  // Gives memory to all from which it was taken. No stream may use it meanwhile.
  Status give_own();
  // Takes an allocation's memory away for good.
  void release(std::uint64_t address);
  std::uint64_t own_bytes() const { return own_bytes_; }

  // Everything that was allocated, in order of time.
  std::span<const CaptureAllocation> allocations() const { return allocations_; }
  std::uint64_t granule_bytes() const { return granule_bytes_; }

 private:
  struct Range {
    CuDevicePtr address = 0;
    std::size_t bytes = 0;
    std::size_t shift = 0;   // of each address beyond a multiple of granule_bytes_
    std::size_t begin = 0;   // so much is left out
    std::size_t used = 0;    // from there up to here it is given out
    std::size_t mapped = 0;  // and up to here backed by the page
  };
  explicit CaptureMemory(const Driver& driver) : driver_(driver) {}
  std::size_t needed_in(const Range& range, std::uint64_t bytes) const;
  Status reserve(std::uint64_t bytes);
  Status map_page(Range& range, std::size_t needed);
  Status map_own(CuDevicePtr address, std::size_t bytes);
  // `page` as often as it takes.
  Status map(CuDevicePtr address, std::size_t bytes, CuMemoryHandle page, std::size_t page_bytes);

  const Driver& driver_;
  CuMemAllocationProp prop_{};
  CuMemoryHandle page_ = 0;
  std::size_t granule_bytes_ = 0;
  std::size_t page_bytes_ = 0;
  bool is_kept_ = false;
  std::vector<Range> ranges_;
  bool is_new_ = true;
  std::vector<CaptureAllocation> allocations_;
  std::map<CuDevicePtr, std::size_t> own_;    // memory of their own, by where it is mapped
  std::map<CuDevicePtr, std::size_t> taken_;  // where it was
  std::uint64_t own_bytes_ = 0;
};

}  // namespace anabranch::cuda
