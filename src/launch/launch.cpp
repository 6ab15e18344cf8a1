// SPDX-License-Identifier: Apache-2.0
#include "anabranch/launch.h"

#include <fmt/format.h>

#include "base/inside.h"
#include "device/cuda/context_scope.h"
#include "device/cuda/handles.h"
#include "launch/bindings.h"
#include "launch/cuda_launch.h"
#include "launch/host_launch.h"
#include "launch/plan_launch.h"
#include "launch/step_launch.h"
#include "record/cuda/timed_step.h"

namespace anabranch {

bool Ticket::is_over() const {
  const cuda::ContextScope current(mark_->device(), cuda::Act::kLaunch);
  return mark_->is_over();
}

Status Ticket::wait() const {
  if (!mark_) return {};
  const cuda::ContextScope current(mark_->device(), cuda::Act::kLaunch);
  return current.status().ok() ? mark_->wait() : current.status();
}

namespace {

Status refuse_stream(CudaStream stream) {
  return Status(
      StatusCode::kStreamRefused,
      fmt::format("launch: stream {} was given, and the host device has none: a launch runs "
                  "on the calling thread. Pass no stream, and wait for its work before.",
                  stream.get()));
}

}  // namespace

Result<Ticket> launch(const Recording& recording, std::span<const Binding> bindings,
                      CudaStream stream) {
  if (const auto& on_gpu = detail::Inside::cuda(recording)) {
    return cuda::launch_plan(*on_gpu, bindings, cuda::stream_of(stream));
  }
  if (const auto& step = detail::Inside::step(recording)) {
    return cuda::launch_step(*step, bindings, cuda::stream_of(stream));
  }
  if (stream) return refuse_stream(stream);
  host::HostRecording& host = *detail::Inside::host(recording);
  const host::HostHold hold(host);
  if (!hold) {
    return Status(StatusCode::kBusy,
                  "launch: the recording is already running, and takes one launch at a time. Wait "
                  "for that launch, or record the plan once more.");
  }
  const Program& program = host.plan().program();
  if (Status bound = host::bind_slots(program, host.addresses(), bindings); !bound.ok())
    return bound;
  if (Status ran = host::run(host); !ran.ok()) return ran;
  return Ticket();
}

Status queue_launch(const CapturedRecording& recording, std::span<const std::uint64_t> addresses,
                    CudaStream stream) {
  cuda::StepRecording& step = *detail::Inside::step(recording);
  const cuda::ContextScope current(*step.device(), cuda::Act::kLaunch);
  if (!current.status().ok()) return current.status();
  const auto queued = cuda::launch(step.graph(), addresses, cuda::stream_of(stream));
  return queued.ok() ? Status() : queued.error();
}

Status queue_timed_launch(const TimedRecording& timed, std::span<const std::uint64_t> addresses,
                          CudaStream stream) {
  cuda::TimedStep& twin = *detail::Inside::timed(timed);
  const cuda::ContextScope current(*twin.step().device(), cuda::Act::kLaunch);
  if (!current.status().ok()) return current.status();
  return cuda::launch_timed(twin.step().graph(), twin.exec(), addresses, cuda::stream_of(stream));
}

}  // namespace anabranch
