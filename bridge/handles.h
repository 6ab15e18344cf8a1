// SPDX-License-Identifier: Apache-2.0
// What the handles of the C ABI hold, and how a Status crosses it.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "anabranch/anabranch.h"
#include "anabranch/experimental/number_program.h"
#include "anabranch/experimental/tape.h"
#include "anabranch_c.h"

struct AnabranchBuilder {
  anabranch::ProgramBuilder builder;
  anabranch::Step step;  // between begin_step and end_step
  bool broken = false;   // memory ran out while it was told something
};
struct AnabranchProgram {
  anabranch::Program program;
};
struct AnabranchReports {
  std::vector<anabranch::SyncReport> reports;
};
struct AnabranchPlan {
  anabranch::Plan plan;
};
struct AnabranchDevice {
  anabranch::Device device;
};
struct AnabranchCudaFacts {
  anabranch::CudaFacts facts;
};
struct AnabranchStreamTies {
  anabranch::StreamTies ties;
};
struct AnabranchRecording {
  anabranch::Recording recording;
  std::vector<std::uint64_t> sizes_bytes;  // of the slots' buffers
};
struct AnabranchTrace {
  explicit AnabranchTrace(std::size_t capacity) : trace(capacity) {}
  anabranch::Trace trace;
};
struct AnabranchTapeBuilder {
  explicit AnabranchTapeBuilder(const anabranch::tape::TensorLibrary& library) : builder(library) {}
  anabranch::tape::TapeBuilder builder;
  std::vector<anabranch::tape::Argument> arguments;
  // Values of the next dispatch; above the first, what open_* began.
  std::vector<anabranch::tape::Value> open = std::vector<anabranch::tape::Value>(1);
  bool broken = false;
};
struct AnabranchNumberProgram {
  anabranch::numbers::NumberProgram program;
};
struct AnabranchCaptureDevice {
  anabranch::Device device;
  anabranch::CaptureSupport support;
};
struct AnabranchCaptureMemory {
  anabranch::CaptureMemory memory;
};
struct AnabranchCaptureMarks {
  anabranch::CaptureMarks marks;
};
struct AnabranchCaptureSnapshot {
  anabranch::CaptureSnapshot snapshot;
};
struct AnabranchCaptureLayouts {
  anabranch::CaptureLayouts layouts;
};
struct AnabranchCapturedStep {
  anabranch::CapturedStep step;
};
struct AnabranchCapturedRecording {
  anabranch::CapturedRecording recording;
};
struct AnabranchTimedRecording {
  anabranch::TimedRecording timed;
};
struct AnabranchTape {
  std::unique_ptr<anabranch::tape::Tape> tape;
};

namespace anabranch::bridge {

// Keeps the error for anabranch_last_error_*; answers its code.
std::int32_t fail(const Status& status) noexcept;
// Keeps a text for the caller until this thread's next text.
const char* keep(std::string text) noexcept;

template <typename Handle>
Handle* refuse(const Status& status) {
  fail(status);
  return nullptr;
}

// The handle of a result, or nullptr with the error kept.
template <typename Handle, typename T>
Handle* handle_of(Result<T> result) {
  if (!result.ok()) return refuse<Handle>(result.error());
  return new Handle{std::move(*result)};
}

// Runs `body`; memory that ran out, the only exception the core lets through, becomes an error.
template <typename Body>
auto guard(Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& error) {
    fail(Status(StatusCode::kRecordFailed, std::string("bridge: ") + error.what()));
  }
  if constexpr (std::is_integral_v<decltype(body())>) {
    return static_cast<decltype(body())>(StatusCode::kRecordFailed);
  } else {
    return decltype(body())();
  }
}

// Tells a builder something. What cannot be told for want of memory would be missing in silence,
// so the builder is broken by it; the answer is an id that belongs to nothing.
template <typename Builder, typename Body>
auto tell(Builder* builder, Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    builder->broken = true;
  }
  return decltype(body())(~0u);
}

inline Status broken_builder() {
  return Status(StatusCode::kRecordFailed,
                "build: memory ran out while the parts were given. Free some and begin anew.");
}

}  // namespace anabranch::bridge
