// SPDX-License-Identifier: Apache-2.0
// Whether the parts of a plan fit its program at all; races are left to check_plan.
// Failure: kPlanInvalid, the first thing that does not fit. Everything is checked, nothing assumed.
#pragma once

#include "anabranch/plan.h"

namespace anabranch {

Status check_parts(const Program& program, const PlanParts& parts);

}  // namespace anabranch
