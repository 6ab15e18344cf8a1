// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/exec/cuda_recording.h"

#include <algorithm>

#include "record/cuda/exec/make_nodes.h"
#include "record/cuda/image/capture_memory.h"

namespace anabranch::cuda {
namespace {

// Memory of one kind or the other, for as long as executables are made. Nothing runs on it.
struct CopyRoom {
  std::unique_ptr<DeviceBytes> allocated;
  std::unique_ptr<CaptureMemory> mapped;
  CuDevicePtr address = 0;  // 0 where nothing needs it
};

Result<CopyRoom> make_copy_room(const Driver& driver, const Repointing& repointing) {
  CopyRoom room;
  std::uint64_t bytes = 0;
  const auto& nodes = repointing.image.nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (is_made_elsewhere(nodes[i], repointing.making[i])) {
      bytes = std::max(bytes, extent_of(nodes[i]));
    }
  }
  if (bytes == 0) return room;
  if (repointing.mapped_memory) {
    auto made = CaptureMemory::make(driver);
    if (!made.ok()) return made.error();
    const auto address = (*made)->allocate(bytes);
    if (!address.ok()) return address.error();
    room.mapped = *std::move(made);
    room.address = *address;
  } else {
    auto made = DeviceBytes::allocate(driver, bytes);
    if (!made.ok()) return made.error();
    room.address = (*made)->address();
    room.allocated = *std::move(made);
  }
  return room;
}

}  // namespace

Result<std::shared_ptr<CudaRecording>> CudaRecording::make(const Driver& driver,
                                                           RecordingParts parts,
                                                           const CudaRecordOptions& options) {
  std::shared_ptr<CudaRecording> made(new CudaRecording(driver, std::move(parts), options));
  Repointing& repointing = made->parts_.repointing;
  repointing.mapped_memory = options.mapped_memory;
  if (Status current = recorded("cuCtxGetCurrent", driver.cuCtxGetCurrent(&repointing.context));
      !current.ok()) {
    return current;
  }
  if (Status ready = made->make_and_weigh_executables(); !ready.ok()) return ready;
  return made;
}

Status CudaRecording::make_and_weigh_executables() {
  std::size_t before = 0, after = 0, total = 0;
  if (Status asked = recorded("cuMemGetInfo", driver_.cuMemGetInfo(&before, &total)); !asked.ok()) {
    return asked;
  }
  if (Status made = make_executables(); !made.ok()) return made;
  if (Status asked = recorded("cuMemGetInfo", driver_.cuMemGetInfo(&after, &total)); !asked.ok()) {
    return asked;
  }
  for (const auto* execs : {&executables_, &updating_}) {
    for (const auto& exec : *execs) {
      held_.device += exec->held().device;
      held_.host += exec->held().host;
    }
  }
  if (before > after + held_.device) held_.driver = before - after - held_.device;
  if (parts_.table_bytes) held_.device += parts_.table_bytes->size();
  return {};
}

Status CudaRecording::make_executables() {
  const auto room = make_copy_room(driver_, parts_.repointing);
  if (!room.ok()) return room.error();
  parts_.repointing.copy_room = room->address;
  const DeviceCode* const code = options_.device_code;
  const auto add = [&](std::vector<std::unique_ptr<CudaExec>>& to, const CudaExec::Kind& kind) {
    auto exec = CudaExec::make(driver_, parts_.original, parts_.repointing, kind);
    if (!exec.ok()) return exec.error();
    to.push_back(*std::move(exec));
    return Status();
  };
  const CudaExec::Kind settled{.is_launchable = node_count() >= options_.launchable_settled};
  const CudaExec::Kind updating{.updater = code ? &code->updater() : nullptr,
                                .repoint_in_two = options_.repoint_in_two,
                                .is_launchable = node_count() >= options_.launchable_updating};
  for (std::uint32_t i = 0; i < options_.executables; ++i) {
    if (Status made = add(executables_, settled); !made.ok()) return made;
  }
  for (std::uint32_t i = 0; code && i < options_.updating_executables; ++i) {
    if (Status made = add(updating_, updating); !made.ok()) return made;
  }
  return {};
}

std::vector<std::uint64_t> CudaRecording::part_bytes() const {
  std::vector<std::uint64_t> bytes;
  const std::size_t parts = source_rules().size() - slots().size() - numbers().size();
  for (const SourceRule& part : source_rules().subspan(slots().size(), parts)) {
    bytes.push_back(part.bytes());
  }
  return bytes;
}

}  // namespace anabranch::cuda
