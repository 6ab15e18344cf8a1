// SPDX-License-Identifier: Apache-2.0
// What is asked cannot be launched either.
// expect: "invalid initialization of reference|no known conversion|no matching function"
#include "anabranch/anabranch.h"

using namespace anabranch;

#if ANABRANCH_MUST_FAIL
Result<Ticket> run(const Program& what) { return launch(what, {}); }
#else
Result<Plan> run(const Program& what) { return make_plan(what); }
#endif
