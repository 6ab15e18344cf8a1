// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda_bindings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace anabranch::cuda {
namespace {

constexpr std::uint64_t kArenaAlignment = 512;
constexpr std::size_t kChunk = 64;  // sources compared at once

Status bad(const std::string& what) {
  return Status(Code::kBadBinding, fmt::format("launch: {}.", what));
}

// The memory as it takes the place of what the launch before was given. Its order of slots by
// address is kept, so that one that moved is compared with two neighbours and not with all.
class Taker {
 public:
  Taker(const CudaRecording& recording, LaunchMemory& memory)
      : recording_(recording), memory_(memory) {}

  Status take_all(const CudaBindings& bindings);
  Status take_few(const CudaBindings& bindings, const Moved& moved);

 private:
  std::size_t arena() const { return recording_.slots().size(); }
  std::uint64_t at(std::size_t source) const { return memory_.addresses[source]; }
  std::uint64_t bytes(std::size_t source) const {
    return source == arena() ? recording_.arena().size_bytes : recording_.slots()[source].bytes;
  }
  std::uint64_t alignment(std::size_t source) const {
    return source == arena() ? kArenaAlignment : recording_.slots()[source].alignment;
  }
  std::string name(std::size_t source) const {
    return source == arena() ? "the arena" : fmt::format("slot {}", source);
  }
  bool is_before(std::uint32_t a, std::uint32_t b) const { return at(a) < at(b); }

  Status check_place(std::size_t source) const;
  Status check_apart(std::size_t a, std::size_t b) const;
  Status check_neighbours(std::size_t place) const;
  Status check_arena() const;
  std::size_t place_of(std::uint32_t slot) const;
  void move(std::uint32_t slot, std::uint64_t address);

  const CudaRecording& recording_;
  LaunchMemory& memory_;
};

Status Taker::check_place(std::size_t source) const {
  if (bytes(source) == 0) return {};
  if (at(source) != 0 && (at(source) & (alignment(source) - 1)) == 0) return {};
  return bad(
      fmt::format("{} is at {:#x} and must be aligned to {}, as it was captured. Kernels may "
                  "rely on it: copy the tensor to fresh memory",
                  name(source), at(source), alignment(source)));
}

Status Taker::check_apart(std::size_t a, std::size_t b) const {
  const std::uint64_t end_a = at(a) + bytes(a), end_b = at(b) + bytes(b);
  if (at(a) >= end_b || at(b) >= end_a) return {};
  return bad(
      fmt::format("{} and {} share bytes ({:#x} to {:#x}, {:#x} to {:#x}). Copy one of the "
                  "two tensors",
                  name(a), name(b), at(a), end_a, at(b), end_b));
}

Status Taker::check_neighbours(std::size_t place) const {
  const auto& order = memory_.order;
  if (place > 0) {
    if (Status apart = check_apart(order[place - 1], order[place]); !apart.ok()) return apart;
  }
  return place + 1 < order.size() ? check_apart(order[place], order[place + 1]) : Status();
}

// No two slots overlap, so only the last that begins before the arena's end can reach into it.
Status Taker::check_arena() const {
  if (bytes(arena()) == 0) return {};
  const std::uint64_t end = at(arena()) + bytes(arena());
  const auto& order = memory_.order;
  const auto behind = std::partition_point(order.begin(), order.end(),
                                           [&](std::uint32_t slot) { return at(slot) < end; });
  return behind == order.begin() ? Status() : check_apart(*std::prev(behind), arena());
}

Status Taker::take_all(const CudaBindings& bindings) {
  std::copy(bindings.slots.begin(), bindings.slots.end(), memory_.addresses.begin());
  memory_.addresses.back() = bindings.arena;
  for (std::size_t source = 0; source <= arena(); ++source) {
    if (Status placed = check_place(source); !placed.ok()) return placed;
  }
  auto& order = memory_.order;
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return is_before(a, b); };
  // Tensors that are allocated in turn keep their order.
  if (!std::is_sorted(order.begin(), order.end(), before)) {
    std::sort(order.begin(), order.end(), before);
  }
  for (std::size_t place = 1; place < order.size(); ++place) {
    if (Status apart = check_apart(order[place - 1], order[place]); !apart.ok()) return apart;
  }
  return check_arena();
}

