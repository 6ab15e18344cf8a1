// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_parts.h"

#include <fmt/format.h>

#include <utility>

namespace anabranch {
namespace {

template <typename... Values>
Status invalid(fmt::format_string<Values...> text, Values&&... values) {
  return Status(StatusCode::kPlanInvalid,
                "plan: " + fmt::format(text, std::forward<Values>(values)...));
}

using Positions = std::vector<std::uint32_t>;
constexpr std::uint32_t kNowhere = ~0u;

Status check_order(const Program& program, std::span<const StepId> order, Positions& positions) {
  const std::size_t count = program.steps().size();
  if (order.size() != count) {
    return invalid("the order has {} steps, the program {}; name every step once", order.size(),
                   count);
  }
  positions.assign(count, kNowhere);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t step = index_of(order[i]);
    if (step >= count) {
      return invalid("place {} of the order names step {}, the program has {}; name a step of it",
                     i, step, count);
    }
    if (positions[step] != kNowhere) {
      return invalid("the order names step {} at places {} and {}; name every step once", step,
                     positions[step], i);
    }
    positions[step] = i;
  }
  return {};
}

Status check_wait(const Program& program, const Wait& wait, const Positions& positions) {
  const std::uint32_t step = index_of(wait.step);
  const std::uint32_t on = index_of(wait.on);
  if (step >= positions.size() || on >= positions.size()) {
    return invalid("step {} waits for step {}, the program has {}; name steps of it", step, on,
                   positions.size());
  }
  if (program.step(wait.step).stream == program.step(wait.on).stream) {
    return invalid("step {} waits for step {} of its own stream {}; leave the wait out", step, on,
                   index_of(program.step(wait.on).stream));
  }
  if (positions[on] > positions[step]) {
    return invalid(
        "step {} at place {} waits for step {} at place {} of the order; a wait must "
        "point backwards",
        step, positions[step], on, positions[on]);
  }
  return {};
}

Status check_waits(const Program& program, std::span<const Wait> waits,
                   const Positions& positions) {
  const auto key = [&](const Wait& wait) {
    return std::pair(positions[index_of(wait.step)], program.step(wait.on).stream);
  };
  for (std::size_t i = 0; i < waits.size(); ++i) {
    if (Status status = check_wait(program, waits[i], positions); !status) return status;
    if (i == 0 || key(waits[i - 1]) < key(waits[i])) continue;
    return invalid(
        "wait {} (step {} for step {}) comes after wait {} (step {} for step {}); sort "
        "by place of the step, then by stream waited for, one wait for each",
        i, index_of(waits[i].step), index_of(waits[i].on), i - 1, index_of(waits[i - 1].step),
        index_of(waits[i - 1].on));
  }
  return {};
}

std::vector<bool> find_used_buffers(const Program& program) {
  std::vector<bool> used(program.buffers().size(), false);
  for (const Step& step : program.steps()) {
    for (const Access& access : step.accesses) used[index_of(access.view.buffer)] = true;
  }
  return used;
}

Status check_place(std::size_t number, const Buffer& buffer, bool used, const ArenaLayout& arena) {
  const std::uint64_t offset = arena.offsets[number];
  if (offset == kNotInArena) {
    if (buffer.role != Role::kTemporary || !used) return {};
    return invalid("temporary {} '{}' of {} bytes has no place in the arena; give it one", number,
                   printable_text(buffer.name), buffer.size_bytes);
  }
  if (buffer.role != Role::kTemporary) {
    return invalid(
        "buffer {} '{}' of the caller is at arena offset {}; only temporaries live there", number,
        printable_text(buffer.name), offset);
  }
  if (offset > arena.size_bytes || buffer.size_bytes > arena.size_bytes - offset) {
    return invalid(
        "temporary {} '{}' of {} bytes at offset {} leaves the arena of {} bytes; "
        "enlarge the arena",
        number, printable_text(buffer.name), buffer.size_bytes, offset, arena.size_bytes);
  }
  if (offset % buffer.alignment != 0) {
    return invalid("temporary {} '{}' is at offset {}, no multiple of its alignment {}; move it",
                   number, printable_text(buffer.name), offset, buffer.alignment);
  }
  return {};
}

Status check_arena(const Program& program, const ArenaLayout& arena) {
  const std::size_t count = program.buffers().size();
  if (arena.offsets.size() != count) {
    return invalid("the arena has {} offsets, the program {} buffers; give one for each",
                   arena.offsets.size(), count);
  }
  if (arena.size_bytes > kMaxTotalBytes) {
    return invalid("the arena has {} bytes, the limit is {}; make it smaller", arena.size_bytes,
                   kMaxTotalBytes);
  }
  const std::vector<bool> used = find_used_buffers(program);
  for (std::size_t i = 0; i < count; ++i) {
    const Status status = check_place(i, program.buffers()[i], used[i], arena);
    if (!status) return status;
  }
  return {};
}

}  // namespace

Status check_parts(const Program& program, const PlanParts& parts) {
  Positions positions;
  if (Status status = check_order(program, parts.order, positions); !status) return status;
  if (Status status = check_waits(program, parts.waits, positions); !status) return status;
  return check_arena(program, parts.arena);
}

}  // namespace anabranch
