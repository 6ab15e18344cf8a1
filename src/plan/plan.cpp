// SPDX-License-Identifier: Apache-2.0
#include "anabranch/plan.h"

#include <utility>

#include "plan/memory.h"
#include "plan/order.h"
#include "plan/plan_parts.h"
#include "plan/reports.h"
#include "plan/waits.h"

namespace anabranch {

class PlanAccess {
 public:
  // `parts` were checked.
  static Plan make(const Program& program, PlanParts parts) {
    Plan::Data data{program, std::move(parts), {}, {}, {}};
    for (std::uint32_t i = 0; i < program.buffers().size(); ++i) {
      if (program.buffers()[i].role != Role::kTemporary) data.slots.push_back({BufferId{i}});
    }
    data.exits = find_exits(program, data.parts.order, data.parts.waits);
    data.redundant = find_redundant_waits(program, data.parts.waits);
    return Plan(std::make_shared<const Plan::Data>(std::move(data)));
  }
};

Result<Plan> make_plan(const Program& program, const PlanOptions& options) {
  if (Status status = check_reports(program, options); !status) return status;
  PlanParts parts;
  parts.order = make_order(program);
  Result<std::vector<Wait>> waits = derive_waits(program, parts.order);
  if (!waits) return waits.error();
  parts.waits = *std::move(waits);
  parts.arena = plan_memory(program, parts.order, parts.waits);
  return make_plan_from_parts(program, std::move(parts));
}

Result<Plan> make_plan_from_parts(const Program& program, PlanParts parts) {
  if (Status status = check_parts(program, parts); !status) return status;
  if (Status status = check_plan(program, parts); !status) return status;
  return PlanAccess::make(program, std::move(parts));
}

}  // namespace anabranch
