// SPDX-License-Identifier: Apache-2.0
// The parts of find_reports: what a report says, and whether make_plan may go on.
#pragma once

#include <string>

#include "anabranch/plan.h"

namespace anabranch {

// One line: both operations with source and stream, the bytes, what was done, the remedy.
std::string describe_report(const Program& program, const SyncReport& report);

// kUnsynchronised, with the first of the reports that are errors; or kTooManyComparisons.
Status check_reports(const Program& program, const PlanOptions& options);

}  // namespace anabranch
