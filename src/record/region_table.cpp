// SPDX-License-Identifier: Apache-2.0
#include "record/region_table.h"

#include <fmt/format.h>

namespace anabranch {

std::string describe_step(const Program& program, StepId id) {
  const Step& step = program.step(id);
  const std::string source =
      step.source.empty() ? "" : fmt::format(" ({})", printable_text(step.source));
  return fmt::format("step {} '{}'{}", index_of(id), printable_text(step.name), source);
}

Status check_regions(const Plan& plan, const RegionTable& regions) {
  for (const StepId id : plan.order()) {
    const Step& step = plan.program().step(id);
    if (!runs_region(step)) continue;
    const auto found = regions.find(step.name);
    if (found != regions.end() && found->second.function) continue;
    return Status(StatusCode::kRegionMissing,
                  fmt::format("record: {} runs a region that was not supplied; the table has {} "
                              "{}. Add one under this name.",
                              describe_step(plan.program(), id), regions.size(),
                              regions.size() == 1 ? "region" : "regions"));
  }
  return {};
}

}  // namespace anabranch
