// SPDX-License-Identifier: Apache-2.0
// The order that early edges leave out (is_early, graph_image.h). A kernel that begins before the
// one ahead of it has ended may never wait for that one, and then end before it. A graph has what
// comes behind the kernel wait for that kernel alone. On a stream it comes behind both.
// Ownership: values.
// Threads:   pure.
// Failure:   none.
// Edges:     an image without early edges stays as it is.
#pragma once

#include "record/cuda/image/graph_image.h"

namespace anabranch::cuda {

// Has each node that comes behind another wait, too, for all that the other may have overtaken. The
// edges for that are ours. Early edges stay, and a node of whose wait the capture says something
// else keeps that.
void close_early_edges(GraphImage& image);

}  // namespace anabranch::cuda
