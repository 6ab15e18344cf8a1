// SPDX-License-Identifier: Apache-2.0
// One launch of a captured step at these addresses.
// Ownership: the memory belongs to the caller and must live until the launch has ended on `stream`.
// Threads:   any; launches of one recording from several threads take turns, or run side by side
//            where it has several executables.
// Failure:   a Status, never an exception. A refused launch has queued nothing; one that the driver
//            failed has queued nothing or has ended, and the recording can be launched again.
// Edges:     the answer comes when the work is queued, not when it has ended.
#pragma once

#include <cstdint>
#include <span>

#include "anabranch/status.h"
#include "launch/cuda_bindings.h"
#include "record/cuda/exec/cuda_recording.h"
#include "record/cuda/exec/launch_mark.h"
#include "record/cuda/exec/timed_exec.h"

namespace anabranch::cuda {

// How a launch gave the nodes their addresses.
enum class Repoint : std::uint8_t {
  kNothing,     // nothing had moved
  kFromHost,    // a few nodes, or all where addresses have settled
  kFromDevice,  // all nodes, by the updater
};

// `addresses`: of the slots and then of the arena's parts, see take_bindings(); `since` too.
// Neither allocates nor locks unless something is wrong.
Result<Repoint> launch(CudaRecording& recording, std::span<const std::uint64_t> addresses,
                       CuStream stream, SinceLaunch* since = nullptr);

// The same through a twin whose nodes have events (timed_exec.h); kBusy where it is leased or its
// last launch has not ended.
Status launch_timed(CudaRecording& recording, TimedExec& timed,
                    std::span<const std::uint64_t> addresses, CuStream stream);

// Behind a launch that has been queued. Where that fails, it waits for the launch: its memory would
// be in use without a sign of it.
Status mark_end(LaunchMark& mark, CuStream stream, const Driver& driver);

}  // namespace anabranch::cuda
