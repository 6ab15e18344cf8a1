// SPDX-License-Identifier: Apache-2.0
#include "launch/plan_launch.h"

#include <thread>

#include "base/inside.h"
#include "device/cuda/context_scope.h"
#include "launch/bindings.h"
#include "launch/cuda_launch.h"

namespace anabranch::cuda {
namespace {

class InFlightLease {
 public:
  InFlightLease(std::array<InFlight, kMostInFlight>& entries, CuStream stream)
      : taken_(take(entries, stream)) {}
  ~InFlightLease() { taken_.release(); }
  InFlightLease(const InFlightLease&) = delete;
  InFlightLease& operator=(const InFlightLease&) = delete;

  InFlight* operator->() const { return &taken_; }

 private:
  // Best is the entry that this stream used last: it is in order anyway, and launches on one stream
  // need one arena. Then one that is free, a new one, and at last any.
  static InFlight& take(std::array<InFlight, kMostInFlight>& entries, CuStream stream) {
    const auto of_stream = [&](const InFlight& b) { return b.last && b.last_stream == stream; };
    const auto is_free = [](const InFlight& b) {
      return b.is_ready() && (!b.last || b.last->is_over());
    };
    const auto is_new = [](const InFlight& b) { return !b.is_ready(); };
    for (;; std::this_thread::yield()) {
      if (InFlight* entry = find(entries, of_stream)) return *entry;
      if (InFlight* entry = find(entries, is_free)) return *entry;
      if (InFlight* entry = find(entries, is_new)) return *entry;
      if (InFlight* entry = find(entries, [](const InFlight&) { return true; })) return *entry;
    }
  }
  template <typename Wanted>
  static InFlight* find(std::array<InFlight, kMostInFlight>& entries, Wanted wanted) {
    for (InFlight& entry : entries) {
      if (!entry.try_lease()) continue;
      if (wanted(entry)) return &entry;
      entry.release();
    }
    return nullptr;
  }
  InFlight& taken_;
};

void write_numbers(const PlanRecording& recording, std::span<const Binding> bindings,
                   std::span<std::uint64_t> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = recording.number_words()[i].made_of([&](std::uint32_t number) {
      return reinterpret_cast<std::uint64_t>(bindings[recording.numbers()[number].slot].data);
    });
  }
}

}  // namespace

Result<Ticket> launch_plan(PlanRecording& recording, std::span<const Binding> bindings,
                           CuStream stream) {
  if (Status right = check_bindings(recording.plan(), bindings); !right.ok()) return right;
  const ContextScope current(*recording.device(), Act::kLaunch);
  if (!current.status().ok()) return current.status();
  CudaRecording& graph = recording.graph();
  const InFlightLease own(recording.in_flight(), stream);
  if (Status ready = own->prepare(recording.device(), graph, Act::kLaunch); !ready.ok()) {
    return ready;
  }
  const auto mark = own->take_mark();
  if (!mark.ok()) return mark.error();
  if (own->last) {
    if (Status held = own->last->hold(stream); !held.ok()) return held;
  }
  const auto addresses = own->addresses();
  for (std::size_t i = 0; i < graph.slots().size(); ++i) {
    addresses[i] = reinterpret_cast<std::uint64_t>(bindings[graph.slots()[i].unit].data);
  }
  write_numbers(recording, bindings, addresses.last(graph.numbers().size()));
  const auto queued = launch(graph, addresses, stream);
  if (!queued.ok()) return queued.error();
  const Status placed = mark_end(**mark, stream, recording.device()->driver());
  own->last = placed.ok() ? *mark : nullptr;
  own->last_stream = stream;
  if (!placed.ok()) return placed;
  return detail::Inside::make<Ticket>(*mark);
}

}  // namespace anabranch::cuda
