// SPDX-License-Identifier: Apache-2.0
// Running a recording on the host: the caller's thread is lane 0, the process's team of threads or
// a leased crew the others (experimental/thread_control.h says when which).
// Ownership: borrows the recording for the call.
// Threads:   for whoever holds the recording. Where no threads are free, all lanes run on the
//            caller's thread, in the plan's order.
// Failure:   the first failing step in plan order, whatever the timing: a step is skipped only if
//            one before it in the plan has failed. Skipped steps still release who waits for them.
// Edges:     neither allocates nor locks unless a step fails.
#pragma once

#include "anabranch/status.h"
#include "record/host/host_recording.h"

namespace anabranch::host {

Status run(HostRecording& recording);

}  // namespace anabranch::host
