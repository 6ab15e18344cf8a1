// SPDX-License-Identifier: Apache-2.0
// Recording: a plan made real on a device, once. Its structure never changes; addresses do.
// Ownership: a Recording is a shared handle; it keeps plan, device and arena alive. The contexts
//            of its regions belong to the caller and must outlive it.
// Threads:   recording takes one launch at a time (kBusy); different recordings are independent.
// Failure:   a Status; a refused record() leaves nothing behind.
// Edges:     a plan without steps records and launches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "anabranch/device.h"
#include "anabranch/export.h"
#include "anabranch/plan.h"
#include "anabranch/status.h"

namespace anabranch {

using RegionTable = std::map<std::string, Region, std::less<>>;

namespace host {
class HostRecording;  // src/record/host_recording.h
}

class Recording {
 public:
  const Plan& plan() const { return plan_; }
  // The caller's thread and the workers a launch uses.
  ANABRANCH_API std::uint32_t lane_count() const;
  const std::shared_ptr<host::HostRecording>& host_recording() const { return host_; }

 private:
  friend ANABRANCH_API Result<Recording> record(const Plan&, const Device&, const RegionTable&);
  Recording(Plan plan, std::shared_ptr<host::HostRecording> host)
      : plan_(std::move(plan)), host_(std::move(host)) {}
  Plan plan_;
  std::shared_ptr<host::HostRecording> host_;
};

ANABRANCH_API Result<Recording> record(const Plan& plan, const Device& device,
                                       const RegionTable& regions);

}  // namespace anabranch
