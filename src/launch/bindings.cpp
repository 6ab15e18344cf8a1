// SPDX-License-Identifier: Apache-2.0
#include "launch/bindings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>

namespace anabranch::host {
namespace {

// From so many moved slots on, sorting anew beats moving them to their places one by one.
constexpr std::uint32_t kManyMoved = 8;

std::uintptr_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

bool is_before(const SlotExtent& a, const SlotExtent& b) { return a.begin < b.begin; }

Status refuse(std::string message) { return Status(StatusCode::kBadBinding, std::move(message)); }

Status refuse_count(std::size_t given, std::size_t needed) {
  return refuse(
      fmt::format("launch: {} bindings were given, the recording has {} slots. Pass one "
                  "for each of plan().slots(), in that order.",
                  given, needed));
}

template <typename Needs>  // a slot's state, or its buffer
bool is_right(const Needs& needs, const Binding& binding) {
  if (binding.slot != SlotKind::kAddress) return false;
  if (binding.size_bytes < needs.size_bytes) return false;
  if (needs.size_bytes == 0) return true;
  return binding.data && (number_of(binding.data) & (needs.alignment - 1)) == 0;
}

bool fits(const SlotState& slot, const Binding& binding) {
  const bool stayed = binding.data == slot.address && binding.data;
  if (!stayed || binding.slot != SlotKind::kAddress) return is_right(slot, binding);
  return binding.size_bytes >= slot.size_bytes;
}

Status refuse_kind(const Buffer& buffer, std::size_t index, const Binding& binding) {
  constexpr std::string_view kWays[] = {"an address and its bytes", "Binding::number()",
                                        "Binding::table()", "Binding::grid()"};
  const SlotKind needed = slot_kind_of(buffer.role);
  return refuse(fmt::format("launch: binding '{}' (slot {}) is for {}, and {} was given. Pass {}.",
                            printable_text(buffer.name), index, text_of(needed),
                            text_of(binding.slot), kWays[static_cast<std::size_t>(needed)]));
}

Status refuse_misfit(const Buffer& buffer, std::size_t index, const Binding& binding) {
  if (binding.slot != SlotKind::kAddress) return refuse_kind(buffer, index, binding);
  const std::string what =
      fmt::format("launch: binding '{}' (slot {})", printable_text(buffer.name), index);
  if (binding.size_bytes < buffer.size_bytes) {
    return refuse(
        fmt::format("{} has {} bytes, the recording needs {}. Pass a buffer of at least "
                    "{} bytes, or record again for this size.",
                    what, binding.size_bytes, buffer.size_bytes, buffer.size_bytes));
  }
  if (!binding.data) {
    return refuse(fmt::format("{} is null, the recording needs {} bytes. Pass an address.", what,
                              buffer.size_bytes));
  }
  return refuse(
      fmt::format("{} is at {:#x}, the recording needs an address that is a multiple of "
                  "{}. Align the buffer, or declare a smaller alignment.",
                  what, number_of(binding.data), buffer.alignment));
}

double value_of(const Binding& binding) {
  const std::uint64_t word = number_of(binding.data);
  switch (binding.kind) {
    case NumberKind::kF32:
      return std::bit_cast<float>(static_cast<std::uint32_t>(word));
    case NumberKind::kBF16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(word) << 16);
    case NumberKind::kF64:
      return std::bit_cast<double>(word);
    case NumberKind::kI32:
      return static_cast<std::int32_t>(static_cast<std::uint32_t>(word));
    default:
      return static_cast<double>(static_cast<std::int64_t>(word));
  }
}

std::string_view text_of(NumberKind kind) {
  constexpr std::string_view kTexts[] = {"no number", "a float",  "a double",
                                         "an int32",  "an int64", "a bfloat16's bits"};
  const auto at = static_cast<std::size_t>(kind);
  return at < std::size(kTexts) ? kTexts[at] : kTexts[0];
}

Status check_number(const Buffer& buffer, std::size_t index, const Binding& binding) {
  if (binding.kind != buffer.number) {
    return refuse(fmt::format(
        "launch: number '{}' (slot {}) is {}, and {} was given. Pass "
        "Binding::number() of the type that was declared.",
        printable_text(buffer.name), index, text_of(buffer.number), text_of(binding.kind)));
  }
  constexpr double kAny = std::numeric_limits<double>::infinity();
  const double value = value_of(binding);
  const bool is_any = buffer.least == -kAny && buffer.most == kAny;
  if (is_any || (value >= buffer.least && value <= buffer.most)) return {};
  return refuse(
      fmt::format("launch: number '{}' (slot {}) is {}, and was declared to lie between "
                  "{} and {}. Pass one that does, or declare other bounds.",
                  printable_text(buffer.name), index, value, buffer.least, buffer.most));
}

Status check_table(const Buffer& buffer, std::size_t index, const Binding& binding) {
  if (binding.slot != SlotKind::kTable) return refuse_kind(buffer, index, binding);
  if (binding.size_bytes > buffer.size_bytes) {
    return refuse(
        fmt::format("launch: table '{}' (slot {}) was given {} bytes, and was declared "
                    "with {}. Pass no more, or declare a larger one.",
                    printable_text(buffer.name), index, binding.size_bytes, buffer.size_bytes));
  }
  if (binding.data || binding.size_bytes == 0) return {};
  return refuse(
      fmt::format("launch: table '{}' (slot {}) is null, and was given {} bytes. Pass "
                  "their address.",
                  printable_text(buffer.name), index, binding.size_bytes));
}

Status check_grid(const Buffer& buffer, std::size_t index, const Binding& binding) {
  if (binding.slot != SlotKind::kGrid) return refuse_kind(buffer, index, binding);
  const std::uint64_t x = number_of(binding.data) & 0xFFFFFFFF, y = number_of(binding.data) >> 32;
  const auto& most = buffer.most_blocks;
  const auto is_right = [](std::uint64_t blocks, std::uint32_t at_most) {
    return blocks >= 1 && blocks <= at_most;
  };
  if (is_right(x, most[0]) && is_right(y, most[1]) && is_right(binding.size_bytes, most[2])) {
    return {};
  }
  return refuse(fmt::format(
      "launch: grid '{}' (slot {}) is {}x{}x{}, and was declared to lie "
      "between 1x1x1 and {}x{}x{}. Pass one that does, or launch nothing.",
      printable_text(buffer.name), index, x, y, binding.size_bytes, most[0], most[1], most[2]));
}

// Of a slot whose binding is no address.
Status check_value(const Buffer& buffer, std::size_t index, const Binding& binding) {
  switch (buffer.role) {
    case Role::kTable:
      return check_table(buffer, index, binding);
    case Role::kGrid:
      return check_grid(buffer, index, binding);
    default:
      return check_number(buffer, index, binding);
  }
}

Status refuse_overlap(const Program& program, const AddressTable& table, const SlotExtent& a,
                      const SlotExtent& b) {
  const auto name = [&](const SlotExtent& extent) {
    return printable_text(program.buffer(table.slots()[extent.slot].buffer).name);
  };
  const SlotExtent& written = a.written ? a : b;
  return refuse(
      fmt::format("launch: bindings '{}' (slot {}, [{:#x}, {:#x})) and '{}' (slot {}, "
                  "[{:#x}, {:#x})) share bytes, and '{}' is written. Pass buffers that "
                  "lie apart.",
                  name(a), a.slot, a.begin, a.end, name(b), b.slot, b.begin, b.end, name(written)));
}

void sort_extents(std::span<SlotExtent> extents, std::uint32_t moved) {
  if (moved >= kManyMoved) return std::sort(extents.begin(), extents.end(), is_before);
  for (auto next = extents.begin(); next != extents.end(); ++next) {
    const SlotExtent extent = *next;
    auto place = next;
    for (; place != extents.begin() && is_before(extent, place[-1]); --place) *place = place[-1];
    *place = extent;
  }
}

// By ascending address, an extent meets an earlier one if it meets the one that ends last; among
// extents of which one must be written, the written one that ends last matters as well.
Status check_overlaps(const Program& program, AddressTable& table,
                      std::span<const Binding> bindings, std::uint32_t moved) {
  for (SlotExtent& extent : table.extents()) {
    extent.begin = number_of(bindings[extent.slot].data);
    extent.end = extent.begin + table.slots()[extent.slot].size_bytes;
  }
  sort_extents(table.extents(), moved);
  const SlotExtent* last = nullptr;
  const SlotExtent* last_written = nullptr;
  for (const SlotExtent& extent : table.extents()) {
    const SlotExtent* met = extent.written ? last : last_written;
    if (met && extent.begin < met->end) return refuse_overlap(program, table, *met, extent);
    if (!last || extent.end > last->end) last = &extent;
    if (extent.written && (!last_written || extent.end > last_written->end)) {
      last_written = &extent;
    }
  }
  return {};
}

}  // namespace

