// SPDX-License-Identifier: Apache-2.0
// A plain number is no id: only a builder gives ids.
// expect: "cannot (convert|initialize a parameter)|invalid conversion"
#include "anabranch/program.h"

using namespace anabranch;

Access touch(ProgramBuilder& builder) {
#if ANABRANCH_MUST_FAIL
  return builder.read(0);
#else
  return builder.read(builder.add_buffer({.name = "x", .size_bytes = 4}));
#endif
}
