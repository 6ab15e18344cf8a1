// SPDX-License-Identifier: Apache-2.0
#include "anabranch/launch.h"

#include "launch/bindings.h"
#include "launch/host_launch.h"

namespace anabranch {

Result<Ticket> launch(const Recording& recording, std::span<const Binding> bindings) {
  host::HostRecording& host = *recording.host_recording();
  const host::HostHold hold(host);
  if (!hold) {
    return Status(Code::kBusy,
                  "launch: the recording is already running, and takes one launch at a time. Wait "
                  "for that launch, or record the plan once more.");
  }
  const Program& program = host.plan().program();
  if (Status bound = host::bind_slots(program, host.addresses(), bindings); !bound.ok())
    return bound;
  if (Status ran = host::run(host); !ran.ok()) return ran;
  return Ticket();
}

}  // namespace anabranch
