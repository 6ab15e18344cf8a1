// SPDX-License-Identifier: Apache-2.0
// A plan is not a recording: nothing was made real on a device yet.
// expect: "invalid initialization of reference|no known conversion|no matching function"
#include "anabranch/anabranch.h"

using namespace anabranch;

#if ANABRANCH_MUST_FAIL
Result<Ticket> run(const Plan& what) { return launch(what, {}); }
#else
Result<Ticket> run(const Recording& what) { return launch(what, {}); }
#endif
