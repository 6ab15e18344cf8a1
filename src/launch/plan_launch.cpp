// SPDX-License-Identifier: Apache-2.0
#include "launch/plan_launch.h"

#include <thread>

#include "device/cuda/context_scope.h"
#include "launch/bindings.h"
#include "launch/cuda_launch.h"

namespace anabranch::cuda {
namespace {

class BerthLease {
 public:
  BerthLease(std::array<Berth, kBerths>& berths, CuStream stream) : berth_(take(berths, stream)) {}
  ~BerthLease() { berth_.release(); }
  BerthLease(const BerthLease&) = delete;
  BerthLease& operator=(const BerthLease&) = delete;

  Berth* operator->() const { return &berth_; }

 private:
  // Best is the berth that this stream used last: it is in order anyway, and launches on one stream
  // need one arena. Then one that is free, a new one, and at last any.
  static Berth& take(std::array<Berth, kBerths>& berths, CuStream stream) {
    const auto of_stream = [&](const Berth& b) { return b.last && b.last_stream == stream; };
    const auto is_free = [](const Berth& b) {
      return b.is_ready() && (!b.last || b.last->is_over());
    };
    const auto is_new = [](const Berth& b) { return !b.is_ready(); };
    for (;; std::this_thread::yield()) {
      if (Berth* berth = find(berths, of_stream)) return *berth;
      if (Berth* berth = find(berths, is_free)) return *berth;
      if (Berth* berth = find(berths, is_new)) return *berth;
      if (Berth* berth = find(berths, [](const Berth&) { return true; })) return *berth;
    }
  }
  template <typename Wanted>
  static Berth* find(std::array<Berth, kBerths>& berths, Wanted wanted) {
    for (Berth& berth : berths) {
      if (!berth.try_lease()) continue;
      if (wanted(berth)) return &berth;
      berth.release();
    }
    return nullptr;
  }
  Berth& berth_;
};

// Work of the graph that lies behind a call that failed would use the arena with nobody to know of
// it.
Status place(LaunchMark& mark, CuStream stream, const Driver& driver) {
  const Status placed = mark.place(stream);
  if (!placed.ok()) driver.cuStreamSynchronize(stream);
  return placed;
}

}  // namespace

Result<Ticket> launch_plan(PlanRecording& recording, std::span<const Binding> bindings,
                           CuStream stream) {
  if (Status right = check_bindings(recording.plan(), bindings); !right.ok()) return right;
  const ContextScope current(*recording.device(), Act::kLaunch);
  if (!current.status().ok()) return current.status();
  CudaRecording& graph = recording.graph();
  const BerthLease berth(recording.berths(), stream);
  if (Status ready = berth->prepare(recording.device(), graph, Act::kLaunch); !ready.ok()) {
    return ready;
  }
  const auto mark = berth->take_mark();
  if (!mark.ok()) return mark.error();
  if (berth->last) {
    if (Status held = berth->last->hold(stream); !held.ok()) return held;
  }
  const auto addresses = berth->addresses();
  for (std::size_t i = 0; i < graph.slots().size(); ++i) {
    addresses[i] = reinterpret_cast<std::uint64_t>(bindings[graph.slots()[i].unit].data);
  }
  const auto queued = launch(graph, addresses, stream);
  if (!queued.ok()) return queued.error();
  const Status placed = place(**mark, stream, recording.device()->driver());
  berth->last = placed.ok() ? *mark : nullptr;
  berth->last_stream = stream;
  if (!placed.ok()) return placed;
  return Ticket(*mark);
}

}  // namespace anabranch::cuda
