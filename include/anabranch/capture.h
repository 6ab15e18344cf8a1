// SPDX-License-Identifier: Apache-2.0
// Capturing a step, twice, for a recording whose addresses are arguments (captured_recording.h):
// the memory that captures are given, the graphs as they were, and notes of what came when.
// Ownership: all are shared handles. The graphs stay the caller's.
// Threads:   any; one capture memory is used by one thread at a time.
// Failure:   a Status with the reason, such as that there is no driver.
// Edges:     what two captures agree on is frozen when they are recorded, memory that is in no
//            block too; CaptureSnapshot::mentions() tells which.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "anabranch/cuda_handles.h"
#include "anabranch/device.h"
#include "anabranch/export.h"
#include "anabranch/status.h"

namespace anabranch {

namespace cuda {
class CaptureMemory;  // src/record/cuda/image/capture_memory.h
class CaptureMarks;   // src/record/cuda/image/capture_marks.h
struct GraphImage;    // src/record/cuda/image/graph_image.h
}  // namespace cuda

// A range of memory: the caller asks whether a graph names it, or what its checksum is.
struct CaptureRange {
  std::uint64_t begin = 0;
  std::uint64_t size_bytes = 0;
};

// Two sums of a range's words. Memory that differs in one word always has others; memory that
// differs in several has the same by chance alone, one in 2^128. src/device/cuda/checksums.h says
// how they are made.
struct CaptureChecksum {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

// What a GPU cannot do with captured graphs; empty where it can.
struct CaptureSupport {
  // Then addresses are only set from the host, and copies stay as they are.
  std::string why_no_device_code;
  // Then a kernel that takes tensor maps (TMA descriptors) by value is not recorded.
  std::string why_tensor_maps_are_opaque;
};

// Captures are made on GPUs: all of this header refuses the host device (kRecordFailed).
ANABRANCH_API Result<CaptureSupport> describe_capture(const Device& device);

// Takes all nodes out of a graph.
ANABRANCH_API Status clear_graph(const Device& device, CudaGraph graph);

// One a range of this GPU's memory, by one launch on `stream`, for which it waits. Ranges begin at
// any byte, in any order, and may overlap. Neither the stream nor the calling thread is in a
// capture; other threads may be in any that is not global. Without device code that is refused.
ANABRANCH_API Result<std::vector<CaptureChecksum>> make_checksums(
    const Device& device, std::span<const CaptureRange> ranges, CudaStream stream);

// Addresses for captures: fresh ones for every allocation. All of them are mapped to one page of
// memory (16 MiB, 128 while most of the GPU is free), since nothing runs while a graph is captured.
// Work that runs on them reads and writes that one page.
class CaptureMemory {
 public:
  // `is_kept`: allocations get memory of their own, so that the graph may be launched as it is.
  ANABRANCH_API static Result<CaptureMemory> make(const Device& device, bool is_kept = false);
  // To be called before each capture: the addresses of two captures that allocate alike then differ
  // in both halves, so that half an old address beside a number is taken for none.
  ANABRANCH_API void begin_capture();
  // Aligned to a granule of the driver (2 MiB). Also while a stream is captured.
  ANABRANCH_API Result<std::uint64_t> allocate(std::uint64_t size_bytes);
  // Of a kept one. Takes the memory away from allocations at these addresses, behind all that has
  // been queued. Nothing may use them until they are given some; what has none is left.
  ANABRANCH_API void take_own(std::span<const std::uint64_t> addresses);
  // Gives memory to all from which it was taken. kOutOfMemory as the driver has it; the graph may
  // not be launched then.
  ANABRANCH_API Status give_own();
  // Takes an allocation's memory away for good.
  ANABRANCH_API void release(std::uint64_t address);

