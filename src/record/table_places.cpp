// SPDX-License-Identifier: Apache-2.0
#include "record/table_places.h"

namespace anabranch {

TablePlaces place_tables(const Plan& plan) {
  TablePlaces placed;
  for (std::uint32_t slot = 0; slot < plan.slots().size(); ++slot) {
    const Buffer& buffer = plan.program().buffer(plan.slots()[slot].buffer);
    if (buffer.role != Role::kTable) continue;
    const std::uint64_t mask = buffer.alignment - 1;
    const std::uint64_t offset = (placed.size_bytes + mask) & ~mask;
    placed.places.push_back({slot, offset, buffer.size_bytes});
    placed.size_bytes = offset + buffer.size_bytes;
  }
  return placed;
}

}  // namespace anabranch
