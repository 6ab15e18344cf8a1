// SPDX-License-Identifier: Apache-2.0
// What nodes reach through tables: kernels are given a table's address, and read others from it.
// Ownership: borrows everything.
// Threads:   pure.
// Failure:   none.
// Edges:     addresses that a kernel has copied out of a table elsewhere are not known of.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "record/cuda/image/graph_image.h"
#include "record/cuda/rewrite/tables.h"

namespace anabranch::cuda {

// Adds to the units that each node names those of the tables it may read: the ones that lie in a
// unit it names, and those that lie in units so found.
void add_units_of_tables(const GraphImage& image, std::span<const TableWrite> tables,
                         std::vector<std::vector<std::uint32_t>>& units);

}  // namespace anabranch::cuda
