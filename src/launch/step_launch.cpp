// SPDX-License-Identifier: Apache-2.0
#include "launch/step_launch.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <vector>

#include "base/inside.h"
#include "device/cuda/context_scope.h"
#include "launch/bindings.h"
#include "launch/cuda_launch.h"

namespace anabranch::cuda {
namespace {

constexpr std::size_t kOnStack = 256;

// What is asked of sizes; cuda::launch() asks what it does of addresses.
Status check_sizes(const CudaRecording& graph, std::span<const Binding> bindings) {
  for (std::size_t i = 0; i < bindings.size(); ++i) {
    const SlotKind kind = bindings[i].slot;
    if (kind == SlotKind::kAddress || kind == SlotKind::kNumber) continue;
    return Status(StatusCode::kBadBinding,
                  fmt::format("launch: {} was given for slot {}, and captured steps have addresses "
                              "and numbers alone. Pass an address, or record a plan.",
                              text_of(kind), i));
  }
  const auto rules = graph.source_rules();
  const std::size_t slots = graph.slots().size();
  const std::size_t memory = rules.size() - graph.numbers().size();
  if (bindings.size() != rules.size()) {
    return Status(StatusCode::kBadBinding,
                  fmt::format("launch: {} bindings were given, the recording has {} slots, {} "
                              "arena parts and {} numbers. Pass one for each, in that order.",
                              bindings.size(), slots, memory - slots, graph.numbers().size()));
  }
  for (std::size_t i = memory; i < rules.size(); ++i) {
    const std::uint32_t bytes = graph.numbers()[i - memory].bytes;
    if (bindings[i].size_bytes == bytes) continue;
    return Status(StatusCode::kBadBinding,
                  fmt::format("launch: number {} takes {} bytes, and {} were given. Pass a number "
                              "of the type that the kernel takes (Binding::number).",
                              i - memory, bytes, bindings[i].size_bytes));
  }
  for (std::size_t i = 0; i < memory; ++i) {
    if (bindings[i].size_bytes >= rules[i].bytes()) continue;
    const std::string what =
        i < slots ? fmt::format("slot {}", i) : fmt::format("arena part {}", i - slots);
    return Status(StatusCode::kBadBinding,
                  fmt::format("launch: the binding of {} has {} bytes, the recording needs {}. "
                              "Pass a buffer of at least {} bytes.",
                              what, bindings[i].size_bytes, rules[i].bytes(), rules[i].bytes()));
  }
  return {};
}

void write_addresses(std::span<const Binding> bindings, std::span<std::uint64_t> addresses) {
  for (std::size_t i = 0; i < bindings.size(); ++i) {
    addresses[i] = reinterpret_cast<std::uint64_t>(bindings[i].data);
  }
}

Result<Repoint> queue(StepRecording& step, std::span<const Binding> bindings, CuStream stream) {
  if (bindings.size() <= kOnStack) {
    std::array<std::uint64_t, kOnStack> room;
    const auto addresses = std::span(room).first(bindings.size());
    write_addresses(bindings, addresses);
    return launch(step.graph(), addresses, stream);
  }
  std::vector<std::uint64_t> addresses(bindings.size());
  write_addresses(bindings, addresses);
  return launch(step.graph(), addresses, stream);
}

}  // namespace

Result<Ticket> launch_step(StepRecording& step, std::span<const Binding> bindings,
                           CuStream stream) {
  if (Status right = check_sizes(step.graph(), bindings); !right.ok()) return right;
  const ContextScope current(*step.device(), Act::kLaunch);
  if (!current.status().ok()) return current.status();
  const auto mark = step.take_mark();
  if (!mark.ok()) return mark.error();
  const auto queued = queue(step, bindings, stream);
  if (!queued.ok()) return queued.error();
  if (Status placed = mark_end(**mark, stream, step.device()->driver()); !placed.ok()) {
    return placed;
  }
  return detail::Inside::make<Ticket>(*mark);
}

}  // namespace anabranch::cuda
