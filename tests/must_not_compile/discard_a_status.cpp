// SPDX-License-Identifier: Apache-2.0
// A Status that nobody reads is an error that nobody sees.
// expect: "ignoring (returned value|return value|temporary)[^\n]*nodiscard"
#include "anabranch/plan.h"

using namespace anabranch;

void save(const Plan& plan) {
#if ANABRANCH_MUST_FAIL
  write_plan_file(plan, "a.plan");
#else
  if (Status status = write_plan_file(plan, "a.plan"); !status) return;
#endif
}
