// SPDX-License-Identifier: Apache-2.0
// The trace: what happened in a launch, against what was planned.
// Ownership: a Trace owns its ring; it must outlive every recording it is attached to.
// Threads:   events are written without locks from any lane; collect() only between launches.
// Failure:   a full ring drops the newest events and counts them; nothing blocks.
// Edges:     off (no trace attached) costs one test of a pointer a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "anabranch/export.h"
#include "anabranch/record.h"
#include "anabranch/status.h"
#include "anabranch/trace_event.h"

namespace anabranch {

class EventRing;  // src/base/event_ring.h

class ANABRANCH_API Trace {
 public:
  explicit Trace(std::size_t capacity = 1 << 16);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void write(const TraceEvent& event) noexcept;
  std::vector<TraceEvent> collect() const;
  std::uint64_t dropped() const;
  void clear();

 private:
  friend ANABRANCH_API void attach_trace(const Recording& recording, Trace* trace);
  std::unique_ptr<EventRing> ring_;
};

// Writes the events of later launches of `recording` to `trace`; nullptr turns it off. Not while a
// launch runs. Launches on CUDA write nothing yet.
ANABRANCH_API void attach_trace(const Recording& recording, Trace* trace);

// Chrome's JSON trace format, which Perfetto opens: a process for the program, a thread a stream,
// slices with names and source lines, flows for waits.
ANABRANCH_API std::string dump_chrome_json(const Plan& plan, const std::vector<TraceEvent>& events);
// The same into a file, which is written as write_plan_file() writes its own. kFileUnreadable.
ANABRANCH_API Status write_chrome_json(const Plan& plan, const std::vector<TraceEvent>& events,
                                       const std::string& path);
// A table for people: each step with stream, begin, duration, and what it waited for.
ANABRANCH_API std::string dump_trace(const Plan& plan, const std::vector<TraceEvent>& events);

// The plan as JSON, for pages and scripts: steps with what they read and write, order, waits, and
// where buffers lie. docs/trace.md has its keys.
ANABRANCH_API std::string dump_plan_json(const Plan& plan);

}  // namespace anabranch
