// SPDX-License-Identifier: Apache-2.0
// Handles of CUDA are types: a graph is no stream, and neither is any pointer.
// expect: "no known conversion|could not convert|no viable conversion|cannot convert"
#include "anabranch/anabranch.h"

using namespace anabranch;

Status tie(const StreamTies& ties, CudaStream stream, CudaGraph graph) {
#if ANABRANCH_MUST_FAIL
  (void)stream;
  return ties.join(graph, {});
#else
  (void)graph;
  return ties.join(stream, {});
#endif
}
