// SPDX-License-Identifier: Apache-2.0
// Two streams work side by side and join: y = (x + 1) * (x - 1). Nobody wrote a wait.
#include <anabranch/anabranch.h>

#include <cstdio>

using namespace anabranch;

// A region is given the buffers of its step's accesses, in their order.
float& value(const RegionCall* call, int access) {
  return *static_cast<float*>(call->buffers[access]);
}
int up(void*, const RegionCall* call) {
  value(call, 1) = value(call, 0) + 1;
  return 0;
}
int down(void*, const RegionCall* call) {
  value(call, 1) = value(call, 0) - 1;
  return 0;
}
int join(void*, const RegionCall* call) {
  value(call, 2) = value(call, 0) * value(call, 1);
  return 0;
}

int main() {
  ProgramBuilder b;
  const StreamId side = b.add_stream("side");
  const BufferId x = b.add_buffer({"x", Role::kInput, sizeof(float)});
  const BufferId y = b.add_buffer({"y", Role::kOutput, sizeof(float)});
  const BufferId more = b.add_buffer({"more", Role::kTemporary, sizeof(float)});
  const BufferId less = b.add_buffer({"less", Role::kTemporary, sizeof(float)});
  b.compute(kAmbient, "up", {b.read(x), b.write(more)});
  b.compute(side, "down", {b.read(x), b.write(less)});
  b.compute(kAmbient, "join", {b.read(more), b.read(less), b.write(y)});

  const Plan plan = *make_plan(*b.build());
  const Recording recording =
      *record(plan, Device::host(), {{"up", {up}}, {"down", {down}}, {"join", {join}}});
  alignas(64) float in[3][16] = {{2}, {3}, {4}}, out[16];
  for (float* row : in) {
    const Binding bindings[] = {{row, sizeof(float)}, {out, sizeof(float)}};
    if (!launch(recording, bindings)) return 1;
    std::printf("%g -> %g\n", row[0], out[0]);
  }
}
