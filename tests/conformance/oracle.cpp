// SPDX-License-Identifier: Apache-2.0
#include "oracle.h"

#include "plan/random_program.h"
#include "record/record_testing.h"

namespace anabranch::testing {
namespace {

using Byte = unsigned char;

template <typename Function>
void for_each_byte_from(const View& view, std::size_t dim, Byte* at, Function function) {
  if (dim == view.dims.size()) {
    for (std::uint64_t i = 0; i < view.item_bytes; ++i) function(at[i]);
    return;
  }
  for (std::uint64_t i = 0; i < view.dims[dim].size; ++i) {
    for_each_byte_from(view, dim + 1, at, function);
    at += view.dims[dim].stride_bytes;
  }
}

template <typename Function>
void for_each_byte(const View& view, Byte* buffer, Function function) {
  for_each_byte_from<Function&>(view, 0, buffer + view.offset_bytes, function);
}

void run_compute(const Step& step, std::uint64_t seed, void* const* buffers) {
  std::uint64_t hash = seed;
  const auto base = [&](std::size_t i) { return static_cast<Byte*>(buffers[i]); };
  for (std::size_t i = 0; i < step.accesses.size(); ++i) {
    if (step.accesses[i].mode == AccessMode::kWrite) continue;
    for_each_byte(step.accesses[i].view, base(i),
                  [&](Byte& byte) { hash = (hash ^ byte) * 0x100000001b3; });
  }
  RandomNumbers random(hash);
  for (std::size_t i = 0; i < step.accesses.size(); ++i) {
    if (step.accesses[i].mode == AccessMode::kRead) continue;
    for_each_byte(step.accesses[i].view, base(i),
                  [&](Byte& byte) { byte = static_cast<Byte>(random.next()); });
  }
}

void run_copy(const Step& step, void* const* buffers) {
  std::vector<Byte> bytes;
  for_each_byte(step.accesses[1].view, static_cast<Byte*>(buffers[1]),
                [&](Byte& byte) { bytes.push_back(byte); });
  auto next = bytes.begin();
  for_each_byte(step.accesses[0].view, static_cast<Byte*>(buffers[0]),
                [&](Byte& byte) { byte = *next++; });
}

void run_step(const Step& step, std::uint64_t seed, void* const* buffers) {
  switch (step.kind) {
    case StepKind::kCompute:
    case StepKind::kHost:
      return run_compute(step, seed, buffers);
    case StepKind::kCopy:
      return run_copy(step, buffers);
    case StepKind::kFill:
      return for_each_byte(step.accesses[0].view, static_cast<Byte*>(buffers[0]),
                           [&](Byte& byte) { byte = step.fill_byte; });
    default:
      return;
  }
}

}  // namespace

Program with_region_names(const Program& program, StepKind host_steps) {
  return with_named_steps(program, [host_steps](Step& step) {
    if (step.kind == StepKind::kHost) step.kind = host_steps;
  });
}

HashingRegions::HashingRegions(const Program& program) {
  for (const Step& step : program.steps()) {
    contexts_.push_back({step, contexts_.size()});
    table_[step.name] = {run, &contexts_.back()};
  }
}

std::int32_t HashingRegions::run(void* context, const RegionCall* call) {
  const Context& self = *static_cast<const Context*>(context);
  if (call->buffer_count != self.step.accesses.size()) return 1;
  run_step(self.step, self.seed, call->buffers);
  return 0;
}

void fill_slots(const Plan& plan, SlotMemory& memory, std::uint64_t seed) {
  RandomNumbers random(seed);
  for (std::size_t slot = 0; slot < plan.slots().size(); ++slot) {
    if (plan.program().buffer(plan.slots()[slot].buffer).role == Role::kOutput) continue;
    for (Byte& byte : memory.bytes(slot)) byte = static_cast<Byte>(random.next());
  }
}

void run_serially(const Plan& plan, SlotMemory& memory) {
  const Program& program = plan.program();
  std::vector<std::vector<Byte>> temporaries(program.buffers().size());
  std::vector<void*> address(program.buffers().size());
  for (std::size_t b = 0; b < address.size(); ++b) {
    if (program.buffers()[b].role != Role::kTemporary) continue;
    temporaries[b].resize(program.buffers()[b].size_bytes);
    address[b] = temporaries[b].data();
  }
  for (std::size_t slot = 0; slot < plan.slots().size(); ++slot) {
    address[index_of(plan.slots()[slot].buffer)] = memory.bindings()[slot].data;
  }
  for (std::size_t i = 0; i < program.steps().size(); ++i) {
    std::vector<void*> buffers;
    for (const Access& access : program.steps()[i].accesses) {
      buffers.push_back(address[index_of(access.view.buffer)]);
    }
    run_step(program.steps()[i], i, buffers.data());
  }
}

}  // namespace anabranch::testing
