// SPDX-License-Identifier: Apache-2.0
// Recording CUDA graphs that the caller captured: a step captured twice, at different addresses,
// becomes a recording whose addresses are arguments. What the two captures have in common is
// discovered once; a step may be recorded several times from that, say in captured order and on
// lanes, to keep what is faster.
// Ownership: shared handles. The graphs stay the caller's: that of the first capture may go once
//            the last recording has been made, the other one once the step has been discovered. The
//            modules of their kernels must stay loaded.
// Threads:   any; several may record one step at once.
// Failure:   a Status with the reason: captures that differ, work that cannot be re-pointed,
//            streams of the step's own that race.
// Edges:     what the captures agree on is frozen: sizes, numbers, memory that is in no block.
//            Numbers that a third capture was made with other ones of are arguments too.
//            Arrays of addresses that a step brings to the device through pinned memory are part of
//            the recording; other pinned memory is read at each launch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "anabranch/capture.h"
#include "anabranch/export.h"
#include "anabranch/record.h"
#include "anabranch/status.h"

namespace anabranch {

namespace cuda {
class StepRecording;  // src/record/cuda/step_recording.h
struct Discovery;     // src/record/cuda/discover.h
class KernelLayouts;  // src/record/cuda/sites/kernel_layouts.h
}  // namespace cuda

// Memory that both captures named, at the address that each of them had, in the order in which it
// was allocated. An address may come again, once what had it has been freed; no two blocks of a
// capture may touch otherwise: an address behind the end of one would be the begin of the other.
struct CaptureBlock {
  std::uint64_t first_address = 0;
  std::uint64_t second_address = 0;
  std::uint64_t size_bytes = 0;
  bool given = false;  // an argument of each launch; else it lies in the arena
  // Given memory in which nothing stands when a launch begins, such as what a launch allocates for
  // a result: until the first node that names it, blocks that are not given may lie in it. All that
  // its slot says, size and alignment, must then be free for the launch; the size of one of a MiB
  // or more may be up to a 64th larger than the block's, for them. Nothing lies in it where
  // its slot asks for less alignment than 512, or where its address is that of other given memory,
  // too. Of no account where it is not given.
  bool fresh = false;
};

// A given block that the graph names.
struct CaptureSlot {
  std::uint32_t block = 0;  // where an address stands in several, the last of those it means
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment = 0;  // that a launch's address must have
};

// A third capture of the step, made with other numbers than the first two: what in the parameters
// of its kernels differs from theirs follows these numbers. It must be the same work otherwise,
// with as many blocks, at addresses that the first capture has not had.
struct CaptureNumbers {
  const CaptureSnapshot* capture = nullptr;
  std::span<const std::uint64_t> addresses;  // of the blocks there, in their order
};

// Bytes of a kernel's parameters that follow numbers; one for all places where they were the same
// in both captures. Which numbers, and how, is for the caller to know: a float in four bytes, a
// double in eight, two floats beside one another. A launch gives its lowest `size_bytes`.
struct CaptureNumber {
  std::uint32_t size_bytes = 0;  // 1 to 8
  std::uint64_t first = 0;       // in the first capture
  std::uint64_t other = 0;       // in that with other numbers
};

struct CaptureCounts {
  std::uint32_t nodes = 0;
  std::uint32_t sites = 0;  // places that hold an address, or a number that is followed
  // Words that differ between the captures and are no address: what compilers leave between the
  // members of a struct, or numbers that are others in every run.
  std::uint32_t unsure = 0;
  std::uint32_t known = 0;        // nodes whose use of memory the notes or they themselves tell
  std::uint32_t host_copies = 0;  // nodes that copy between a block and the host's memory
  // That nodes are on, one for copies either way between device and host among them; 1: in captured
  // order.
  std::uint32_t lanes = 0;
  std::uint32_t captured_lanes = 0;  // that this has then, by streams of the step's own
  std::uint64_t arena_bytes = 0;     // all parts together
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

// Enough for two layers of most models, and little beside what these take on a device.
inline constexpr std::uint64_t kAheadBytes = std::uint64_t{256} << 20;

inline constexpr std::uint64_t kAnyBytes = ~std::uint64_t{0};  // no bound

struct CaptureOptions {
  // Where there are unsure words a recording is refused, unless they are accepted: launches then
  // have the first capture's. A caller that makes a second recording with the captures exchanged,
  // and gets the same results from both as from the step itself, knows that nothing reads them.
  bool accept_unsure = false;
  // Of a step with notes: nodes that need not wait for one another run side by side, scheduled for
  // so many lanes. Now and then more of them can run than there are lanes, where one that was
  // captured late is worth beginning early. With one lane the order stays as it was captured.
  std::uint32_t lanes = 1;
  // On more than one lane copies from the host's memory need not wait for the kernels before them.
  // What they have brought, and kernels that were captured before the next of them may still read,
  // takes so many bytes at most, or three times as many as the largest of them.
  std::uint64_t ahead_bytes = kAheadBytes;
  // On more than one lane: what blocks that are not given may take beside those that the captured
  // order has at once, before they are placed. The less it is, the closer nodes stay to that order.
  std::uint64_t parallel_bytes = kAnyBytes;
  // Which kind of memory launches will give: memory that is mapped (cuMemMap), as torch's allocator
  // has it with expandable_segments, or else memory of cuMemAlloc. Copies between a block and the
  // host's memory take only the kind that they were made for: a launch that gives them the other
  // one is refused. At mapped memory each of them costs a launch about a microsecond more.
  bool mapped_memory = false;
  // For a few launches, one after the other, such as those that are compared: one executable is
  // made, whose nodes the host sets. Else there are two more, which set their nodes on the device.
  bool few_launches = false;
};

// The recording of a captured step. As a Recording it has a slot for each of slots(), then one for
// each of parts(), and then one for each of numbers(), which Binding::number() makes the binding
// of.
class CapturedRecording {
 public:
  ANABRANCH_API operator Recording() const;

