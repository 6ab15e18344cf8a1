// SPDX-License-Identifier: Apache-2.0
#include "record/transfer_loops.h"

#include <algorithm>

namespace anabranch {
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

// Merges a loop into the one outside it where the two together step evenly.
void append_outer(std::vector<TransferLoops::Loop>& inner_first, TransferLoops::Loop outer) {
  if (!inner_first.empty()) {
    TransferLoops::Loop& inner = inner_first.back();
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

std::uint64_t count_items(const TransferLoops& transfer) {
  std::uint64_t items = transfer.item_bytes == 0 ? 0 : 1;
  for (const TransferLoops::Loop& loop : transfer.loops) items *= loop.count;
  return items;
}

bool share_bytes(const View& a, const View& b) {
  if (a.buffer != b.buffer) return false;
  const Interval x = interval_of(a), y = interval_of(b);
  return x.begin < y.end && y.begin < x.end;
}

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

TransferLoops make_transfer_loops(const View& to, const View& from) {
  TransferLoops transfer{to.offset_bytes, from.offset_bytes, to.item_bytes, {}};
  for (std::size_t i = to.dims.size(); i-- > 0;) {
    const TransferLoops::Loop loop{to.dims[i].size, to.dims[i].stride_bytes,
                                   from.dims[i].stride_bytes};
    if (loop.count == 0) return {};
    if (loop.count == 1) continue;
    const auto item = static_cast<std::int64_t>(transfer.item_bytes);
    if (transfer.loops.empty() && loop.to_stride == item && loop.from_stride == item) {
      transfer.item_bytes *= loop.count;
    } else {
      append_outer(transfer.loops, loop);
    }
  }
  std::reverse(transfer.loops.begin(), transfer.loops.end());
  return transfer;
}

}  // namespace anabranch
