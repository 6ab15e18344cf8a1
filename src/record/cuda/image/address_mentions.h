// SPDX-License-Identifier: Apache-2.0
// Which memory a captured graph names, out of some that is known: what its captures agree on is
// frozen, and where that is the address of living memory the caller should know.
// Threads: values.
// Edges:   an address is looked for in whole words: parameters, what is copied from pinned memory,
//          operands of copies and fills. A number that happens to be one is taken for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "anabranch/capture.h"
#include "record/cuda/image/graph_image.h"

namespace anabranch::cuda {

// The ranges that nodes name, each with the first of these. Ranges are sorted and do not overlap.
// With `other`, which captured the same, words alone that it has at the same place of the same
// node; all of those that have no place there.
std::vector<CaptureMention> find_mentions(const GraphImage& image,
                                          std::span<const CaptureRange> ranges,
                                          const GraphImage* other = nullptr);

}  // namespace anabranch::cuda