 private:
  explicit CaptureMemory(std::shared_ptr<cuda::CaptureMemory> memory)
      : memory_(std::move(memory)) {}
  std::shared_ptr<cuda::CaptureMemory> memory_;
};

struct CaptureMention {
  std::uint32_t range = 0;
  std::string node;  // the first that names it: "kernel 37 'triton_poi_fused_add_2'"
};

// A captured graph as it was when its capture had ended, with what it copies from pinned memory. To
// be made at once: the host's allocator may give that memory out again, to the next capture first.
class CaptureSnapshot {
 public:
  // Of a graph that has not been instantiated. `staying` is pinned memory that no allocator gives
  // out again, as that of a step's state: what is there is not noted, since each launch reads what
  // it finds. Sorted, without overlaps.
  ANABRANCH_API static Result<CaptureSnapshot> make(const Device& device, CudaGraph graph,
                                                    std::span<const CaptureRange> staying = {});
  CudaGraph graph() const { return graph_; }
  // Which of some ranges its nodes name, by addresses in whole words. Both captures freeze what
  // they agree on, so living memory that is in none of their blocks stays named where it was.
  // Ranges are sorted and do not overlap. With `other`, a capture of the same, only what that names
  // at the same places counts.
  ANABRANCH_API std::vector<CaptureMention> mentions(std::span<const CaptureRange> ranges,
                                                     const CaptureSnapshot* other = nullptr) const;

 private:
  friend struct detail::Inside;
  CaptureSnapshot(CudaGraph graph, std::shared_ptr<const cuda::GraphImage> image)
      : graph_(graph), image_(std::move(image)) {}
  CudaGraph graph_;
  std::shared_ptr<const cuda::GraphImage> image_;
};

// Says while a step is captured which nodes came when.
class CaptureMarks {
 public:
  ANABRANCH_API static Result<CaptureMarks> make(const Device& device);
  // Gives the nodes that came since the mark before the next number, from 0 on, and answers it.
  // `allocations` is how many blocks have been allocated since the capture began, on whatever
  // stream.
  ANABRANCH_API Result<std::uint32_t> mark(CudaStream stream, std::uint64_t allocations);
  // Whether nodes have come since the last mark; of a stream that is not captured, false.
  ANABRANCH_API Result<bool> has_new(CudaStream stream) const;

 private:
  friend struct detail::Inside;
  CaptureMarks(std::shared_ptr<cuda::CudaDevice> device, std::shared_ptr<cuda::CaptureMarks> marks)
      : device_(std::move(device)), marks_(std::move(marks)) {}
  std::shared_ptr<cuda::CudaDevice> device_;
  std::shared_ptr<cuda::CaptureMarks> marks_;
};

// A piece of work whose use of memory is known: the nodes of one mark. Whatever else in blocks
// these name is scratch where it says so: dead before and after; and is written where not, but by
// independent nodes.
struct CaptureWork {
  std::uint32_t mark = 0;
  std::uint32_t uses = 0;  // so many of the notes' uses, behind those of the works before
  bool has_scratch = false;
  // Its nodes touch nothing but its uses and what is allocated while it runs, each as far as it
  // names them, so that they need no order among themselves beyond what that asks for: such as
  // launches of one kernel, each over some tensors of a long list. An address of any other block in
  // their parameters is left over from a launch before, behind the used part of an array, and stays
  // what it was. The nodes of other work stay in the order in which they were captured.
  bool independent = false;
  // A collective, whose kernels wait for those of other processes: its nodes stay in the order in
  // which they were captured with those of all other works in turn, too. It is known only if its
  // nodes name each block that it uses.
  bool in_turn = false;
};

// Memory that a piece of work reads, or may write, by any address in it. Work that may write in one
// block only is taken to write there.
struct CaptureUse {
  std::uint64_t address = 0;
  bool writes = false;
};

// Notes that were taken during one of two captures. What they do not tell is taken for the worst.
struct CaptureNotes {
  const CaptureMarks* marks = nullptr;
  bool of_second = false;
  std::uint32_t blocks_before = 0;  // how many of the blocks were there before the capture
  std::span<const CaptureWork> works;
  std::span<const CaptureUse> uses;
};

}  // namespace anabranch
