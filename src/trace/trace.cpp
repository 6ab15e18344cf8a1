// SPDX-License-Identifier: Apache-2.0
#include "anabranch/trace.h"

#include "base/event_ring.h"
#include "base/inside.h"
#include "record/host/host_recording.h"

namespace anabranch {

Trace::Trace(std::size_t capacity) : ring_(std::make_unique<EventRing>(capacity)) {}

Trace::~Trace() = default;

void Trace::write(const TraceEvent& event) noexcept { ring_->write(event); }

std::vector<TraceEvent> Trace::collect() const {
  return {ring_->events().begin(), ring_->events().end()};
}

std::uint64_t Trace::dropped() const { return ring_->dropped(); }

void Trace::clear() { ring_->clear(); }

void attach_trace(const Recording& recording, Trace* trace) {
  const auto& on_host = detail::Inside::host(recording);
  if (!on_host) return;
  on_host->set_event_ring(trace == nullptr ? nullptr : trace->ring_.get());
}

}  // namespace anabranch
