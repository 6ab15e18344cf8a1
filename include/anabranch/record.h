// SPDX-License-Identifier: Apache-2.0
// Recording: a plan, or a captured step (captured_recording.h), made real on a device, once. Its
// structure never changes; addresses do.
// Ownership: a Recording is a shared handle; it keeps plan, device and arena alive. On the host the
//            contexts of its regions, on CUDA the modules of their kernels, must outlive it.
// Threads:   different recordings are independent. On the host a recording takes one launch at a
//            time (kBusy); on CUDA launches queue, from any threads. A launch uses the handle that
//            it is given until it returns: no other thread may destroy that handle or assign to it
//            meanwhile. A thread that launches keeps a copy of its own, which keeps all the rest.
// Failure:   a Status; a refused record() leaves nothing behind, and no stream capturing.
// Edges:     a plan without steps records and launches. On CUDA the last handle waits for launches
//            that still run.
#pragma once

#include <cassert>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "anabranch/device.h"
#include "anabranch/export.h"
#include "anabranch/plan.h"
#include "anabranch/status.h"

namespace anabranch {

using RegionTable = std::map<std::string, Region, std::less<>>;

namespace host {
class HostRecording;  // src/record/host/host_recording.h
}
namespace cuda {
class PlanRecording;  // src/record/cuda/plan/plan_recording.h
class StepRecording;  // src/record/cuda/step_recording.h
}  // namespace cuda

// What a binding of a launch gives.
enum class SlotKind : std::uint8_t { kAddress, kNumber, kTable, kGrid };

constexpr SlotKind slot_kind_of(Role role) {
  switch (role) {
    case Role::kNumber:
      return SlotKind::kNumber;
    case Role::kTable:
      return SlotKind::kTable;
    case Role::kGrid:
      return SlotKind::kGrid;
    default:
      return SlotKind::kAddress;
  }
}

// What one binding of a launch serves.
struct RecordingSlot {
  std::string name;  // of a plan's buffer; "block 3" or "arena part 0" of a captured step
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment = 1;            // that an address must have
  NumberKind number = NumberKind::kNone;  // of a plan's number, which has no address
  SlotKind kind = SlotKind::kAddress;
};

class Recording {
 public:
  // Whether it is of a plan; a captured step has none.
  bool has_plan() const { return plan_.has_value(); }
  const Plan& plan() const {
    assert(has_plan());
    return *plan_;
  }
  // In the order of a launch's bindings.
  ANABRANCH_API std::vector<RecordingSlot> slots() const;
  // The caller's thread and the workers a launch uses. 1 on CUDA.
  ANABRANCH_API std::uint32_t lane_count() const;

 private:
  friend struct detail::Inside;
  Recording(Plan plan, std::shared_ptr<host::HostRecording> host)
      : plan_(std::move(plan)), host_(std::move(host)) {}
  Recording(Plan plan, std::shared_ptr<cuda::PlanRecording> cuda)
      : plan_(std::move(plan)), cuda_(std::move(cuda)) {}
  explicit Recording(std::shared_ptr<cuda::StepRecording> step) : step_(std::move(step)) {}
  std::optional<Plan> plan_;
  std::shared_ptr<host::HostRecording> host_;  // one of the three is there
  std::shared_ptr<cuda::PlanRecording> cuda_;
  std::shared_ptr<cuda::StepRecording> step_;
};

// On CUDA the plan's streams are captured as streams and its waits as events, so that the graph has
// the plan's edges and no others: steps of events and synchronize order later steps as the plan
// says, and nothing waits on the host. Not recorded there (kNotRecordable): host steps, a copy or
// fill of more than 1024 contiguous pieces, temporaries that ask for more alignment than 512,
// kernels whose grid follows a number, or what a region computes, and kernels in clusters whose
// grid follows any. Kernels whose grid follows one are set by the host, 0.3 us each where it
// changes.
ANABRANCH_API Result<Recording> record(const Plan& plan, const Device& device,
                                       const RegionTable& regions);

// Text for people: what was recorded and, on CUDA, how launches so far gave it their addresses.
ANABRANCH_API std::string dump_recording(const Recording& recording);

}  // namespace anabranch
