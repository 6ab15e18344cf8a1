// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/plan/plan_units.h"

#include <fmt/format.h>

#include <algorithm>

#include "record/region_table.h"

namespace anabranch::cuda {
namespace {

Status refuse(const std::string& what) {
  return Status(StatusCode::kNotRecordable, "record: " + what);
}

class Finder {
 public:
  Finder(const Plan& plan, bool driver_copies) : plan_(plan), driver_copies_(driver_copies) {
    found_.of_buffer.assign(plan.program().buffers().size(), UnitTable::kNone);
    found_.transfers.resize(plan.program().steps().size());
  }

  Result<PlanUnits> run() {
    for (const Slot& slot : plan_.slots()) add_buffer(slot.buffer, UnitKind::kGiven);
    for (const StepId id : plan_.order()) {
      if (Status added = add_step(id); !added.ok()) return added;
    }
    return std::move(found_);
  }

 private:
  std::uint32_t add(const PlanUnit& unit, UnitKind kind) {
    found_.units.push_back(unit);
    found_.kinds.push_back(kind);
    return static_cast<std::uint32_t>(found_.units.size() - 1);
  }
  void add_buffer(BufferId id, UnitKind kind) {
    const Buffer& buffer = plan_.program().buffer(id);
    found_.of_buffer[index_of(id)] =
        add({is_value(buffer.role) ? 0 : buffer.size_bytes, buffer.alignment, false}, kind);
  }
  PlanUnit& unit_of(const View& view) {
    return found_.units[found_.of_buffer[index_of(view.buffer)]];
  }

  Status add_step(StepId id) {
    const Step& step = plan_.program().step(id);
    if (step.kind == StepKind::kHost) {
      return refuse(
          fmt::format("{} runs on the host, which a graph cannot give new addresses. "
                      "Run it between launches, or use the host device.",
                      describe_step(plan_.program(), id)));
    }
    for (const Access& access : step.accesses) {
      if (Status added = add_temporary(access.view.buffer); !added.ok()) return added;
    }
    const bool moves = step.kind == StepKind::kCopy || step.kind == StepKind::kFill;
    return moves ? add_transfer(id) : Status();
  }

  Status add_temporary(BufferId id) {
    if (found_.of_buffer[index_of(id)] != UnitTable::kNone) return {};
    const Buffer& buffer = plan_.program().buffer(id);
    if (buffer.alignment > kArenaAlignment) {
      return refuse(fmt::format(
          "temporary {} '{}' asks for an alignment of {}, an arena on CUDA "
          "gives {}. Ask for less, or bind the buffer.",
          index_of(id), printable_text(buffer.name), buffer.alignment, kArenaAlignment));
    }
    add_buffer(id, UnitKind::kTemporary);
    return {};
  }

  Status add_transfer(StepId id) {
    const Step& step = plan_.program().step(id);
    Transfer& transfer = found_.transfers[index_of(id)];
    const View& to = step.accesses[0].view;
    if (step.kind == StepKind::kFill) {
      transfer.loops = make_transfer_loops(to, to);
    } else {
      add_copy(transfer, to, step.accesses[1].view);
    }
    const std::uint64_t pieces = std::max(count_items(transfer.loops),  //
                                          count_items(transfer.unstage));
    if (pieces <= kMostPieces) return {};
    return refuse(fmt::format(
        "{} moves {} pieces of {} bytes, and at most {} are captured one by "
        "one. Move them by a region of your own.",
        describe_step(plan_.program(), id), pieces, transfer.loops.item_bytes, kMostPieces));
  }

  void add_copy(Transfer& transfer, const View& to, const View& from) {
    transfer.loops = make_transfer_loops(to, from);
    unit_of(to).is_ordinary = unit_of(from).is_ordinary = driver_copies_;
    const std::uint64_t bytes = count_items(transfer.loops) * transfer.loops.item_bytes;
    if (bytes == 0 || !share_bytes(to, from)) return;
    const View scratch = packed(to);
    transfer.loops = make_transfer_loops(scratch, from);
    transfer.unstage = make_transfer_loops(to, scratch);
    transfer.scratch = add({bytes, kArenaAlignment, driver_copies_}, UnitKind::kTemporary);
  }

  const Plan& plan_;
  const bool driver_copies_;
  PlanUnits found_;
};

}  // namespace

Result<PlanUnits> find_plan_units(const Plan& plan, bool driver_copies) {
  return Finder(plan, driver_copies).run();
}

Result<std::unique_ptr<PlanMemory>> PlanMemory::make(const Driver& driver, const PlanUnits& units) {
  std::unique_ptr<PlanMemory> made(new PlanMemory(driver));
  auto addresses = CaptureMemory::make(driver);
  if (!addresses.ok()) return addresses.error();
  made->virtual_ = *std::move(addresses);
  for (const PlanUnit& unit : units.units) {
    const auto address = made->allocate(unit);
    if (!address.ok()) return address.error();
    made->allocations_.push_back({*address, unit.bytes});
  }
  return made;
}

PlanMemory::~PlanMemory() {
  for (const CuDevicePtr block : blocks_) driver_.cuMemFree(block);
}

// Most of it takes addresses and no memory.
Result<std::uint64_t> PlanMemory::allocate(const PlanUnit& unit) {
  const std::uint64_t bytes = unit.bytes + 3 * unit.alignment;
  std::uint64_t begin = 0;
  if (unit.is_ordinary && unit.bytes != 0) {
    CuDevicePtr block = 0;
    if (Status got = recorded("cuMemAlloc", driver_.cuMemAlloc(&block, bytes)); !got.ok()) {
      return got;
    }
    blocks_.push_back(block);
    begin = block;
  } else {
    const auto got = virtual_->allocate(bytes);
    if (!got.ok()) return got.error();
    begin = *got;
  }
  // An odd multiple of the alignment has that and no more.
  const std::uint64_t even = 2 * unit.alignment;
  return (begin + even - 1) / even * even + unit.alignment;
}

}  // namespace anabranch::cuda
