// SPDX-License-Identifier: Apache-2.0
// Only a builder makes programs, so that every program has been validated.
// expect: "no matching (function|constructor)"
#include "anabranch/program.h"

using namespace anabranch;

#if ANABRANCH_MUST_FAIL
Program make() { return Program(); }
#else
Result<Program> make() { return ProgramBuilder().build(); }
#endif
