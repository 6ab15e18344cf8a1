// SPDX-License-Identifier: Apache-2.0
#include "null_run.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "input.h"

namespace anabranch::tool {
namespace {

std::int32_t do_nothing(void*, const RegionCall*) { return 0; }

RegionTable make_null_regions(const Program& program) {
  RegionTable regions;
  for (const Step& step : program.steps()) {
    const bool is_region = step.kind == StepKind::kCompute || step.kind == StepKind::kHost;
    if (is_region) regions[step.name] = Region{.function = do_nothing};
  }
  return regions;
}

// A plan file holds names of regions, never code, and this program has none of its own.
Status check_regions(const std::string& path, const RegionTable& needed) {
  constexpr std::size_t kNamed = 10;
  if (needed.empty()) return {};
  std::string names;
  std::size_t count = 0;
  for (const auto& [name, region] : needed) {
    if (count++ < kNamed)
      names += fmt::format("{}'{}'", count > 1 ? ", " : "", printable_text(name));
  }
  return Status(StatusCode::kRegionMissing,
                fmt::format("run '{}': the plan calls {} regions that a file cannot hold: {}{}. "
                            "Use --null-regions to run it with regions that do nothing.",
                            printable_text(path), count, names, count > kNamed ? " and more" : ""));
}

// Alignment counts, since an allocator may take that much to reach it.
Status check_memory(const std::string& path, const Plan& plan, std::uint64_t most_bytes) {
  std::uint64_t left_bytes = most_bytes;
  const auto spend = [&](std::uint64_t bytes) {
    const bool enough = bytes <= left_bytes;
    left_bytes -= std::min(bytes, left_bytes);
    return enough;
  };
  bool enough = spend(plan.arena().size_bytes);
  for (const Slot& slot : plan.slots()) {
    const Buffer& buffer = plan.program().buffer(slot.buffer);
    enough = spend(std::max(buffer.size_bytes, buffer.alignment)) && enough;
  }
  if (enough) return {};
  return Status(
      StatusCode::kLimitExceeded,
      fmt::format("run '{}': arena ({} bytes) and {} buffers of the caller take more than "
                  "{} bytes. Allow more with --max-memory.",
                  printable_text(path), plan.arena().size_bytes, plan.slots().size(), most_bytes));
}

// The number between its bounds that is nearest to zero, or about that where its kind has it not.
Binding some_number(const Buffer& buffer) {
  const double value = std::clamp(0.0, buffer.least, buffer.most);
  switch (buffer.number) {
    case NumberKind::kF32:
      return Binding::number(static_cast<float>(value));
    case NumberKind::kI32:
      return Binding::number(static_cast<std::int32_t>(std::ceil(value)));
    case NumberKind::kI64:
      return Binding::number(static_cast<std::int64_t>(std::ceil(value)));
    case NumberKind::kBF16:
      return Binding::number(static_cast<std::uint16_t>(
          std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
    default:
      return Binding::number(value);
  }
}

// Numbers near zero, tables of zeros, and grids of one block.
Binding bind(const Buffer& buffer, void* memory) {
  switch (slot_kind_of(buffer.role)) {
    case SlotKind::kNumber:
      return some_number(buffer);
    case SlotKind::kTable:
      return Binding::table(memory, buffer.size_bytes);
    case SlotKind::kGrid:
      return Binding::grid(1);
    default:
      return {.data = memory, .size_bytes = buffer.size_bytes};
  }
}

}  // namespace

void NullRun::FreeAligned::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{alignment});
}

Status NullRun::allocate() {
  for (const Slot& slot : recording_.plan().slots()) {
    const Buffer& buffer = recording_.plan().program().buffer(slot.buffer);
    const std::uint64_t alignment = std::max<std::uint64_t>(buffer.alignment, sizeof(void*));
    const std::uint64_t size_bytes = std::max<std::uint64_t>(buffer.size_bytes, 1);
    void* memory = ::operator new (size_bytes, std::align_val_t{alignment}, std::nothrow);
    if (memory == nullptr) {
      return Status(StatusCode::kLimitExceeded,
                    fmt::format("run: no memory for buffer '{}' of {} bytes, alignment {}",
                                printable_text(buffer.name), buffer.size_bytes, buffer.alignment));
    }
    std::memset(memory, 0, size_bytes);
    memory_.emplace_back(static_cast<std::byte*>(memory), FreeAligned{alignment});
    bindings_.push_back(bind(buffer, memory));
  }
  return {};
}

Result<NullRun> NullRun::make(const std::string& path, const RunOptions& options) {
  Result<Plan> plan = read_plan_input(path);
  if (!plan) return plan.error();
  if (Status status = check_memory(path, *plan, options.max_memory_bytes); !status) return status;
  const RegionTable regions = make_null_regions(plan->program());
  if (!options.null_regions) {
    if (Status status = check_regions(path, regions); !status) return status;
  }
  HostOptions host;
  host.max_lanes = options.lanes;
  Result<Recording> recording = record(*plan, Device::host(host), regions);
  if (!recording) return recording.error();
  NullRun run(*std::move(recording));
  if (Status status = run.allocate(); !status) return status;
  return run;
}

Result<LaunchTimes> NullRun::launch_all(std::uint32_t launches) const {
  using Clock = std::chrono::steady_clock;
  LaunchTimes times;
  for (std::uint32_t i = 0; i < launches; ++i) {
    const Clock::time_point begin = Clock::now();
    const Result<Ticket> ticket = launch(recording_, bindings_);
    if (!ticket) return ticket.error();
    times.add(static_cast<std::uint64_t>((Clock::now() - begin).count()));
  }
  return times;
}

}  // namespace anabranch::tool
