// SPDX-License-Identifier: Apache-2.0
#include "record/transfer_loops.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace anabranch::host {
namespace {

struct Interval {
  std::int64_t begin = 0, end = 0;
};

Interval interval_of(const View& view) {
  Interval bytes{static_cast<std::int64_t>(view.offset_bytes),
                 static_cast<std::int64_t>(view.offset_bytes + view.item_bytes)};
  for (const Dim& dim : view.dims) {
    const std::int64_t reach = (static_cast<std::int64_t>(dim.size) - 1) * dim.stride_bytes;
    (reach < 0 ? bytes.begin : bytes.end) += reach;
  }
  return bytes;
}

bool is_empty(const Walk& walk) { return walk.item_bytes == 0; }

// One step of the loops outside the innermost. False after the last.
bool advance(const Walk& walk, std::array<std::uint64_t, kMaxViewDims>& at, std::byte*& to,
             const std::byte*& from) {
  for (std::size_t i = walk.loops.size() - 1; i-- > 0;) {
    const Loop& loop = walk.loops[i];
    if (++at[i] < loop.count) {
      to += loop.to_stride;
      from += loop.from_stride;
      return true;
    }
    const auto back = static_cast<std::int64_t>(at[i] - 1);
    at[i] = 0;
    to -= back * loop.to_stride;
    from -= back * loop.from_stride;
  }
  return false;
}

template <typename Row>
void for_each_row(const Walk& walk, std::byte* to, const std::byte* from, Row row) {
  if (is_empty(walk)) return;
  to += walk.to_offset;
  from += walk.from_offset;
  if (walk.loops.empty()) return row(to, from, Loop{1, 0, 0});
  std::array<std::uint64_t, kMaxViewDims> at{};
  do {
    row(to, from, walk.loops.back());
  } while (advance(walk, at, to, from));
}

// With the size known, a move is a load and a store.
template <std::size_t kBytes>
void copy_items(std::byte* to, const std::byte* from, const Loop& loop) {
  for (std::uint64_t i = 0; i < loop.count; ++i) {
    std::memmove(to, from, kBytes);
    to += loop.to_stride;
    from += loop.from_stride;
  }
}

void copy_walk(const Walk& walk, std::byte* to, const std::byte* from) {
  switch (walk.item_bytes) {
    case 1:
      return for_each_row(walk, to, from, copy_items<1>);
    case 2:
      return for_each_row(walk, to, from, copy_items<2>);
    case 4:
      return for_each_row(walk, to, from, copy_items<4>);
    case 8:
      return for_each_row(walk, to, from, copy_items<8>);
    case 16:
      return for_each_row(walk, to, from, copy_items<16>);
    default:
      break;
  }
  for_each_row(walk, to, from, [&](std::byte* to_item, const std::byte* from_item, Loop loop) {
    for (std::uint64_t i = 0; i < loop.count; ++i) {
      // A single item may overlap itself; items of a loop do not.
      std::memmove(to_item, from_item, walk.item_bytes);
      to_item += loop.to_stride;
      from_item += loop.from_stride;
    }
  });
}

// Merges a loop into the one outside it where the two together step evenly.
void append_outer(std::vector<Loop>& inner_first, Loop outer) {
  if (!inner_first.empty()) {
    Loop& inner = inner_first.back();
    const auto count = static_cast<std::int64_t>(inner.count);
    if (outer.to_stride == count * inner.to_stride &&
        outer.from_stride == count * inner.from_stride) {
      inner.count *= outer.count;
      return;
    }
  }
  inner_first.push_back(outer);
}

}  // namespace

std::uint64_t count_items(const Walk& walk) {
  std::uint64_t items = is_empty(walk) ? 0 : 1;
  for (const Loop& loop : walk.loops) items *= loop.count;
  return items;
}

bool share_bytes(const View& a, const View& b) {
  if (a.buffer != b.buffer) return false;
  const Interval x = interval_of(a), y = interval_of(b);
  return x.begin < y.end && y.begin < x.end;
}

// The same shape without gaps, from offset 0.
View packed(const View& view) {
  View result = view;
  result.offset_bytes = 0;
  auto stride = static_cast<std::int64_t>(view.item_bytes);
  for (auto dim = result.dims.rbegin(); dim != result.dims.rend(); ++dim) {
    dim->stride_bytes = stride;
    stride *= static_cast<std::int64_t>(dim->size);
  }
  return result;
}

Walk make_walk(const View& to, const View& from) {
  Walk walk{to.offset_bytes, from.offset_bytes, to.item_bytes, {}};
  for (std::size_t i = to.dims.size(); i-- > 0;) {
    const Loop loop{to.dims[i].size, to.dims[i].stride_bytes, from.dims[i].stride_bytes};
    if (loop.count == 0) return {};
    if (loop.count == 1) continue;
    const auto item = static_cast<std::int64_t>(walk.item_bytes);
    if (walk.loops.empty() && loop.to_stride == item && loop.from_stride == item) {
      walk.item_bytes *= loop.count;
    } else {
      append_outer(walk.loops, loop);
    }
  }
  std::reverse(walk.loops.begin(), walk.loops.end());
  return walk;
}

Move::Move(const Step& step) : is_fill_(step.kind == StepKind::kFill), fill_byte_(step.fill_byte) {
  const View& to = step.accesses[0].view;
  const View& from = is_fill_ ? to : step.accesses[1].view;
  walk_ = make_walk(to, from);
  if (!is_fill_ && !walk_.loops.empty() && share_bytes(to, from)) stage(to, from);
}

void Move::stage(const View& to, const View& from) {
  const View scratch = packed(to);
  walk_ = make_walk(scratch, from);
  unstage_ = make_walk(to, scratch);
  scratch_.resize(count_items(walk_) * walk_.item_bytes);
}

std::int32_t Move::run_copy(void* self, const RegionCall* call) {
  Move& move = *static_cast<Move*>(self);
  auto* to = static_cast<std::byte*>(call->buffers[0]);
  const auto* from = static_cast<const std::byte*>(call->buffers[1]);
  if (move.scratch_.empty()) {
    copy_walk(move.walk_, to, from);
  } else {
    copy_walk(move.walk_, move.scratch_.data(), from);
    copy_walk(move.unstage_, to, move.scratch_.data());
  }
  return 0;
}

std::int32_t Move::run_fill(void* self, const RegionCall* call) {
  const Move& move = *static_cast<const Move*>(self);
  auto* to = static_cast<std::byte*>(call->buffers[0]);
  for_each_row(move.walk_, to, to, [&](std::byte* item, const std::byte*, const Loop& loop) {
    for (std::uint64_t i = 0; i < loop.count; ++i, item += loop.to_stride) {
      std::memset(item, move.fill_byte_, move.walk_.item_bytes);
    }
  });
  return 0;
}

}  // namespace anabranch::host
