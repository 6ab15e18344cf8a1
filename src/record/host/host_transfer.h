// SPDX-License-Identifier: Apache-2.0
// What a copy or fill step of a plan runs on the host: its loops, made once.
// Ownership: the recording owns its transfers; each owns its scratch.
// Threads:   one run at a time.
// Failure:   none.
// Edges:     views without bytes transfer nothing; a copy within overlapping bytes of one buffer
//            behaves as if all were read before any is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "anabranch/device.h"
#include "anabranch/program.h"
#include "record/transfer_loops.h"

namespace anabranch::host {

class HostTransfer {
 public:
  // Of a copy or fill step; another kind of step has none.
  explicit HostTransfer(const Step& step);
  Region region() { return {is_fill_ ? run_fill : run_copy, this}; }

 private:
  static std::int32_t run_copy(void* self, const RegionCall* call);
  static std::int32_t run_fill(void* self, const RegionCall* call);
  void stage(const View& to, const View& from);

  bool is_fill_;
  std::uint8_t fill_byte_;
  TransferLoops loops_;
  // Where source and destination share bytes: `loops_` ends in the scratch, this one begins there.
  TransferLoops unstage_;
  std::vector<std::byte> scratch_;
};

}  // namespace anabranch::host
