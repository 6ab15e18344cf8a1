// SPDX-License-Identifier: Apache-2.0
#include "plan/waits_oracle.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace anabranch {
namespace {

Relation empty_relation(std::size_t size) { return Relation(size, std::vector<bool>(size, false)); }

// A bit a byte.
using Bits = std::vector<std::uint64_t>;

Bits pack(const std::vector<bool>& bytes) {
  Bits bits((bytes.size() + 63) / 64, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bits[i / 64] |= std::uint64_t{bytes[i]} << (i % 64);
  }
  return bits;
}

bool share_a_byte(const Bits& a, const Bits& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if ((a[i] & b[i]) != 0) return true;
  }
  return false;
}

// The bytes of each access of each step.
std::vector<std::vector<Bits>> bits_of(const Program& program) {
  std::vector<std::vector<Bits>> all;
  for (const Step& step : program.steps()) {
    std::vector<Bits>& of_step = all.emplace_back();
    for (const Access& access : step.accesses) {
      const std::uint64_t size = program.buffer(access.view.buffer).size_bytes;
      of_step.push_back(pack(bytes_of(access.view, size)));
    }
  }
  return all;
}

bool conflict(const Step& a, const std::vector<Bits>& bytes_a, const Step& b,
              const std::vector<Bits>& bytes_b) {
  for (std::size_t i = 0; i < a.accesses.size(); ++i) {
    for (std::size_t k = 0; k < b.accesses.size(); ++k) {
      const Access& x = a.accesses[i];
      const Access& y = b.accesses[k];
      if (x.view.buffer != y.view.buffer) continue;
      if (x.mode == AccessMode::kRead && y.mode == AccessMode::kRead) continue;
      if (share_a_byte(bytes_a[i], bytes_b[k])) return true;
    }
  }
  return false;
}

// Whether `wait` waits for `record`: no later record of the event lies between.
bool binds(const Program& program, std::size_t record, std::size_t wait) {
  const Step& a = program.steps()[record];
  const Step& b = program.steps()[wait];
  if (a.kind != StepKind::kRecordEvent || b.kind != StepKind::kWaitEvent) return false;
  if (a.event != b.event) return false;
  for (std::size_t i = record + 1; i < wait; ++i) {
    const Step& between = program.steps()[i];
    if (between.kind == StepKind::kRecordEvent && between.event == a.event) return false;
  }
  return true;
}

void add_bytes(const View& view, std::size_t dim, std::int64_t at, std::vector<bool>& bytes) {
  if (dim == view.dims.size()) {
    for (std::uint64_t i = 0; i < view.item_bytes; ++i)
      bytes[static_cast<std::size_t>(at) + i] = true;
    return;
  }
  for (std::uint64_t i = 0; i < view.dims[dim].size; ++i) {
    add_bytes(view, dim + 1, at + static_cast<std::int64_t>(i) * view.dims[dim].stride_bytes,
              bytes);
  }
}

}  // namespace

std::vector<bool> bytes_of(const View& view, std::uint64_t size_bytes) {
  std::vector<bool> bytes(size_bytes, false);
  add_bytes(view, 0, static_cast<std::int64_t>(view.offset_bytes), bytes);
  return bytes;
}

Relation find_needs(const Program& program) {
  const std::span<const Step> steps = program.steps();
  const std::vector<std::vector<Bits>> bits = bits_of(program);
  Relation needs = empty_relation(steps.size());
  for (std::size_t b = 0; b < steps.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      needs[a][b] = steps[a].kind == StepKind::kSynchronize || binds(program, a, b) ||
                    conflict(steps[a], bits[a], steps[b], bits[b]);
    }
  }
  return needs;
}

Relation find_stream_order(const Program& program, std::span<const StepId> order) {
  Relation relation = empty_relation(order.size());
  for (std::size_t b = 0; b < order.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (program.step(order[a]).stream != program.step(order[b]).stream) continue;
      relation[index_of(order[a])][index_of(order[b])] = true;
    }
  }
  return relation;
}

Relation relation_of(const Program& program, std::span<const Wait> waits) {
  Relation relation = empty_relation(program.steps().size());
  for (const Wait& wait : waits) relation[index_of(wait.on)][index_of(wait.step)] = true;
  return relation;
}

Relation join(const Relation& a, const Relation& b) {
  Relation joined = a;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < a.size(); ++k) {
      if (b[i][k]) joined[i][k] = true;
    }
  }
  return joined;
}

Relation closure_of(Relation relation) {
  const std::size_t size = relation.size();
  for (std::size_t k = 0; k < size; ++k) {
    for (std::size_t i = 0; i < size; ++i) {
      if (!relation[i][k]) continue;
      for (std::size_t j = 0; j < size; ++j) {
        if (relation[k][j]) relation[i][j] = true;
      }
    }
  }
  return relation;
}

std::vector<Wait> reduction_of(const Program& program, std::span<const StepId> order,
                               const Relation& closure) {
  const std::size_t size = order.size();
  const auto implied = [&](std::size_t a, std::size_t b) {
    for (std::size_t k = 0; k < size; ++k) {
      if (closure[a][k] && closure[k][b]) return true;
    }
    return false;
  };
  std::vector<Wait> waits;
  for (const StepId step : order) {
    const std::size_t first = waits.size();
    for (std::uint32_t on = 0; on < size; ++on) {
      if (!closure[on][index_of(step)] || implied(on, index_of(step))) continue;
      if (program.steps()[on].stream != program.step(step).stream)
        waits.push_back({step, StepId{on}});
    }
    std::sort(waits.begin() + static_cast<std::ptrdiff_t>(first), waits.end(),
              [&](const Wait& x, const Wait& y) {
                return program.step(x.on).stream < program.step(y.on).stream;
              });
  }
  return waits;
}

}  // namespace anabranch
