// SPDX-License-Identifier: Apache-2.0
// Where the tables of a plan lie in one block, which each launch fills.
// Ownership: values.
// Threads:   pure.
// Failure:   none.
// Edges:     a plan without tables has a block of no bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "anabranch/plan.h"

namespace anabranch {

struct TablePlace {
  std::uint32_t slot = 0;  // of the plan
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct TablePlaces {
  std::vector<TablePlace> places;  // by slot
  std::uint64_t size_bytes = 0;    // of a block that is aligned to kMaxTableAlignment
};

TablePlaces place_tables(const Plan& plan);

}  // namespace anabranch
