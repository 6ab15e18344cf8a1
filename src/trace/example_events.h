// SPDX-License-Identifier: Apache-2.0
// A plan with one wait and what two launches of it might have written; for the tests of this room.
#pragma once

#include <vector>

#include "anabranch/plan.h"
#include "anabranch/trace.h"

namespace anabranch {

// Step 0 "up" on the ambient stream, step 1 "down" on "side", step 2 "join" waits for step 1.
inline Plan example_plan() {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side \"A\"");
  const BufferId x = builder.add_buffer({"x", Role::kInput, 64});
  const BufferId up = builder.add_buffer({"up", Role::kTemporary, 64});
  const BufferId down = builder.add_buffer({"down", Role::kTemporary, 64});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 64});
  builder.compute(kAmbient, "up", {builder.read(x), builder.write(up)});
  builder.add_step({.kind = StepKind::kCompute,
                    .stream = side,
                    .name = "down",
                    .source = "model\\x.py:\"88\"",
                    .accesses = {builder.read(x), builder.write(down)}});
  builder.compute(kAmbient, "join", {builder.read(up), builder.read(down), builder.write(y)});
  return *make_plan(*builder.build());
}

// Not in the order of time: lanes write when they are done.
inline std::vector<TraceEvent> example_events() {
  std::vector<TraceEvent> events;
  for (const std::uint64_t begin : {1'000'000u, 2'000'000u}) {
    events.push_back({EventKind::kStep, 0, 0, 0, begin + 1'000, begin + 2'500});
    events.push_back({EventKind::kStep, 1, 1, 0, begin + 1'100, begin + 9'101});
    events.push_back({EventKind::kWait, 0, 2, 1, begin + 2'500, begin + 9'200});
    events.push_back({EventKind::kStep, 0, 2, 0, begin + 9'200, begin + 9'900});
    events.push_back({EventKind::kLaunch, 0, 0, 0, begin, begin + 10'000});
  }
  return events;
}

}  // namespace anabranch
