// SPDX-License-Identifier: Apache-2.0
// Tables: bytes that a step wrote into pinned memory while it was captured and had copied to the
// device, mostly arrays of addresses that a kernel reads (foreach operations, FSDP, grouped
// products). They belong to the step. A kernel of our own writes them in place of the copy: what
// both captures agree on comes from memory of the recording, and the words that hold addresses are
// parameters of the kernel, so that host and updater set them like any others.
// Ownership: the recording keeps a DeviceBytes as long as its executables.
// Threads:   calls the driver for the current context.
// Failure:   kNotRecordable names the copy that cannot be replaced; a Status of a driver call.
// Edges:     a table without addresses is written all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "device/cuda/device_code.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/sites/step_graph.h"

namespace anabranch::cuda {

class DeviceBytes {
 public:
  static Result<std::unique_ptr<DeviceBytes>> make(const Driver& driver,
                                                   std::span<const std::byte> bytes);
  // Whatever is in them.
  static Result<std::unique_ptr<DeviceBytes>> allocate(const Driver& driver, std::uint64_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  CuDevicePtr address() const { return address_; }
  std::uint64_t size() const { return size_; }

 private:
  DeviceBytes(const Driver& driver, std::uint64_t size) : driver_(driver), size_(size) {}
  const Driver& driver_;
  const std::uint64_t size_;
  CuDevicePtr address_ = 0;
};

// A node that writes a table, or part of one, for other nodes to read.
struct TableWrite {
  static constexpr std::uint32_t kNowhere = ~0u;  // memory that never moves
  std::uint32_t node = 0;
  std::uint32_t unit = kNowhere;       // that it writes to
  std::uint64_t begin = 0, end = 0;    // bytes of it that are written
  std::uint64_t first = 0, last = 0;   // between which all its addresses lie
  std::vector<std::uint32_t> names{};  // units that these are of, sorted
};

struct Tables {
  std::vector<TableWrite> writes;  // sorted by node
  std::unique_ptr<DeviceBytes> bytes;
};

// Whether each of these copies reads bytes that no other copy of the capture reads: pinned memory
// that was used twice may have held something else when the first was queued.
Status check_tables(const GraphImage& image, std::span<const std::uint32_t> copies);

// Puts kernels in place of these copies. Where one takes more than a kernel's parameters hold,
// there are several: nodes, facts, edges and sites are numbered anew.
Result<Tables> replace_tables(const Driver& driver, const DeviceCode* code,
                              std::span<const std::uint32_t> copies, StepGraph& step);

}  // namespace anabranch::cuda
