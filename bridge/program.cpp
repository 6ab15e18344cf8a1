// SPDX-License-Identifier: Apache-2.0
#include "anabranch/program.h"

#include "handles.h"

namespace ab = anabranch;

AnabranchBuilder* anabranch_builder_new(void) {
  return ab::bridge::guard([] { return new AnabranchBuilder; });
}

void anabranch_builder_free(AnabranchBuilder* builder) { delete builder; }

uint32_t anabranch_builder_add_stream(AnabranchBuilder* builder, const char* name, int32_t origin,
                                      int32_t priority) {
  return ab::bridge::tell(builder, [&] {
    return ab::index_of(builder->builder.add_stream(name, ab::StreamOrigin(origin), priority));
  });
}

uint32_t anabranch_builder_add_event(AnabranchBuilder* builder, const char* name) {
  return ab::bridge::tell(builder, [&] { return ab::index_of(builder->builder.add_event(name)); });
}

uint32_t anabranch_builder_add_buffer(AnabranchBuilder* builder, const char* name, int32_t role,
                                      uint64_t size_bytes, uint64_t alignment) {
  return ab::bridge::tell(builder, [&] {
    return ab::index_of(builder->builder.add_buffer(
        {.name = name, .role = ab::Role(role), .size_bytes = size_bytes, .alignment = alignment}));
  });
}

void anabranch_builder_begin_step(AnabranchBuilder* builder, int32_t kind, uint32_t stream,
                                  const char* name, const char* source) {
  ab::bridge::tell(builder, [&] {
    builder->step = {};
    builder->step.kind = ab::StepKind(kind);
    builder->step.stream = ab::StreamId(stream);
    builder->step.name = name;
    builder->step.source = source;
  });
}

void anabranch_builder_add_access(AnabranchBuilder* builder, int32_t mode, uint32_t buffer,
                                  uint64_t offset_bytes, uint64_t item_bytes, uint32_t dims,
                                  const uint64_t* sizes, const int64_t* strides_bytes) {
  ab::bridge::tell(builder, [&] {
    ab::View view{.buffer = ab::BufferId(buffer),
                  .offset_bytes = offset_bytes,
                  .item_bytes = item_bytes,
                  .dims = {}};
    for (uint32_t i = 0; i < dims; ++i) view.dims.push_back({sizes[i], strides_bytes[i]});
    builder->step.accesses.push_back({ab::AccessMode(mode), std::move(view)});
  });
}

void anabranch_builder_add_whole(AnabranchBuilder* builder, int32_t mode, uint32_t buffer) {
  ab::bridge::tell(builder, [&] {
    builder->step.accesses.push_back(
        {ab::AccessMode(mode), builder->builder.whole(ab::BufferId(buffer))});
  });
}

void anabranch_builder_set_event(AnabranchBuilder* builder, uint32_t event) {
  builder->step.event = ab::EventId(event);
}

void anabranch_builder_set_fill_byte(AnabranchBuilder* builder, uint8_t byte) {
  builder->step.fill_byte = byte;
}

uint32_t anabranch_builder_end_step(AnabranchBuilder* builder) {
  return ab::bridge::tell(
      builder, [&] { return ab::index_of(builder->builder.add_step(std::move(builder->step))); });
}

AnabranchProgram* anabranch_builder_build(AnabranchBuilder* builder) {
  return ab::bridge::guard([&] {
    if (builder->broken) return ab::bridge::refuse<AnabranchProgram>(ab::bridge::broken_builder());
    return ab::bridge::handle_of<AnabranchProgram>(builder->builder.build());
  });
}

void anabranch_program_free(AnabranchProgram* program) { delete program; }

uint32_t anabranch_program_step_count(const AnabranchProgram* program) {
  return static_cast<uint32_t>(program->program.steps().size());
}

uint32_t anabranch_program_buffer_count(const AnabranchProgram* program) {
  return static_cast<uint32_t>(program->program.buffers().size());
}

uint32_t anabranch_program_stream_count(const AnabranchProgram* program) {
  return static_cast<uint32_t>(program->program.streams().size());
}

void anabranch_program_step(const AnabranchProgram* program, uint32_t number, AnabranchStep* out) {
  const ab::Step& step = program->program.step(ab::StepId(number));
  *out = {static_cast<int32_t>(step.kind),
          ab::index_of(step.stream),
          step.name.c_str(),
          step.source.c_str(),
          ab::index_of(step.event),
          static_cast<uint32_t>(step.accesses.size())};
}

void anabranch_program_buffer(const AnabranchProgram* program, uint32_t number,
                              AnabranchBuffer* out) {
  const ab::Buffer& buffer = program->program.buffer(ab::BufferId(number));
  *out = {buffer.name.c_str(), static_cast<int32_t>(buffer.role), buffer.size_bytes,
          buffer.alignment};
}

const char* anabranch_program_stream_name(const AnabranchProgram* program, uint32_t stream) {
  return program->program.streams()[stream].c_str();
}

int32_t anabranch_program_stream_origin(const AnabranchProgram* program, uint32_t stream) {
  return static_cast<int32_t>(program->program.origins()[stream]);
}

int32_t anabranch_program_stream_priority(const AnabranchProgram* program, uint32_t stream) {
  return program->program.priorities()[stream];
}
