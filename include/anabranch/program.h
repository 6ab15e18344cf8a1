// SPDX-License-Identifier: Apache-2.0
// A program: steps over buffers, what is asked and nothing of how it is done.
// Ownership: a Program is an immutable value, cheap to copy (shared, reference counted).
// Threads:   a Program may be read from any thread; a ProgramBuilder belongs to one.
// Failure:   build() answers all errors at once, each naming the step and both values.
// Edges:     an empty program is valid; ids are only meaningful for the builder that gave them.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "anabranch/export.h"
#include "anabranch/status.h"

namespace anabranch {

// Dense numbers from 0, in the order of declaration.
enum class BufferId : std::uint32_t {};
enum class StreamId : std::uint32_t {};
enum class EventId : std::uint32_t {};
enum class StepId : std::uint32_t {};

template <typename Id>
constexpr std::uint32_t index_of(Id id) {
  return static_cast<std::uint32_t>(id);
}

// The stream of the caller. Every program has it; inputs come from it and outputs go to it.
inline constexpr StreamId kAmbient{0};

// What orders a stream's work against that of other streams.
enum class StreamOrigin : std::uint8_t {
  // Named by the program, ordered by the planner. Its work means what it means on the ambient
  // stream, where a program without streams would have it.
  kPlaced,
  // A stream of the user's, ordered by their own events and synchronizes (a torch stream). What
  // these leave unordered is ordered by the planner, and reported: see find_reports in plan.h.
  kUserSynchronised,
};

enum class Role : std::uint8_t {
  kInput,      // given by the caller; may be written, and is then seen changed by the caller
  kOutput,     // given by the caller as memory to fill
  kConstant,   // given by the caller, never written, usually at the same address
  kTemporary,  // lives in the arena
  // A number, given by the caller by value. Regions read it, at an address of the host's, on CUDA
  // too: there a launch writes it wherever kernels were given it by value.
  kNumber,
  // A table: some bytes of the host's (lengths, numbers of pages) that each launch gives anew. The
  // call takes them, and regions read a copy: on CUDA in the device's memory. Nothing writes it.
  kTable,
  // How many blocks kernels have, as three std::uint32_t (x, y, z) that the caller gives by value.
  // Regions read it on the host, like a number, and launch kernels with it.
  kGrid,
};

enum class NumberKind : std::uint8_t { kNone, kF32, kF64, kI32, kI64, kBF16 };

constexpr std::uint64_t bytes_of(NumberKind kind) {
  switch (kind) {
    case NumberKind::kF32:
    case NumberKind::kI32:
      return 4;
    case NumberKind::kF64:
    case NumberKind::kI64:
      return 8;
    case NumberKind::kBF16:
      return 2;
    default:
      return 0;
  }
}

// Limits. Above them build() answers kLimitExceeded.
inline constexpr std::uint32_t kMaxSteps = 1u << 24;
inline constexpr std::uint32_t kMaxStreams = 1024;
inline constexpr std::uint64_t kMaxBufferBytes = std::uint64_t{1} << 48;
inline constexpr std::uint64_t kMaxTotalBytes = std::uint64_t{1} << 60;  // sizes and alignments
inline constexpr std::uint32_t kMaxViewDims = 32;
inline constexpr std::uint64_t kMaxTableBytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kMaxTableAlignment = 512;
// Blocks in x, y and z, as CUDA has them.
inline constexpr std::array<std::uint32_t, 3> kMaxGrid{0x7FFF'FFFF, 0xFFFF, 0xFFFF};
inline constexpr std::uint64_t kGridBytes = sizeof kMaxGrid;

// One dimension of a strided view. Strides are in bytes and may be negative or zero.
struct Dim {
  std::uint64_t size = 0;
  std::int64_t stride_bytes = 0;
  bool operator==(const Dim&) const = default;
};

// The bytes [offset + sum(i_k * stride_k), + item) for all 0 <= i_k < size_k.
// No dims: one item. A dim of size 0: no bytes at all.
struct View {
  BufferId buffer{};
  std::uint64_t offset_bytes = 0;
  std::uint64_t item_bytes = 0;
  std::vector<Dim> dims{};
  bool operator==(const View&) const = default;
};

enum class AccessMode : std::uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

struct Access {
  AccessMode mode = AccessMode::kRead;
  View view;
};

enum class StepKind : std::uint8_t {
  kCompute,      // a region: opaque work with declared accesses
  kCopy,         // accesses[0] is written from accesses[1]; equal shapes, equal items
  kFill,         // every byte of accesses[0] becomes `fill_byte`
  kHost,         // a region that must run on the host
  kRecordEvent,  // `event` marks all earlier work of the stream
  // Later work of the stream waits for the latest earlier record of `event`. Without one: refused,
  // or in a program with streams that the user synchronises a step that waits for nothing.
  kWaitEvent,
  kSynchronize,  // the host waits for the stream: all later steps of every stream come after it
};

struct Step {
  StepKind kind = StepKind::kCompute;
  StreamId stream = kAmbient;
  std::string name{};    // for people; also the region's key in a RegionTable (compute, host)
  std::string source{};  // "model.py:88", or empty
  std::vector<Access> accesses{};
  EventId event{};
  std::uint8_t fill_byte = 0;
};

struct Buffer {
  std::string name{};
  Role role = Role::kTemporary;
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment = 64;  // of the address, a power of two
  // Of a number: its kind, whose bytes are the size, and between what it lies. A launch that gives
  // another is refused; a NaN lies between no bounds but infinite ones.
  NumberKind number = NumberKind::kNone;
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  // Of a grid: how many blocks it has at most, in x, y and z. It has one at least.
  std::array<std::uint32_t, 3> most_blocks{};
};

class Program {
 public:
  std::span<const Step> steps() const { return data_->steps; }
  std::span<const Buffer> buffers() const { return data_->buffers; }
  std::span<const std::string> streams() const { return data_->streams; }
  // By stream; the ambient one is placed.
  std::span<const StreamOrigin> origins() const { return data_->origins; }
  // By stream; the lower, the more urgent, as CUDA counts. 0 where none was given.
  std::span<const std::int32_t> priorities() const { return data_->priorities; }
  std::span<const std::string> events() const { return data_->events; }
  const Step& step(StepId id) const { return data_->steps[index_of(id)]; }
  const Buffer& buffer(BufferId id) const { return data_->buffers[index_of(id)]; }

 private:
  friend class ProgramBuilder;
  struct Data {
    std::vector<Step> steps;
    std::vector<Buffer> buffers;
    std::vector<std::string> streams;
    std::vector<StreamOrigin> origins;     // as long as streams
    std::vector<std::int32_t> priorities;  // and these
    std::vector<std::string> events;
  };
  explicit Program(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

// The only way to make a program. Steps are appended in program order: the result of a program
// is that of its steps run one after another in this order.
class ANABRANCH_API ProgramBuilder {
 public:
  ProgramBuilder();

  // A priority changes no meaning: where streams must share threads, the more urgent ones (the
  // lower numbers) are given theirs first.
  StreamId add_stream(std::string name, StreamOrigin origin = StreamOrigin::kPlaced,
                      std::int32_t priority = 0);
  EventId add_event(std::string name);
  BufferId add_buffer(Buffer buffer);
  BufferId add_number(std::string name, NumberKind kind,
                      double least = -std::numeric_limits<double>::infinity(),
                      double most = std::numeric_limits<double>::infinity());
  // Launches give so many bytes at most; what they leave out is zero.
  BufferId add_table(std::string name, std::uint64_t size_bytes, std::uint64_t alignment = 64);
  BufferId add_grid(std::string name, std::uint32_t most_x, std::uint32_t most_y = 1,
                    std::uint32_t most_z = 1);
  StepId add_step(Step step);

  // Shorthands of add_step.
  StepId compute(StreamId stream, std::string region, std::vector<Access> accesses);
  StepId copy(StreamId stream, View to, View from);
  StepId fill(StreamId stream, View to, std::uint8_t byte);
  StepId record_event(StreamId stream, EventId event);
  StepId wait_event(StreamId stream, EventId event);
  StepId synchronize(StreamId stream);
  // The host waits for the latest record of `event`: `stream` waits for it, and the host for
  // `stream`. Give it a stream without other work, or that is waited for too. Answers the last
  // step.
  StepId synchronize_event(StreamId stream, EventId event);
  // The host waits for all earlier work of all streams, one after another. Answers the last step.
  StepId synchronize_device();

  // The whole of a buffer as one contiguous item; an unknown id gives a view build() refuses.
  View whole(BufferId buffer) const;
  Access read(BufferId buffer) const { return {AccessMode::kRead, whole(buffer)}; }
  Access write(BufferId buffer) const { return {AccessMode::kWrite, whole(buffer)}; }
  Access read_write(BufferId buffer) const { return {AccessMode::kReadWrite, whole(buffer)}; }

  // Validates everything; the builder is left as it was. All errors are in one Status, a line each,
  // under the code of the first.
  Result<Program> build() const;

 private:
  Program::Data data_;
};

}  // namespace anabranch
