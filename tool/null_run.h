// SPDX-License-Identifier: Apache-2.0
// What a plan needs to run without the program around it: regions that do nothing, and memory.
// Ownership: NullRun owns recording and buffers.
// Threads:   one thread.
// Failure:   kRegionMissing where regions are not nulled, kLimitExceeded above the memory limit,
//            and what record() and launch() refuse.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "launch_times.h"

namespace anabranch::tool {

class NullRun {
 public:
  static Result<NullRun> make(const std::string& path, const RunOptions& options);

  const Recording& recording() const { return recording_; }
  Result<LaunchTimes> launch_all(std::uint32_t launches) const;

 private:
  struct FreeAligned {
    std::uint64_t alignment = 0;
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, FreeAligned>;

  explicit NullRun(Recording recording) : recording_(std::move(recording)) {}
  Status allocate();

  Recording recording_;
  std::vector<Memory> memory_;
  std::vector<Binding> bindings_;
};

}  // namespace anabranch::tool
