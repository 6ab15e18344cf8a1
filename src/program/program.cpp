// SPDX-License-Identifier: Apache-2.0
#include "anabranch/program.h"

#include <cstdint>
#include <utility>

#include "program/check_program.h"

namespace anabranch {
namespace {

template <typename Id, typename T>
Id append(std::vector<T>& list, T item) {
  list.push_back(std::move(item));
  return static_cast<Id>(list.size() - 1);
}

}  // namespace

ProgramBuilder::ProgramBuilder() { add_stream("ambient"); }

StreamId ProgramBuilder::add_stream(std::string name, StreamOrigin origin, std::int32_t priority) {
  data_.origins.push_back(origin);
  data_.priorities.push_back(priority);
  return append<StreamId>(data_.streams, std::move(name));
}

EventId ProgramBuilder::add_event(std::string name) {
  return append<EventId>(data_.events, std::move(name));
}

BufferId ProgramBuilder::add_buffer(Buffer buffer) {
  return append<BufferId>(data_.buffers, std::move(buffer));
}

BufferId ProgramBuilder::add_number(std::string name, NumberKind kind, double least, double most) {
  const std::uint64_t bytes = bytes_of(kind);
  return add_buffer(
      {std::move(name), Role::kNumber, bytes, bytes == 0 ? 1 : bytes, kind, least, most});
}

BufferId ProgramBuilder::add_table(std::string name, std::uint64_t size_bytes,
                                   std::uint64_t alignment) {
  return add_buffer({std::move(name), Role::kTable, size_bytes, alignment});
}

BufferId ProgramBuilder::add_grid(std::string name, std::uint32_t most_x, std::uint32_t most_y,
                                  std::uint32_t most_z) {
  Buffer grid{std::move(name), Role::kGrid, kGridBytes, sizeof(std::uint32_t)};
  grid.most_blocks = {most_x, most_y, most_z};
  return add_buffer(std::move(grid));
}

StepId ProgramBuilder::add_step(Step step) { return append<StepId>(data_.steps, std::move(step)); }

StepId ProgramBuilder::compute(StreamId stream, std::string region, std::vector<Access> accesses) {
  return add_step({.kind = StepKind::kCompute,
                   .stream = stream,
                   .name = std::move(region),
                   .accesses = std::move(accesses)});
}

StepId ProgramBuilder::copy(StreamId stream, View to, View from) {
  return add_step(
      {.kind = StepKind::kCopy,
       .stream = stream,
       .name = "copy",
       .accesses = {{AccessMode::kWrite, std::move(to)}, {AccessMode::kRead, std::move(from)}}});
}

StepId ProgramBuilder::fill(StreamId stream, View to, std::uint8_t byte) {
  return add_step({.kind = StepKind::kFill,
                   .stream = stream,
                   .name = "fill",
                   .accesses = {{AccessMode::kWrite, std::move(to)}},
                   .fill_byte = byte});
}

StepId ProgramBuilder::record_event(StreamId stream, EventId event) {
  return add_step(
      {.kind = StepKind::kRecordEvent, .stream = stream, .name = "record_event", .event = event});
}

StepId ProgramBuilder::wait_event(StreamId stream, EventId event) {
  return add_step(
      {.kind = StepKind::kWaitEvent, .stream = stream, .name = "wait_event", .event = event});
}

StepId ProgramBuilder::synchronize(StreamId stream) {
  return add_step({.kind = StepKind::kSynchronize, .stream = stream, .name = "synchronize"});
}

StepId ProgramBuilder::synchronize_event(StreamId stream, EventId event) {
  wait_event(stream, event);
  return synchronize(stream);
}

// A stream that is added later has no work yet, so the streams that there are make up the device.
StepId ProgramBuilder::synchronize_device() {
  StepId last{};
  for (std::uint32_t i = 0; i < data_.streams.size(); ++i) last = synchronize(StreamId{i});
  return last;
}

View ProgramBuilder::whole(BufferId buffer) const {
  const bool known = index_of(buffer) < data_.buffers.size();
  return {.buffer = buffer,
          .offset_bytes = 0,
          .item_bytes = known ? data_.buffers[index_of(buffer)].size_bytes : 0};
}

Result<Program> ProgramBuilder::build() const {
  Program program(std::make_shared<const Program::Data>(data_));
  if (Status status = check_program(program); !status) return status;
  return program;
}

}  // namespace anabranch
