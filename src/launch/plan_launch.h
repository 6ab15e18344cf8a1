// SPDX-License-Identifier: Apache-2.0
// One launch of a plan that was recorded on CUDA.
// Ownership: the recording keeps arena and tables until the launch has ended.
// Threads:   any, at once; each launch leases an InFlight for the length of the call.
// Failure:   a Status, never an exception. A refused launch has queued nothing; one whose end could
//            not be marked has been waited for.
// Edges:     allocates an arena where more launches run at once than before, and an event where
//            more tickets are kept; otherwise nothing.
#pragma once

#include <span>

#include "anabranch/launch.h"
#include "record/cuda/plan/plan_recording.h"

namespace anabranch::cuda {

Result<Ticket> launch_plan(PlanRecording& recording, std::span<const Binding> bindings,
                           CuStream stream);

}  // namespace anabranch::cuda
