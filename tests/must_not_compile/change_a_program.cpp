// SPDX-License-Identifier: Apache-2.0
// A program is immutable once built.
// expect: "assignment of member|cannot assign to"
#include "anabranch/program.h"

using namespace anabranch;

StreamId stream_of(const Program& program) {
#if ANABRANCH_MUST_FAIL
  return program.steps()[0].stream = kAmbient;
#else
  return program.steps()[0].stream;
#endif
}
