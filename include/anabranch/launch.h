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

}  // namespace anabranch
