// SPDX-License-Identifier: Apache-2.0
// Launching a recording: new addresses in, one ticket out.
// Ownership: bound buffers belong to the caller and must outlive the ticket.
// Threads:   see record.h; the calling thread is the ambient stream.
// Failure:   a Status, never an exception. A refused launch has started nothing; a failed step
//            stops the launch, and the recording can be launched again.
// Edges:     on the host device the launch has ended when the call returns.
#pragma once

#include <cstdint>
#include <span>

#include "anabranch/capture.h"
#include "anabranch/export.h"
#include "anabranch/record.h"
#include "anabranch/status.h"

namespace anabranch {

struct Binding {
  void* data = nullptr;
  std::uint64_t size_bytes = 0;
};

class Ticket {
 public:
  bool done() const { return true; }  // the host device has nothing in flight after launch()
};

// `bindings[i]` serves plan.slots()[i]. Checked before anything runs: count, address, alignment,
// size, and that no written buffer shares bytes with another.
ANABRANCH_API Result<Ticket> launch(const Recording& recording, std::span<const Binding> bindings);

// One launch of a captured step: `addresses[i]` serves slots()[i], `arena` has
// counts().arena_bytes, aligned to 512 (any address where it has none). The work is queued on
// `stream` (a CUstream) when the call returns; the memory must live until it has ended there.
// Launches of one recording may overlap on several streams, each with an arena of its own.
ANABRANCH_API Status launch(const CapturedRecording& recording,
                            std::span<const std::uint64_t> addresses, std::uint64_t arena,
                            void* stream);

}  // namespace anabranch
