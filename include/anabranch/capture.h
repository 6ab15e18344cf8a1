// SPDX-License-Identifier: Apache-2.0
// Recording CUDA graphs that the caller captured: a step captured twice, at different addresses,
// becomes a recording whose addresses are arguments.
// Ownership: all are shared handles. The graphs stay the caller's and may go once a recording has
//            been made; the modules of their kernels must stay loaded.
// Threads:   any; one capture memory is used by one thread at a time.
// Failure:   a Status with the reason: no driver, captures that differ, work that cannot be
//            re-pointed, streams of the step's own that race.
// Edges:     what both captures agree on is frozen: sizes, numbers, memory that is in no block
//            (CaptureSnapshot::mentions() tells which).
//            Arrays of addresses that a step brings to the device through pinned memory are part of
//            the recording; other pinned memory is read at each launch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "anabranch/export.h"
#include "anabranch/status.h"

namespace anabranch {

namespace cuda {
class CudaDevice;     // src/device/cuda/cuda_device.h
class CaptureMemory;  // src/record/cuda/image/capture_memory.h
class CaptureMarks;   // src/record/cuda/image/capture_marks.h
class CudaRecording;  // src/record/cuda/exec/cuda_recording.h
struct GraphImage;    // src/record/cuda/image/graph_image.h
}  // namespace cuda

// A range of memory: the caller asks whether a graph names it, or what its checksum is.
struct CaptureRange {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// Two sums of a range's words. Memory that differs in one word always has others; memory that
// differs in several has the same by chance alone, one in 2^128. src/device/cuda/checksums.h says
// how they are made.
struct CaptureChecksum {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

// A GPU on which captured graphs are recorded, by its primary context, which torch and the CUDA
// runtime use.
class CaptureDevice {
 public:
  ANABRANCH_API static Result<CaptureDevice> open(int ordinal);
  explicit CaptureDevice(std::shared_ptr<cuda::CudaDevice> device) : device_(std::move(device)) {}

  // Why addresses are only set from the host, and copies stay as they are; else empty.
  ANABRANCH_API const std::string& why_no_device_code() const;
  // Why a kernel that takes tensor maps (TMA descriptors) by value is not recorded; else empty.
  ANABRANCH_API const std::string& why_tensor_maps_are_opaque() const;
  // Takes all nodes out of a graph (a CUgraph).
  ANABRANCH_API Status clear(void* graph) const;
  // One a range of this GPU's memory, by one launch on `stream` (a CUstream), for which it waits.
  // Ranges begin at any byte, in any order, and may overlap. Neither the stream nor the calling
  // thread is in a capture; other threads may be in any that is not global. Without device code
  // that is refused.
  ANABRANCH_API Result<std::vector<CaptureChecksum>> checksums(std::span<const CaptureRange> ranges,
                                                               void* stream) const;
  const std::shared_ptr<cuda::CudaDevice>& cuda_device() const { return device_; }

 private:
  std::shared_ptr<cuda::CudaDevice> device_;
};

// Addresses for captures: fresh ones for every allocation, all of them over one page of 2 MiB,
// since nothing runs while a graph is captured. Work that runs on them reads and writes that one
// page.
class CaptureMemory {
 public:
  ANABRANCH_API static Result<CaptureMemory> make(const CaptureDevice& device);
  // To be called before each capture: the addresses of two captures that allocate alike then differ
  // in both halves, so that half an old address beside a number is taken for none.
  ANABRANCH_API void begin_capture();
  // Aligned to the page. Also while a stream is captured.
  ANABRANCH_API Result<std::uint64_t> allocate(std::uint64_t bytes);

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
  // Of a CUgraph that has not been instantiated.
  ANABRANCH_API static Result<CaptureSnapshot> make(const CaptureDevice& device, void* graph);
  void* graph() const { return graph_; }
  // Which of some ranges its nodes name, by addresses in whole words. Both captures freeze what
  // they agree on, so living memory that is in none of their blocks stays named where it was.
  // Ranges are sorted and do not overlap.
  ANABRANCH_API std::vector<CaptureMention> mentions(std::span<const CaptureRange> ranges) const;
  const cuda::GraphImage& image() const { return *image_; }

