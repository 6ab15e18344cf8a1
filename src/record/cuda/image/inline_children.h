// SPDX-License-Identifier: Apache-2.0
// Child graphs in which something moves, taken into the graph whose nodes they are: setters and
// device code reach nodes of the graph itself alone.
// Ownership: values.
// Threads:   pure.
// Failure:   none.
// Edges:     a child that both captures hold to the last word stays one node, and so does one that
//            they build differently, which match_captures.h then tells. Children of a child that is
//            opened are opened too.
#pragma once

#include "record/cuda/image/graph_image.h"

namespace anabranch::cuda {

// Of two captures of one step. The nodes of a child come in its place, behind what it came behind
// and before what came behind it, with `child_of` set.
void inline_children(GraphImage& first, GraphImage& second);

}  // namespace anabranch::cuda
