// SPDX-License-Identifier: Apache-2.0
#include "plan/waits_history.h"

#include <algorithm>
#include <bit>

namespace anabranch {

std::uint32_t AccessHistory::extent_class(const Bytes& bytes) {
  return static_cast<std::uint32_t>(
      std::bit_width(static_cast<std::uint64_t>(bytes.end - bytes.begin)) - 1);
}

void AccessHistory::add(StepId step, const Access& access, std::vector<StepId>& earlier) {
  Bytes bytes = make_bytes(access.view);
  if (bytes.begin == bytes.end) return;
  work_.enter(access.view.buffer);
  const bool writes = access.mode != AccessMode::kRead;
  History& history = buffers_[index_of(access.view.buffer)];
  Part* same = nullptr;
  for (std::uint64_t left = history.extents; left != 0; left &= left - 1) {
    const auto extent = static_cast<std::uint32_t>(std::countr_zero(left));
    const std::int64_t first = bytes.begin - (std::int64_t{2} << extent) + 1;
    auto at = history.parts.lower_bound({extent, first});
    while (at != history.parts.end() && at->first < Key{extent, bytes.end}) {
      Part& part = at->second;
      const Overlap overlap = find_overlap(part.bytes, bytes, work_);
      if (work_.exhausted() || !work_.spend(writes ? part.reads.size() : 0)) return;
      if (overlap == Overlap::kDisjoint) {
        ++at;
        continue;
      }
      if (part.written) earlier.push_back(part.write);
      if (writes) earlier.insert(earlier.end(), part.reads.begin(), part.reads.end());
      if (!writes && part.bytes == bytes) same = &part;
      at = writes && surely_covers(bytes, part.bytes) ? history.parts.erase(at) : std::next(at);
    }
  }
  if (same != nullptr) return add_read(*same, step);
  const Key key{extent_class(bytes), bytes.begin};
  history.extents |= std::uint64_t{1} << key.first;
  Part& part = history.parts.emplace(key, Part{std::move(bytes), writes, step, {}})->second;
  if (!writes) part.reads.push_back(step);
}

void AccessHistory::add_read(Part& part, StepId step) const {
  if (reads_ == Reads::kLastOfStream) {
    const auto same_order = [&](const Step& a, const Step& b) {
      return a.stream == b.stream && (a.kind == StepKind::kHost) == (b.kind == StepKind::kHost);
    };
    for (StepId& read : part.reads) {
      if (!same_order(program_.step(read), program_.step(step))) continue;
      read = step;
      return;
    }
  }
  part.reads.push_back(step);
}

}  // namespace anabranch
