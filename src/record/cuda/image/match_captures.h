// SPDX-License-Identifier: Apache-2.0
// Whether two captures of one callable are the same work at other addresses.
// Ownership: borrows both images.
// Threads:   pure.
// Failure:   kCapturesDiffer names the first node that differs and both values.
// Edges:     addresses and other words inside parameters are not compared here but by find_sites().
#pragma once

#include "anabranch/status.h"
#include "record/cuda/image/graph_image.h"

namespace anabranch::cuda {

Status match_captures(const GraphImage& first, const GraphImage& second);

// By member: what lies between them is not kept when a copy is copied.
bool are_same(const CuMemcpy3D& a, const CuMemcpy3D& b);

}  // namespace anabranch::cuda