  ANABRANCH_API std::vector<CaptureSlot> slots() const;
  // The bytes of each part of the arena, where blocks lie that are not given and that found no room
  // in fresh ones: 32 MiB or more each, and 64 at most, so that an allocator has room for them in
  // the holes that it has.
  ANABRANCH_API std::vector<std::uint64_t> parts() const;
  ANABRANCH_API std::vector<CaptureNumber> numbers() const;
  ANABRANCH_API CaptureCounts counts() const;

 private:
  friend struct detail::Inside;
  friend class CapturedStep;
  explicit CapturedRecording(std::shared_ptr<cuda::StepRecording> step) : step_(std::move(step)) {}
  std::shared_ptr<cuda::StepRecording> step_;
};

class CapturedStep;

// Where the parameters of kernels hold addresses, by the kernels' names: known of those of steps
// that have been captured twice. Of the same steps in other sizes one capture may be enough then.
// Threads: one at a time where something is added.
class CaptureLayouts {
 public:
  ANABRANCH_API CaptureLayouts();
  ANABRANCH_API void add(const CapturedStep& step);

 private:
  friend class CapturedStep;
  std::shared_ptr<cuda::KernelLayouts> layouts_;
};

// What two captures of one step have in common, and which of it moves.
class CapturedStep {
 public:
  // Notes are of one of the two captures.
  ANABRANCH_API static Result<CapturedStep> discover(const Device& device,
                                                     const CaptureSnapshot& first,
                                                     const CaptureSnapshot& second,
                                                     std::span<const CaptureBlock> blocks,
                                                     const CaptureNotes* notes = nullptr,
                                                     const CaptureNumbers* numbers = nullptr);
  // Of one capture. A word that lies in a block is an address where its kernel is known to have
  // one, and is refused anywhere else; so is one that names other memory which is not known to
  // stay. All other words are this capture's. kCapturesDiffer says what is not known: the step
  // needs a second capture then. Blocks have no second address, and notes are of this capture.
  ANABRANCH_API static Result<CapturedStep> discover_known(const Device& device,
                                                           const CaptureSnapshot& capture,
                                                           const CaptureLayouts& known,
                                                           std::span<const CaptureBlock> blocks,
                                                           const CaptureNotes* notes = nullptr);
  // Words that differ between the captures and are no address: see CaptureOptions::accept_unsure.
  ANABRANCH_API std::uint32_t unsure() const;
  // Where a launch may be cut, so that its caller can free in between what later nodes do not need
  // and allocate then what they make: the end of each stretch of nodes, the last one's too. These
  // are few, and so are the bytes that a launch of them in turn takes beyond a run of one node
  // after another. `let_go` are the given blocks that the caller does not keep itself. One stretch
  // if the step needs no more, or cannot be cut; none if it has no nodes.
  ANABRANCH_API std::vector<std::uint32_t> stretches(std::span<const std::uint32_t> let_go) const;
  // The nodes of one such stretch, to be recorded by themselves. Blocks that were not given, and
  // that other stretches name as well, are slots: a launch of all stretches in turn, on one stream,
  // gives them memory for as long as any of these needs it, as much as the largest of their slots.
  ANABRANCH_API CapturedStep stretch(std::uint32_t begin, std::uint32_t end) const;
  ANABRANCH_API Result<CapturedRecording> record(const CaptureOptions& options = {}) const;

 private:
  friend class CaptureLayouts;
  CapturedStep(std::shared_ptr<cuda::CudaDevice> device,
               std::shared_ptr<const cuda::Discovery> discovery)
      : device_(std::move(device)), discovery_(std::move(discovery)) {}
  std::shared_ptr<cuda::CudaDevice> device_;
  std::shared_ptr<const cuda::Discovery> discovery_;
};

}  // namespace anabranch
