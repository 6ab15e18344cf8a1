// SPDX-License-Identifier: Apache-2.0
// The accesses that a later access can still conflict with.
// Ownership: borrows program and work.
// Threads:   one thread.
// Failure:   none; overlap that is not decidable counts as overlap. Once the work is exhausted
// nothing
//            is found or remembered.
// Edges:     a step may meet itself, if two of its accesses share bytes.
//
// A write forgets what it covers: whatever comes later and conflicts with that conflicts with the
// write too. What is left of a buffer is kept by extent and first byte, so that parts that tile a
// buffer are found in logarithmic time. Linear only in the parts that truly meet by their bounds.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "anabranch/program.h"
#include "plan/overlap.h"

namespace anabranch {

class AccessHistory {
 public:
  // Which reads of the same bytes are kept: those that later steps of the same stream repeat may
  // be forgotten where the steps of a stream keep their order. Host steps do not stand for others
  // of their stream, nor these for them: eager runs them on the caller's thread.
  enum class Reads : std::uint8_t { kAll, kLastOfStream };
  AccessHistory(const Program& program, Reads reads, CompareWork& work)
      : program_(program), reads_(reads), work_(work), buffers_(program.buffers().size()) {}

  // Appends the earlier steps that conflict with this access, then remembers it.
  void add(StepId step, const Access& access, std::vector<StepId>& earlier);

 private:
  struct Part {
    Bytes bytes;
    bool written = false;
    StepId write{};
    std::vector<StepId> reads;  // since the write
  };
  // By the power of two of the extent, then by first byte.
  using Key = std::pair<std::uint32_t, std::int64_t>;
  struct History {
    std::multimap<Key, Part> parts;
    std::uint64_t extents = 0;  // bit k: there was a part of an extent in [2^k, 2^(k+1))
  };

  static std::uint32_t extent_class(const Bytes& bytes);
  void add_read(Part& part, StepId step) const;

  const Program& program_;
  Reads reads_;
  CompareWork& work_;
  std::vector<History> buffers_;
};

}  // namespace anabranch
