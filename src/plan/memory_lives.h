// SPDX-License-Identifier: Apache-2.0
// When temporaries live, or other buffers, and which pairs of them live together.
// Ownership: values; a Lives borrows its clocks.
// Threads:   immutable once made.
// Failure:   find_conflicts answers nothing if there are more than `limit` pairs.
// Edges:     buffers without accesses or without bytes have no life.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "plan/check_clocks.h"

namespace anabranch::memory {

struct Life {
  BufferId buffer{};
  std::uint64_t size_bytes = 0;
  std::uint64_t alignment = 1;
  std::vector<StepId> first;  // accesses that no other access happens before
  std::vector<StepId> last;   // accesses that happen before no other
  std::uint32_t begin = 0;    // position in the order of the earliest access, and
  std::uint32_t end = 0;      // of the latest
};

class Lives {
 public:
  // Of all temporaries.
  Lives(const Program& program, std::span<const StepId> order, const check::Clocks& clocks);
  // Of these buffers.
  Lives(const Program& program, std::span<const StepId> order, const check::Clocks& clocks,
        std::span<const BufferId> buffers);

  // All of a is over before any of b begins: b may have a's bytes.
  bool before(const Life& a, const Life& b) const {
    return a.end < b.begin && std::all_of(a.last.begin(), a.last.end(), [&](StepId last) {
             return std::all_of(b.first.begin(), b.first.end(),
                                [&](StepId first) { return clocks.before(last, first); });
           });
  }

  const check::Clocks& clocks;
  std::vector<Life> all;  // by `begin`

 private:
  void add(const Program& program, std::span<const StepId> order,
           std::span<const BufferId> buffers);
  void add_access(Life& life, StepId step) const;
};

// For each life those that live together with it, by index in Lives::all.
class Conflicts {
 public:
  // The lives that conflict with life i and began earlier: `earlier` from begin[i] to begin[i + 1].
  Conflicts(std::span<const std::size_t> begin, std::span<const std::uint32_t> earlier);
  std::span<const std::uint32_t> of(std::size_t life) const {
    return {others_.data() + begin_[life], begin_[life + 1] - begin_[life]};
  }
  std::size_t count() const { return others_.size(); }  // each pair counts twice

 private:
  std::vector<std::size_t> begin_;
  std::vector<std::uint32_t> others_;
};

std::optional<Conflicts> find_conflicts(const Lives& lives, std::size_t limit);

}  // namespace anabranch::memory
