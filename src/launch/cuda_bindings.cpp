// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda_bindings.h"

#include <fmt/format.h>

#include <algorithm>

#include "launch/address_order.h"
#include "record/differences.h"

namespace anabranch::cuda {
namespace {

Status bad(const std::string& what) {
  return Status(Code::kBadBinding, fmt::format("launch: {}.", what));
}

constexpr int kTopBit = 63;

// Loops without a branch, over a launch as it should be. Addresses and their ends lie in the lower
// half of the numbers, so that the top bit of a difference says which of two is the greater; what
// does not is left to the careful way.

// Answers zero where no address has a bit of its mask, nor the top bit.
std::uint64_t copy_all(std::span<const std::uint64_t> from, const std::uint64_t* masks,
                       std::uint64_t* to) {
  const std::size_t count = from.size();
  std::uint64_t wrong = 0, any = 0;
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = from[i];
    wrong |= from[i] & masks[i];
    any |= from[i];
  }
  return wrong | (any >> kTopBit);
}

// Whether each slot begins where the one before it in this order ends, or later. Then none but the
// first can be null.
bool is_in_order(std::span<const std::uint32_t> order, const std::uint64_t* addresses,
                 const std::uint64_t* bytes) {
  std::uint64_t end = 1, wrong = 0;
  for (const std::uint32_t slot : order) {
    wrong |= addresses[slot] - end;
    end = addresses[slot] + bytes[slot];
    wrong |= end;
  }
  return wrong >> kTopBit == 0;
}

// The same where the order is that of their numbers.
bool is_in_turn(std::size_t count, const std::uint64_t* addresses, const std::uint64_t* bytes) {
  std::uint64_t wrong = addresses[0] - 1;
  for (std::size_t i = 1; i < count; ++i) {
    const std::uint64_t end = addresses[i - 1] + bytes[i - 1];
    wrong |= end | (addresses[i] - end);
  }
  return wrong >> kTopBit == 0;
}

// The memory as it takes the place of what the launch before was given. Its order of slots by
// address is kept, so that one that moved is compared with two neighbours and not with all.
//
// take_few() and take_all() only say whether they saw that all is right. Where they did not,
// check() looks again and words what is wrong, if something is.
class Taker {
 public:
  Taker(const CudaRecording& recording, const CudaBindings& bindings, LaunchMemory& memory)
      : bindings_(bindings),
        bytes_(recording.source_bytes()),
        masks_(recording.source_masks()),
        memory_(memory) {}

  bool take_few(std::span<const std::uint32_t> moved);
  bool take_all();
  Status check();

 private:
  std::size_t arena() const { return bindings_.slots.size(); }
  std::uint64_t given(std::size_t source) const {
    return source == arena() ? bindings_.arena : bindings_.slots[source];
  }
  std::uint64_t at(std::size_t source) const { return memory_.addresses[source]; }
  std::string name(std::size_t source) const {
    return source == arena() ? "the arena" : fmt::format("slot {}", source);
  }

  bool is_misplaced(std::size_t source) const {
    return bytes_[source] != 0 && (at(source) == 0 || (at(source) & masks_[source]) != 0);
  }
  // Of two that have bytes.
  bool do_share(std::size_t a, std::size_t b) const {
    if (at(a) > at(b)) std::swap(a, b);
    return at(b) - at(a) < bytes_[a];
  }
  bool is_apart(std::size_t place) const;
  bool are_slots_in_order() const;
  void sort_slots();
  std::size_t slot_at_arena() const;
  std::size_t place_of(std::uint32_t slot) const;
  void move(std::uint32_t slot, std::uint64_t address);
  Status misplaced(std::size_t source) const;
  Status shared(std::size_t a, std::size_t b) const;

