// SPDX-License-Identifier: Apache-2.0
// A plan into its FlatBuffer. Everything is written in the order of its numbers and nothing is
// shared, so equal plans give equal bytes, and a reader can bound what it reads by the file's size.
#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "plan/plan_file.h"
#include "plan/plan_generated.h"
#include "program/user_streams.h"

namespace anabranch {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
template <typename T>
using Offsets = std::vector<Offset<T>>;

// Upper bounds of what a table, and a string or vector beside its items, takes with all padding.
constexpr std::uint64_t kTableBytes = 96;
constexpr std::uint64_t kVectorBytes = 16;

std::uint64_t bound_of(const Step& step) {
  std::uint64_t bytes = kTableBytes + 3 * kVectorBytes + step.name.size() + step.source.size();
  for (const Access& access : step.accesses) {
    bytes += kTableBytes + kVectorBytes + sizeof(file::Dim) * access.view.dims.size();
  }
  return bytes;
}

std::uint64_t bound_of(const Plan& plan) {
  const Program& program = plan.program();
  std::uint64_t bytes = 1024 + sizeof(file::Wait) * plan.waits().size() + 4 * plan.order().size();
  for (const Step& step : program.steps()) bytes += bound_of(step);
  for (const Buffer& buffer : program.buffers()) bytes += kTableBytes + 16 + buffer.name.size();
  for (const std::string& name : program.streams()) bytes += kVectorBytes + 8 + name.size();
  for (const std::string& name : program.events()) bytes += kVectorBytes + 8 + name.size();
  bytes += kVectorBytes + program.origins().size();
  bytes += kVectorBytes + sizeof(std::int32_t) * program.priorities().size();
  return bytes;
}

bool has_long_text(const Program& program) {
  const auto is_long = [](const std::string& text) { return text.size() > kMaxFileTextBytes; };
  return std::ranges::any_of(program.streams(), is_long) ||
         std::ranges::any_of(program.events(), is_long) ||
         std::ranges::any_of(program.buffers(), is_long, &Buffer::name) ||
         std::ranges::any_of(program.steps(), is_long, &Step::name) ||
         std::ranges::any_of(program.steps(), is_long, &Step::source);
}

// What the reader would refuse is not written. FlatBuffers aborts at its own limit, so the size is
// bounded before it is asked.
bool fits_format(const Plan& plan) {
  const Program& program = plan.program();
  return bound_of(plan) <= kMaxPlanPayloadBytes && !has_long_text(program) &&
         program.buffers().size() <= kMaxFileBuffers && program.events().size() <= kMaxFileEvents;
}

Offset<flatbuffers::String> write_text(FlatBufferBuilder& out, const std::string& text) {
  if (text.empty()) return 0;
  return out.CreateString(text);
}

Offset<flatbuffers::Vector<Offset<flatbuffers::String>>> write_names(
    FlatBufferBuilder& out, std::span<const std::string> names) {
  Offsets<flatbuffers::String> written;
  for (const std::string& name : names) written.push_back(out.CreateString(name));
  return out.CreateVector(written);
}

// Nothing where all streams are placed, so that such plans keep the bytes they always had.
Offset<flatbuffers::Vector<std::uint8_t>> write_origins(FlatBufferBuilder& out,
                                                        std::span<const StreamOrigin> origins) {
  if (!has_user_streams(origins)) return 0;
  std::vector<std::uint8_t> written;
  for (const StreamOrigin origin : origins) written.push_back(static_cast<std::uint8_t>(origin));
  return out.CreateVector(written.data() + 1, written.size() - 1);
}

// Likewise where no stream has one.
Offset<flatbuffers::Vector<std::int32_t>> write_priorities(
    FlatBufferBuilder& out, std::span<const std::int32_t> priorities) {
  const std::span<const std::int32_t> side = priorities.subspan(1);
  if (std::ranges::all_of(side, [](std::int32_t priority) { return priority == 0; })) return 0;
  return out.CreateVector(side.data(), side.size());
}

Offset<file::Access> write_access(FlatBufferBuilder& out, const Access& access) {
  const View& view = access.view;
  Offset<flatbuffers::Vector<const file::Dim*>> dims = 0;
  if (!view.dims.empty()) {
    std::vector<file::Dim> written;
    for (const Dim& dim : view.dims) written.emplace_back(dim.size, dim.stride_bytes);
    dims = out.CreateVectorOfStructs(written);
  }
  return file::CreateAccess(out, static_cast<std::uint8_t>(access.mode), index_of(view.buffer),
                            view.offset_bytes, view.item_bytes, dims);
}

Offset<file::Step> write_step(FlatBufferBuilder& out, const Step& step) {
  const auto name = write_text(out, step.name);
  const auto source = write_text(out, step.source);
  Offset<flatbuffers::Vector<Offset<file::Access>>> accesses = 0;
  if (!step.accesses.empty()) {
    Offsets<file::Access> written;
    for (const Access& access : step.accesses) written.push_back(write_access(out, access));
    accesses = out.CreateVector(written);
  }
  return file::CreateStep(out, static_cast<std::uint8_t>(step.kind), index_of(step.stream), name,
                          source, accesses, index_of(step.event), step.fill_byte);
}

Offset<flatbuffers::Vector<Offset<file::Step>>> write_steps(FlatBufferBuilder& out,
                                                            const Program& program) {
  Offsets<file::Step> written;
  written.reserve(program.steps().size());
  for (const Step& step : program.steps()) written.push_back(write_step(out, step));
  return out.CreateVector(written);
}

// Nothing where any number will do.
Offset<flatbuffers::Vector<double>> write_bounds(FlatBufferBuilder& out, const Buffer& buffer) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  if (buffer.least == -kAny && buffer.most == kAny) return 0;
  const std::array bounds{buffer.least, buffer.most};
  return out.CreateVector(bounds.data(), bounds.size());
}

