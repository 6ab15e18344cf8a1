// SPDX-License-Identifier: Apache-2.0
// What a plan asks of the regions that it is recorded with, on every device.
// Ownership: values.
// Threads:   pure.
// Failure:   kRegionMissing names the first step whose region was not supplied.
// Edges:     regions that no step names are left alone.
#pragma once

#include <string>

#include "anabranch/record.h"

namespace anabranch {

inline bool runs_region(const Step& step) {
  return step.kind == StepKind::kCompute || step.kind == StepKind::kHost;
}

// "step 3 'gelu' (model.py:88)"
std::string describe_step(const Program& program, StepId id);

Status check_regions(const Plan& plan, const RegionTable& regions);

}  // namespace anabranch