  const CudaBindings& bindings_;
  const std::span<const std::uint64_t> bytes_, masks_;
  LaunchMemory& memory_;
};

bool Taker::take_few(std::span<const std::uint32_t> moved) {
  for (const std::uint32_t source : moved) {
    if (source == arena() || bytes_[source] == 0) {
      memory_.addresses[source] = given(source);
    } else {
      move(source, given(source));
    }
    if (is_misplaced(source)) return false;
  }
  for (const std::uint32_t source : moved) {
    if (source != arena() && bytes_[source] != 0 && !is_apart(place_of(source))) return false;
  }
  return slot_at_arena() == arena();
}

bool Taker::take_all() {
  auto& addresses = memory_.addresses;
  const std::uint64_t wrong = copy_all(bindings_.slots, masks_.data(), addresses.data());
  addresses.back() = bindings_.arena;
  if (wrong != 0 || is_misplaced(arena())) return false;
  if (!are_slots_in_order()) {
    sort_slots();
    if (!are_slots_in_order()) return false;
  }
  return slot_at_arena() == arena();
}

// Tensors that are allocated in turn keep their order, and slots are numbered in it.
bool Taker::are_slots_in_order() const {
  const auto* const addresses = memory_.addresses.data();
  return memory_.is_in_turn ? is_in_turn(arena(), addresses, bytes_.data())
                            : is_in_order(memory_.order, addresses, bytes_.data());
}

// Whether the slot at this place in the order shares nothing with its neighbours.
bool Taker::is_apart(std::size_t place) const {
  const auto& order = memory_.order;
  return (place == 0 || !do_share(order[place - 1], order[place])) &&
         (place + 1 == order.size() || !do_share(order[place], order[place + 1]));
}

// A slot that shares bytes with the arena, or the arena where there is none. No two slots share
// any, so only the last that begins before the arena's end can reach into it.
std::size_t Taker::slot_at_arena() const {
  if (bytes_[arena()] == 0) return arena();
  const std::uint64_t end = at(arena()) + bytes_[arena()];
  const auto& order = memory_.order;
  const auto behind = std::partition_point(order.begin(), order.end(),
                                           [&](std::uint32_t slot) { return at(slot) < end; });
  if (behind == order.begin() || !do_share(*std::prev(behind), arena())) return arena();
  return *std::prev(behind);
}

void Taker::sort_slots() {
  auto& order = memory_.order;
  sort_by_address(memory_.addresses, order, memory_.spare);
  memory_.is_in_turn = order.size() == arena() && std::is_sorted(order.begin(), order.end());
}

// Slots at one address stand by number, so that the same two are named whatever came before.
Status Taker::check() {
  std::copy(bindings_.slots.begin(), bindings_.slots.end(), memory_.addresses.begin());
  memory_.addresses.back() = bindings_.arena;
  for (std::size_t source = 0; source <= arena(); ++source) {
    if (is_misplaced(source)) return misplaced(source);
  }
  auto& order = memory_.order;
  std::sort(order.begin(), order.end());
  sort_slots();
  for (std::size_t place = 1; place < order.size(); ++place) {
    if (do_share(order[place - 1], order[place])) return shared(order[place - 1], order[place]);
  }
  const std::size_t slot = slot_at_arena();
  return slot == arena() ? Status() : shared(slot, arena());
}

Status Taker::misplaced(std::size_t source) const {
  return bad(
      fmt::format("{} is at {:#x} and must be aligned to {}, as it was captured. Kernels may "
                  "rely on it: copy the tensor to fresh memory",
                  name(source), at(source), masks_[source] + 1));
}

Status Taker::shared(std::size_t a, std::size_t b) const {
  return bad(
      fmt::format("{} and {} share bytes ({:#x} to {:#x}, {:#x} to {:#x}). Copy one of the "
                  "two tensors",
                  name(a), name(b), at(a), at(a) + bytes_[a], at(b), at(b) + bytes_[b]));
}

std::size_t Taker::place_of(std::uint32_t slot) const {
  const auto& order = memory_.order;
  auto place = std::partition_point(order.begin(), order.end(),
                                    [&](std::uint32_t other) { return at(other) < at(slot); });
  return static_cast<std::size_t>(std::find(place, order.end(), slot) - order.begin());
}

void Taker::move(std::uint32_t slot, std::uint64_t address) {
  auto& order = memory_.order;
  const auto from = order.begin() + static_cast<std::ptrdiff_t>(place_of(slot));
  memory_.addresses[slot] = address;
  const auto is_lower = [&](std::uint32_t other) { return at(other) < address; };
  const auto left = std::partition_point(order.begin(), from, is_lower);
  const auto right = std::partition_point(from + 1, order.end(), is_lower);
  if (left != from) {
    std::rotate(left, from, from + 1);
  } else {
    std::rotate(from, from + 1, right);
  }
  memory_.is_in_turn &= left == from && right == from + 1;
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
  const std::size_t arena = bindings.slots.size();
  for_each_difference(bindings.slots, std::span(memory.addresses).first(arena), note);
  if (!moved.is_many() && bindings.arena != memory.addresses.back()) note(arena);
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
  if (moved.count == 0 && memory.is_known) return moved;
  Taker taker(recording, bindings, memory);
  const bool is_few = memory.is_known && !moved.is_many();
  if (!(is_few ? taker.take_few(moved.list()) : taker.take_all())) {
    if (Status right = taker.check(); !right.ok()) {
      memory.forget();
      return right;
    }
  }
  memory.is_known = true;
  return moved;
}

}  // namespace anabranch::cuda
