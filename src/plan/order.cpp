// SPDX-License-Identifier: Apache-2.0
#include "plan/order.h"

namespace anabranch {

std::vector<StepId> make_order(const Program& program) {
  std::vector<StepId> order(program.steps().size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = StepId{i};
  return order;
}

}  // namespace anabranch
