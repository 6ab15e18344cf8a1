// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda_bindings.h"

#include <fmt/format.h>

#include <algorithm>

#include "launch/address_checks.h"
#include "launch/address_order.h"
#include "record/cuda/exec/differences.h"

namespace anabranch::cuda {
namespace {

Status bad(const std::string& what) {
  return Status(StatusCode::kBadBinding, fmt::format("launch: {}.", what));
}

// The memory as it takes the place of what the launch before was given. Its order of sources by
// address is kept, so that one that moved is compared with two neighbours and not with all.
//
// take_few() and take_all() only say whether they saw that all is right. Where they did not,
// check() looks again and words what is wrong, if something is.
class Taker {
 public:
  Taker(const CudaRecording& recording, std::span<const std::uint64_t> given, LaunchMemory& memory)
      : given_(given),
        slots_(recording.slots().size()),
        rules_(recording.source_rules()),
        memory_(memory) {}

  bool take_few(std::span<const std::uint32_t> moved);
  bool take_all();
  Status check();

 private:
  std::uint64_t at(std::size_t source) const { return memory_.addresses[source]; }
  std::string name(std::size_t source) const {
    return source < slots_ ? fmt::format("slot {}", source)
                           : fmt::format("arena part {}", source - slots_);
  }

  bool is_misplaced(std::size_t source) const {
    return rules_[source].bytes() != 0 &&
           (at(source) == 0 || (at(source) & rules_[source].mask()) != 0);
  }
  // Of two that have bytes.
  bool do_share(std::size_t a, std::size_t b) const {
    if (at(a) > at(b)) std::swap(a, b);
    return at(b) - at(a) < rules_[a].bytes();
  }
  bool is_apart(std::size_t place) const;
  Placed take_in_known_order();
  void sort();
  std::size_t place_of(std::uint32_t source) const;
  void move(std::uint32_t source, std::uint64_t address);
  Status misplaced(std::size_t source) const;
  Status shared(std::size_t a, std::size_t b) const;

  const std::span<const std::uint64_t> given_;
  const std::size_t slots_;
  const std::span<const SourceRule> rules_;
  LaunchMemory& memory_;
};

bool Taker::take_few(std::span<const std::uint32_t> moved) {
  for (const std::uint32_t source : moved) {
    if (rules_[source].bytes() == 0) {
      memory_.addresses[source] = given_[source];
    } else {
      move(source, given_[source]);
    }
    if (is_misplaced(source)) return false;
  }
  return std::all_of(moved.begin(), moved.end(), [&](std::uint32_t source) {
    return rules_[source].bytes() == 0 || is_apart(place_of(source));
  });
}

bool Taker::take_all() {
  Placed how = take_in_known_order();
  if (how == Placed::kInDisorder) {
    sort();
    how = take_in_known_order();
  }
  return how == Placed::kRight;
}

// Tensors that are allocated in turn keep their order, and slots are numbered in it.
Placed Taker::take_in_known_order() {
  auto* const to = memory_.addresses.data();
  return memory_.is_in_turn
             ? take_in_turn(given_, rules_.data(), to, memory_.next_table)
             : take_in_order(given_, rules_.data(), memory_.order, to, memory_.next_table);
}

// Whether the source at this place in the order shares nothing with its neighbours.
bool Taker::is_apart(std::size_t place) const {
  const auto& order = memory_.order;
  return (place == 0 || !do_share(order[place - 1], order[place])) &&
         (place + 1 == order.size() || !do_share(order[place], order[place + 1]));
}

void Taker::sort() {
  auto& order = memory_.order;
  sort_by_address(memory_.addresses, order, memory_.spare);
  memory_.is_in_turn = order.size() == given_.size() && std::is_sorted(order.begin(), order.end());
}

// Sources at one address stand by number, so that the same two are named whatever came before.
Status Taker::check() {
  std::copy(given_.begin(), given_.end(), memory_.addresses.begin());
  for (std::size_t source = 0; source < given_.size(); ++source) {
    if (is_misplaced(source)) return misplaced(source);
  }
  auto& order = memory_.order;
  std::sort(order.begin(), order.end());
  sort();
  for (std::size_t place = 1; place < order.size(); ++place) {
    if (do_share(order[place - 1], order[place])) return shared(order[place - 1], order[place]);
  }
  return {};
}

Status Taker::misplaced(std::size_t source) const {
  return bad(
      fmt::format("{} is at {:#x} and must be aligned to {}, as it was captured. Kernels may "
                  "rely on it: copy the tensor to fresh memory",
                  name(source), at(source), rules_[source].mask() + 1));
}

Status Taker::shared(std::size_t a, std::size_t b) const {
  return bad(fmt::format(
      "{} and {} share bytes ({:#x} to {:#x}, {:#x} to {:#x}). Copy one of the "
      "two tensors",
      name(a), name(b), at(a), at(a) + rules_[a].bytes(), at(b), at(b) + rules_[b].bytes()));
}

std::size_t Taker::place_of(std::uint32_t source) const {
  const auto& order = memory_.order;
  auto place = std::partition_point(order.begin(), order.end(),
                                    [&](std::uint32_t other) { return at(other) < at(source); });
  return static_cast<std::size_t>(std::find(place, order.end(), source) - order.begin());
}

void Taker::move(std::uint32_t source, std::uint64_t address) {
  auto& order = memory_.order;
  const auto from = order.begin() + static_cast<std::ptrdiff_t>(place_of(source));
  memory_.addresses[source] = address;
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

Moved find_moved(const CudaRecording& recording, std::span<const std::uint64_t> given,
                 const LaunchMemory& memory) {
  Moved moved;
  for_each_difference(given, memory.addresses, [&](std::size_t source) {
    moved.nodes += recording.node_count(source);
    moved.sources.add(source);
    return !moved.sources.are_many();
  });
  return moved;
}

Moved moved_since(const CudaRecording& recording, const SinceLaunch& since) {
  Moved moved{since.moved};
  if (moved.sources.are_many()) return moved;
  for (const std::uint32_t source : moved.sources.list()) {
    moved.nodes += recording.node_count(source);
  }
  return moved;
}

}  // namespace

Result<Moved> take_bindings(const CudaRecording& recording,
                            std::span<const std::uint64_t> addresses, LaunchMemory& memory,
                            SinceLaunch* since) {
  if (addresses.size() != recording.source_rules().size()) {
    return bad(fmt::format("{} addresses for {} slots, {} arena parts and {} numbers",
                           addresses.size(), recording.slots().size(),
                           recording.part_bytes().size(), recording.numbers().size()));
  }
  const bool is_told = since && since->memory == &memory && since->number == memory.launches;
  ++memory.launches;
  const Moved moved =
      is_told ? moved_since(recording, *since) : find_moved(recording, addresses, memory);
  const bool are_many = moved.sources.are_many();
  const bool next_to_nothing = !are_many && moved.nodes <= recording.options().few_nodes;
  memory.repeats = next_to_nothing ? memory.repeats + 1 : 0;
  if (moved.sources.count() != 0 || !memory.is_known) {
    Taker taker(recording, addresses, memory);
    const bool is_few = memory.is_known && !are_many;
    if (!(is_few ? taker.take_few(moved.sources.list()) : taker.take_all())) {
      if (Status right = taker.check(); !right.ok()) {
        memory.forget();
        return right;
      }
    }
    memory.is_known = true;
  }
  if (since) *since = {{}, &memory, memory.launches};
  return moved;
}

}  // namespace anabranch::cuda