Offset<flatbuffers::Vector<std::uint32_t>> write_blocks(FlatBufferBuilder& out,
                                                        const Buffer& buffer) {
  if (buffer.role != Role::kGrid) return 0;
  return out.CreateVector(buffer.most_blocks.data(), buffer.most_blocks.size());
}

Offset<flatbuffers::Vector<Offset<file::Buffer>>> write_buffers(FlatBufferBuilder& out,
                                                                const Plan& plan) {
  Offsets<file::Buffer> written;
  const std::span<const Buffer> buffers = plan.program().buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    const auto name = write_text(out, buffer.name);
    const auto bounds = write_bounds(out, buffer);
    const auto blocks = write_blocks(out, buffer);
    written.push_back(file::CreateBuffer(
        out, name, static_cast<std::uint8_t>(buffer.role), buffer.size_bytes, buffer.alignment,
        plan.arena().offsets[i], static_cast<std::uint8_t>(buffer.number), bounds, blocks));
  }
  return out.CreateVector(written);
}

}  // namespace

std::vector<std::uint8_t> write_plan_payload(const Plan& plan) {
  if (!fits_format(plan)) return {};
  FlatBufferBuilder out;
  const Program& program = plan.program();
  const auto streams = write_names(out, program.streams().subspan(1));
  const auto events = write_names(out, program.events());
  const auto buffers = write_buffers(out, plan);
  const auto steps = write_steps(out, program);

  std::vector<std::uint32_t> order_numbers;
  for (const StepId step : plan.order()) order_numbers.push_back(index_of(step));
  const auto order = out.CreateVector(order_numbers);
  std::vector<file::Wait> wait_pairs;
  for (const Wait& wait : plan.waits()) {
    wait_pairs.emplace_back(index_of(wait.step), index_of(wait.on));
  }
  const auto waits = out.CreateVectorOfStructs(wait_pairs);

  const auto origins = write_origins(out, program.origins());
  const auto priorities = write_priorities(out, program.priorities());
  const ArenaLayout& arena = plan.arena();
  out.Finish(file::CreatePlan(out, streams, events, buffers, steps, order, waits, arena.size_bytes,
                              arena.lower_bound_bytes, arena.naive_bytes, origins, priorities),
             file::PlanIdentifier());
  return {out.GetBufferPointer(), out.GetBufferPointer() + out.GetSize()};
}

}  // namespace anabranch
