// SPDX-License-Identifier: Apache-2.0
// The public handles as the driver's own.
// Ownership: none.
// Threads:   values.
// Failure:   none.
// Edges:     null stays null.
#pragma once

#include "anabranch/cuda_handles.h"
#include "device/cuda/driver.h"

namespace anabranch::cuda {

inline CuStream stream_of(CudaStream stream) { return static_cast<CuStream>(stream.get()); }
inline CuGraph graph_of(CudaGraph graph) { return static_cast<CuGraph>(graph.get()); }

}  // namespace anabranch::cuda
