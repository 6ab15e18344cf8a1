// SPDX-License-Identifier: Apache-2.0
// One launch of a captured step that answers a ticket.
// Ownership: the bound memory is the caller's, and must live until the launch has ended.
// Threads:   any, at once.
// Failure:   a Status, never an exception. A refused launch has queued nothing; one whose end could
//            not be marked has been waited for.
// Edges:     allocates an event where more tickets are kept than before, and memory of the host for
//            more than 256 bindings; otherwise nothing.
#pragma once

#include <span>

#include "anabranch/launch.h"
#include "record/cuda/step_recording.h"

namespace anabranch::cuda {

Result<Ticket> launch_step(StepRecording& step, std::span<const Binding> bindings, CuStream stream);

}  // namespace anabranch::cuda
