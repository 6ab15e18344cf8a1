// SPDX-License-Identifier: Apache-2.0
// What a user writes: y = x + 1 and z = 2 * x on two streams, checked, and every room touched.
#include <anabranch/anabranch.h>
#include <anabranch/experimental/tape.h>

#include <array>
#include <cstdio>
#include <iostream>

#if ANABRANCH_VERSION_MAJOR != 0
#error "this program was written for version 0"
#endif

using namespace anabranch;

namespace {

std::int32_t add_one(void*, const RegionCall* call) {
  *static_cast<float*>(call->buffers[0]) = *static_cast<float*>(call->buffers[1]) + 1;
  return 0;
}

std::int32_t twice(void*, const RegionCall* call) {
  *static_cast<float*>(call->buffers[0]) = *static_cast<float*>(call->buffers[1]) * 2;
  return 0;
}

Result<Program> make_program() {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId x = builder.add_buffer({.name = "x", .role = Role::kInput, .size_bytes = 4});
  const BufferId y = builder.add_buffer({.name = "y", .role = Role::kOutput, .size_bytes = 4});
  const BufferId z = builder.add_buffer({.name = "z", .role = Role::kOutput, .size_bytes = 4});
  builder.compute(side, "add_one", {builder.write(y), builder.read(x)});
  builder.compute(kAmbient, "twice", {builder.write(z), builder.read(x)});
  return builder.build();
}

int fail(const Status& status) {
  std::cerr << status << '\n';
  return 1;
}

}  // namespace

int main() {
  const Result<Program> program = make_program();
  if (!program) return fail(program.error());
  const Result<Plan> plan = make_plan(*program);
  if (!plan) return fail(plan.error());
  const Result<Plan> read_back = read_plan(write_plan(*plan));
  if (!read_back) return fail(read_back.error());
  const Result<Recording> recording = record(
      *read_back, Device::host(), {{"add_one", {add_one, nullptr}}, {"twice", {twice, nullptr}}});
  if (!recording) return fail(recording.error());
  for (const RecordingSlot& slot : recording->slots()) {
    std::printf("%s: %llu bytes\n", slot.name.c_str(),
                static_cast<unsigned long long>(slot.size_bytes));
  }
  if (!tape::TapeBuilder().finish()) return 1;  // experimental headers are installed too

  Trace trace;
  attach_trace(*recording, &trace);
  alignas(64) std::array<float, 16> x{3}, y{}, z{};
  const std::array<Binding, 3> bindings{Binding{x.data(), sizeof x}, Binding{y.data(), sizeof y},
                                        Binding{z.data(), sizeof z}};
  const Result<Ticket> ticket = launch(*recording, bindings);
  if (!ticket) return fail(ticket.error());
  attach_trace(*recording, nullptr);

  const bool right = y[0] == 4 && z[0] == 6;
  const bool traced =
      dump_chrome_json(*read_back, trace.collect()).find("add_one") != std::string::npos;
  std::printf("y=%g z=%g traced=%s\n", double{y[0]}, double{z[0]}, traced ? "yes" : "no");
  return right && traced ? 0 : 1;
}