 private:
  CaptureSnapshot(void* graph, std::shared_ptr<const cuda::GraphImage> image)
      : graph_(graph), image_(std::move(image)) {}
  void* graph_;
  std::shared_ptr<const cuda::GraphImage> image_;
};

// Memory that both captures named, at the address that each of them had, in the order in which it
// was allocated. An address may come again, once what had it has been freed; no two blocks of a
// capture may touch otherwise: an address behind the end of one would be the begin of the other.
struct CaptureBlock {
  std::uint64_t first_address = 0;
  std::uint64_t second_address = 0;
  std::uint64_t bytes = 0;
  bool given = false;  // an argument of each launch; else it lies in the arena
  // Given memory in which nothing stands when a launch begins, such as what a launch allocates for
  // a result: until the first node that names it, blocks that are not given may lie in it. All that
  // its slot says, bytes and alignment, must then be free for the launch. Nothing lies in it where
  // its slot asks for less alignment than 512, or where its address is that of other given memory,
  // too. Of no account where it is not given.
  bool fresh = false;
};

// A given block that the graph names.
struct CaptureSlot {
  std::uint32_t block = 0;  // where an address stands in several, the last of those it means
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 0;  // that a launch's address must have
};

struct CaptureCounts {
  std::uint32_t nodes = 0;
  std::uint32_t sites = 0;  // places that hold an address
  // Words that differ between the captures and are no address: what compilers leave between the
  // members of a struct, or numbers that are others in every run.
  std::uint32_t unsure = 0;
  std::uint32_t known = 0;        // nodes whose use of memory the notes or they themselves tell
  std::uint32_t host_copies = 0;  // nodes that copy between a block and the host's memory
  // That nodes are on, one for copies either way between device and host among them; 1: in captured
  // order.
  std::uint32_t lanes = 0;
  std::uint64_t arena_bytes = 0;  // all parts together
  // What lies in the arena takes this at least; it says nothing of what lies in fresh blocks.
  std::uint64_t arena_lower_bound_bytes = 0;
  // Held between launches: tables on the device and in pinned memory, and what the device's free
  // memory fell by beside them while the driver made its executables.
  std::uint64_t held_device_bytes = 0;
  std::uint64_t held_host_bytes = 0;
  std::uint64_t held_driver_bytes = 0;
  // Launches, by how the nodes were given their addresses.
  std::uint64_t launched_unchanged = 0;
  std::uint64_t launched_from_host = 0;
  std::uint64_t launched_from_device = 0;
};

// Says while a step is captured which nodes came when.
class CaptureMarks {
 public:
  ANABRANCH_API static CaptureMarks make(const CaptureDevice& device);
  // Gives the nodes that came since the mark before the next number, from 0 on, and answers it.
  // `allocations` is how many blocks have been allocated since the capture began, on whatever
  // stream.
  ANABRANCH_API Result<std::uint32_t> mark(void* stream, std::uint64_t allocations);
  const cuda::CaptureMarks& marks() const { return *marks_; }

 private:
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

// Enough for two layers of most models, and little beside what these take on a device.
inline constexpr std::uint64_t kAheadBytes = std::uint64_t{256} << 20;

struct CaptureOptions {
  // Where there are unsure words a recording is refused, unless they are accepted: launches then
  // have the first capture's. A caller that makes a second recording with the captures exchanged,
  // and gets the same results from both as from the step itself, knows that nothing reads them.
  bool accept_unsure = false;
  const CaptureNotes* notes = nullptr;
  // With notes: nodes that need not wait for one another run side by side, scheduled for so many
  // lanes. Now and then more of them can run than there are lanes, where one that was captured late
  // is worth beginning early. With one lane the order stays as it was captured.
  std::uint32_t lanes = 1;
  // On more than one lane copies from the host's memory need not wait for the kernels before them.
  // What they have brought, and kernels that were captured before the next of them may still read,
  // takes so many bytes at most, or three times as many as the largest of them.
  std::uint64_t ahead_bytes = kAheadBytes;
  // Which kind of memory launches will give: memory that is mapped (cuMemMap), as torch's allocator
  // has it with expandable_segments, or else memory of cuMemAlloc. Copies between a block and the
  // host's memory take only the kind that they were made for: a launch that gives them the other
  // one is refused. At mapped memory each of them costs a launch about a microsecond more.
  bool mapped_memory = false;
};

class CapturedRecording {
 public:
  // Of two captures of one step.
  ANABRANCH_API static Result<CapturedRecording> make(const CaptureDevice& device,
                                                      const CaptureSnapshot& first,
                                                      const CaptureSnapshot& second,
                                                      std::span<const CaptureBlock> blocks,
                                                      const CaptureOptions& options = {});

  ANABRANCH_API std::vector<CaptureSlot> slots() const;
  // The bytes of each part of the arena, where blocks lie that are not given and that found no room
  // in fresh ones: 32 MiB or more each, and 64 at most, so that an allocator has room for them in
  // the holes that it has.
  ANABRANCH_API std::vector<std::uint64_t> parts() const;
  ANABRANCH_API CaptureCounts counts() const;
  const std::shared_ptr<cuda::CudaDevice>& cuda_device() const { return device_; }
  const std::shared_ptr<cuda::CudaRecording>& cuda_recording() const { return recording_; }

 private:
  CapturedRecording(std::shared_ptr<cuda::CudaDevice> device,
                    std::shared_ptr<cuda::CudaRecording> recording)
      : device_(std::move(device)), recording_(std::move(recording)) {}
  std::shared_ptr<cuda::CudaDevice> device_;
  std::shared_ptr<cuda::CudaRecording> recording_;
};

}  // namespace anabranch