Status bind_slots(const Program& program, AddressTable& table, std::span<const Binding> bindings) {
  const std::span<const SlotState> slots = table.slots();
  if (bindings.size() != slots.size()) return refuse_count(bindings.size(), slots.size());
  std::uint32_t moved = 0, values = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].kind != SlotKind::kAddress) {
      ++values;
      const Buffer& buffer = program.buffer(slots[i].buffer);
      if (Status right = check_value(buffer, i, bindings[i]); !right.ok()) return right;
      continue;
    }
    if (!fits(slots[i], bindings[i])) {
      return refuse_misfit(program.buffer(slots[i].buffer), i, bindings[i]);
    }
    moved += bindings[i].data != slots[i].address;
  }
  if (moved == 0 && values == 0) return {};
  if (moved != 0) {
    if (Status apart = check_overlaps(program, table, bindings, moved); !apart.ok()) return apart;
  }
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    const SlotKind kind = slots[i].kind;
    if (kind == SlotKind::kNumber || kind == SlotKind::kGrid) {
      table.set_value(i, value_of_slot(bindings[i]));
    } else if (kind == SlotKind::kTable) {
      write_table(bindings[i], table.table(i));
    } else if (bindings[i].data != slots[i].address) {
      table.set(i, bindings[i].data);
    }
  }
  return {};
}

}  // namespace anabranch::host

