// SPDX-License-Identifier: Apache-2.0
// Times inside recordings of captured steps: which node ran when, on which lane, for how long. A
// timed recording is a twin of one: the same graph with an event behind each node. Launches of the
// recording itself stay what they are; those that are to be timed go through the twin instead, and
// take longer by an event a node.
// Ownership: a shared handle, which keeps the recording. The twin takes device memory, as an
//            executable does, and gives it back with the last handle.
// Threads:   any. One launch at a time.
// Failure:   a Status. A refused launch has queued nothing.
// Edges:     a step without nodes has no times.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "anabranch/capture.h"
#include "anabranch/captured_recording.h"
#include "anabranch/cuda_handles.h"
#include "anabranch/export.h"
#include "anabranch/status.h"

namespace anabranch {

namespace cuda {
class TimedStep;  // src/record/cuda/timed_step.h
}  // namespace cuda

// One node of a recording, in the order in which the step was captured.
struct RecordedNode {
  std::string kind;         // "kernel", "copy", "host copy", "fill", "host call", ...
  std::string name;         // of a kernel's function, as C++ declares it; else empty
  std::uint64_t bytes = 0;  // of a copy or a fill
  std::uint32_t lane = 0;
  std::vector<std::uint32_t> after;  // nodes that it runs behind
};
ANABRANCH_API std::vector<RecordedNode> list_nodes(const CapturedRecording& recording);

// By node, the mark that it came with (CaptureMarks::mark()); the number of marks where none
// followed it. `marks` are of the capture that was the first when the step was discovered.
ANABRANCH_API std::vector<std::uint32_t> list_marks(const CapturedRecording& recording,
                                                    const CaptureMarks& marks);

// In nanoseconds since the launch began on the device; to half a microsecond, as events are. A node
// begins when all have ended that it waits for, so what it waits for besides, such as room on the
// device, is in its time. So is the event behind it.
struct NodeTime {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
};

// What the twin's launch is compared with: the launch before it on its stream, which was not timed.
struct PlainTimes {
  std::uint64_t launch_ns = 0;  // 0: none was marked
  // From its end to the timed launch, where the device had nothing to do on that stream when this
  // one was queued: the host came late. 0 where it had.
  std::uint64_t idle_ns = 0;
};

class TimedRecording {
 public:
  // Takes the time of an instantiation. `addresses` as a launch takes them, of memory that is there
  // now. Waits while a launch of the recording is being queued.
  ANABRANCH_API static Result<TimedRecording> make(const CapturedRecording& recording,
                                                   std::span<const std::uint64_t> addresses);
  // Ahead of a launch of the recording itself and behind it, on its stream.
  ANABRANCH_API Status mark_plain(bool is_end, CudaStream stream) const;
  // Whether the last launch has ended, well or not; true where there was none. Waits for nothing.
  ANABRANCH_API bool is_over() const;
  // Of the last launch, by node. kBusy where it has not ended, or there was none.
  ANABRANCH_API Result<std::vector<NodeTime>> times() const;
  // Likewise, of the launch that was marked before it.
  ANABRANCH_API Result<PlainTimes> plain_times() const;

 private:
  friend struct detail::Inside;
  explicit TimedRecording(std::shared_ptr<cuda::TimedStep> timed) : timed_(std::move(timed)) {}
  std::shared_ptr<cuda::TimedStep> timed_;
};

}  // namespace anabranch
