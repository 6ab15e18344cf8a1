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

  InFlight& operator*() const { return taken_; }
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
      const PlanNumber& given = recording.numbers()[number];
      return given.word_of(value_of_slot(bindings[given.slot]));
    });
  }
}

void write_addresses(PlanRecording& recording, std::span<const Binding> bindings, InFlight& own) {
  const CudaRecording& graph = recording.graph();
  const auto addresses = own.addresses();
  for (std::size_t i = 0; i < graph.slots().size(); ++i) {
    addresses[i] = reinterpret_cast<std::uint64_t>(bindings[graph.slots()[i].unit].data);
  }
  for (const PlacedTable& table : recording.placed_tables()) {
    addresses[table.source] = own.tables().address() + table.offset;
  }
  write_numbers(recording, bindings, addresses.last(graph.numbers().size()));
}

Status copy_tables(const TablePlaces& tables, std::span<const Binding> bindings,
                   StagedTables& staged, CuStream stream) {
  const auto block = staged.begin();
  if (!block.ok()) return block.error();
  for (const TablePlace& place : tables.places) {
    write_table(bindings[place.slot], block->subspan(place.offset, place.bytes));
  }
  return staged.copy(stream);
}

// The tables, and the graph behind them. What fails has queued nothing, or it has ended.
Status queue(PlanRecording& recording, std::span<const Binding> bindings, InFlight& own,
             CuStream stream) {
  const bool has_tables = !recording.tables().places.empty();
  if (has_tables) {
    Status copied = copy_tables(recording.tables(), bindings, own.tables(), stream);
    if (!copied.ok()) return copied;
  }
  write_addresses(recording, bindings, own);
  const auto queued = launch(recording.graph(), own.addresses(), stream);
  if (queued.ok()) return {};
  if (has_tables) recording.device()->driver().cuStreamSynchronize(stream);
  return queued.error();
}

}  // namespace

Result<Ticket> launch_plan(PlanRecording& recording, std::span<const Binding> bindings,
                           CuStream stream) {
  if (Status right = check_bindings(recording.plan(), bindings); !right.ok()) return right;
  const ContextScope current(*recording.device(), Act::kLaunch);
  if (!current.status().ok()) return current.status();
  const InFlightLease own(recording.in_flight(), stream);
  if (Status ready = own->prepare(recording.device(), recording.graph(),
                                  recording.tables().size_bytes, Act::kLaunch);
      !ready.ok()) {
    return ready;
  }
  const auto mark = own->take_mark();
  if (!mark.ok()) return mark.error();
  if (own->last) {
    if (Status held = own->last->hold(stream); !held.ok()) return held;
  }
  if (Status queued = queue(recording, bindings, *own, stream); !queued.ok()) return queued;
  const Status placed = mark_end(**mark, stream, recording.device()->driver());
  own->last = placed.ok() ? *mark : nullptr;
  own->last_stream = stream;
  own->tables().end(own->last);
  if (!placed.ok()) return placed;
  return detail::Inside::make<Ticket>(*mark);
}

}  // namespace anabranch::cuda
