// SPDX-License-Identifier: Apache-2.0
#include "anabranch/launch.h"

#include "device/cuda/cuda_device.h"
#include "launch/bindings.h"
#include "launch/cuda_launch.h"
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

Status launch(const CapturedRecording& recording, std::span<const std::uint64_t> addresses,
              std::uint64_t arena, void* stream) {
  if (Status current = recording.cuda_device()->make_current(); !current.ok()) return current;
  const auto queued = cuda::launch(*recording.cuda_recording(), {addresses, arena},
                                   static_cast<cuda::CuStream>(stream));
  return queued.ok() ? Status() : queued.error();
}

}  // namespace anabranch