Status Taker::take_few(const CudaBindings& bindings, const Moved& moved) {
  for (const std::uint32_t source : moved.list()) {
    if (source == arena() || bytes(source) == 0) {
      memory_.addresses[source] = source == arena() ? bindings.arena : bindings.slots[source];
    } else {
      move(source, bindings.slots[source]);
    }
    if (Status placed = check_place(source); !placed.ok()) return placed;
  }
  for (const std::uint32_t source : moved.list()) {
    if (source == arena() || bytes(source) == 0) continue;
    if (Status apart = check_neighbours(place_of(source)); !apart.ok()) return apart;
  }
  return check_arena();
}

std::size_t Taker::place_of(std::uint32_t slot) const {
  const auto& order = memory_.order;
  auto place = std::partition_point(order.begin(), order.end(),
                                    [&](std::uint32_t other) { return is_before(other, slot); });
  return static_cast<std::size_t>(std::find(place, order.end(), slot) - order.begin());
}

void Taker::move(std::uint32_t slot, std::uint64_t address) {
  auto& order = memory_.order;
  const auto from = order.begin() + static_cast<std::ptrdiff_t>(place_of(slot));
  memory_.addresses[slot] = address;
  const auto is_lower = [&](std::uint32_t other) { return at(other) < address; };
  const auto left = std::partition_point(order.begin(), from, is_lower);
  if (left != from) {
    std::rotate(left, from, from + 1);
  } else {
    std::rotate(from, from + 1, std::partition_point(from + 1, order.end(), is_lower));
  }
}

Moved find_moved(const CudaRecording& recording, const CudaBindings& bindings,
                 const LaunchMemory& memory) {
  Moved moved;
  const auto note = [&](std::size_t source) {
    moved.nodes += recording.node_count(source);
    if (moved.count == Moved::kMost) return ++moved.count, false;
    moved.sources[moved.count++] = static_cast<std::uint32_t>(source);
    return true;
  };
  const auto* given = bindings.slots.data();
  const auto* known = memory.addresses.data();
  const std::size_t count = bindings.slots.size();
  for (std::size_t begin = 0; begin < count; begin += kChunk) {
    const std::size_t end = std::min(begin + kChunk, count);
    if (std::memcmp(given + begin, known + begin, (end - begin) * sizeof *given) == 0) continue;
    for (std::size_t i = begin; i < end; ++i) {
      if (given[i] != known[i] && !note(i)) return moved;
    }
  }
  if (bindings.arena != memory.addresses.back()) note(count);
  return moved;
}

}  // namespace

Result<Moved> take_bindings(const CudaRecording& recording, const CudaBindings& bindings,
                            LaunchMemory& memory) {
  if (bindings.slots.size() != recording.slots().size()) {
    return bad(
        fmt::format("{} addresses for {} slots", bindings.slots.size(), recording.slots().size()));
  }
  const Moved moved = find_moved(recording, bindings, memory);
  const bool next_to_nothing = !moved.is_many() && moved.nodes <= recording.options().few_nodes;
  memory.repeats = next_to_nothing ? memory.repeats + 1 : 0;
  if (moved.count == 0) return moved;
  Taker taker(recording, memory);
  const Status taken = moved.is_many() || !memory.is_known ? taker.take_all(bindings)
                                                           : taker.take_few(bindings, moved);
  if (!taken.ok()) {
    memory.forget();
    return taken;
  }
  memory.is_known = true;
  return moved;
}

}  // namespace anabranch::cuda
