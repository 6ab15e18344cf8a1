// SPDX-License-Identifier: Apache-2.0
// The numbers of streams, buffers, events and steps do not mix.
// expect: "cannot (convert|initialize a parameter)"
#include "anabranch/program.h"

using namespace anabranch;

StepId touch(ProgramBuilder& builder, StreamId stream, BufferId buffer) {
#if ANABRANCH_MUST_FAIL
  return builder.compute(buffer, "touch", {});
#else
  return builder.compute(stream, "touch", {builder.read(buffer)});
#endif
}
