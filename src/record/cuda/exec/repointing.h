// SPDX-License-Identifier: Apache-2.0
// What the executables of a recording are made from: the captured graph as it is to run, and every
// place in it that holds an address of a launch.
// Ownership: values; handles belong to the captured graph, copy_room to the maker of executables.
// Threads:   immutable once the first executable is made.
// Failure:   none.
// Edges:     a site's `unit` is its source here, see Repointing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cuda/driver.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/sites/sites.h"

namespace anabranch::cuda {

// What every executable of a recording does, and where its addresses are. A launch gives one
// address a source: the slots, and after them the parts of the arena. A site's `unit` is its source
// here, and its `shift` contains where a temporary lies in its part, or in the slot that lends it
// bytes.
struct Repointing {
  GraphImage image;
  bool is_reordered = false;              // the image has other edges than the capture
  std::vector<Site> sites;                // sorted by node
  std::vector<std::uint32_t> first_site;  // by node, one more than there are
  std::vector<std::uint32_t> nodes;       // that name a source, source by source
  std::vector<std::uint32_t> first_node;  // by source, one more than there are
  std::size_t source_count() const { return first_node.size() - 1; }
  std::uint32_t most_fields = 0;          // of any kernel
  std::vector<std::uint32_t> with_bytes;  // sources that have any
  CuContext context = nullptr;
  bool mapped_memory = false;  // see CudaRecordOptions
  // Memory of the kind that launches give, as large as any of them touches, for the copies and
  // fills of the driver's that are made anew: each keeps the kind of memory that it was
  // instantiated with, captures may have another kind than launches, and theirs may be gone.
  CuDevicePtr copy_room = 0;
};

}  // namespace anabranch::cuda
