// SPDX-License-Identifier: Apache-2.0
// Only the planner makes plans, so that every plan has passed the race checker.
// expect: "no matching (function|constructor)"
#include "anabranch/plan.h"

using namespace anabranch;

#if ANABRANCH_MUST_FAIL
Plan make(const Program& program, PlanParts parts) { return Plan(program, parts); }
#else
Result<Plan> make(const Program& program, PlanParts parts) {
  return make_plan_from_parts(program, parts);
}
#endif
