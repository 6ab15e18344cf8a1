// SPDX-License-Identifier: Apache-2.0
// Recorded copies and fills as kernels of our own. The driver's nodes keep the kind of memory that
// they were captured with, have one dimension if they are to be set at all, and are out of reach of
// device code; kernels take any address, from the host and from the device.
// Ownership: borrows everything; functions belong to the device code.
// Threads:   calls the driver for the current context.
// Failure:   a Status of a driver call; the graph is then of no use.
// Edges:     what the host's memory, arrays or another device take part in stays as it is, and so
//            does what has no site.
#pragma once

#include <span>
#include <vector>

#include "anabranch/status.h"
#include "device/cuda/device_code.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/sites/step_graph.h"

namespace anabranch::cuda {

// The kernel that does what such a node does, for device memory. The grid fits the box, and the
// alignment that its addresses have now.
KernelImage copy_kernel(const DeviceCode& code, const CuMemcpy3D& copy);
KernelImage fill_kernel(const DeviceCode& code, const CuMemsetNodeParams& fill);
KernelImage table_kernel(const DeviceCode& code, const TableParams& table);

// Puts kernels in place of the step's copies and fills, and moves their sites into parameters;
// exec/make_nodes.h makes them.
Status replace_transfers(const Driver& driver, const DeviceCode& code, StepGraph& step);

}  // namespace anabranch::cuda