namespace anabranch {

std::string_view text_of(SlotKind kind) {
  constexpr std::string_view kTexts[] = {"an address", "a number", "a table", "a grid"};
  return kTexts[static_cast<std::size_t>(kind)];
}

std::array<std::uint64_t, 2> value_of_slot(const Binding& binding) {
  const auto word = reinterpret_cast<std::uint64_t>(binding.data);
  return {word, binding.slot == SlotKind::kGrid ? binding.size_bytes : 0};
}

void write_table(const Binding& table, std::span<std::byte> to) {
  const auto given = static_cast<std::size_t>(table.size_bytes);
  if (given != 0) std::memcpy(to.data(), table.data, given);
  std::memset(to.data() + given, 0, to.size() - given);
}

Status check_bindings(const Plan& plan, std::span<const Binding> bindings) {
  const std::span<const Slot> slots = plan.slots();
  if (bindings.size() != slots.size()) return host::refuse_count(bindings.size(), slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Buffer& buffer = plan.program().buffer(slots[i].buffer);
    if (slot_kind_of(buffer.role) != SlotKind::kAddress) {
      if (Status right = host::check_value(buffer, i, bindings[i]); !right.ok()) return right;
      continue;
    }
    if (!host::is_right(buffer, bindings[i])) return host::refuse_misfit(buffer, i, bindings[i]);
  }
  return {};
}

}  // namespace anabranch
