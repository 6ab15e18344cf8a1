// SPDX-License-Identifier: Apache-2.0
// Swapped arguments are seen by the compiler.
// expect: "cannot (convert|initialize a parameter)"
#include "anabranch/program.h"

using namespace anabranch;

StepId mark(ProgramBuilder& builder, StreamId stream, EventId event) {
#if ANABRANCH_MUST_FAIL
  return builder.record_event(event, stream);
#else
  return builder.record_event(stream, event);
#endif
}
