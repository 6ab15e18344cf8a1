// SPDX-License-Identifier: Apache-2.0
#include "record/host/host_transfer.h"

#include <array>
#include <cstring>

namespace anabranch::host {
namespace {

using Loop = TransferLoops::Loop;

bool is_empty(const TransferLoops& transfer) { return transfer.item_bytes == 0; }

// One step of the loops outside the innermost. False after the last.
bool advance(const TransferLoops& transfer, std::array<std::uint64_t, kMaxViewDims>& at,
             std::byte*& to, const std::byte*& from) {
  for (std::size_t i = transfer.loops.size() - 1; i-- > 0;) {
    const Loop& loop = transfer.loops[i];
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
void for_each_row(const TransferLoops& transfer, std::byte* to, const std::byte* from, Row row) {
  if (is_empty(transfer)) return;
  to += transfer.to_offset;
  from += transfer.from_offset;
  if (transfer.loops.empty()) return row(to, from, Loop{1, 0, 0});
  std::array<std::uint64_t, kMaxViewDims> at{};
  do {
    row(to, from, transfer.loops.back());
  } while (advance(transfer, at, to, from));
}

// With the size known, an item is a load and a store.
template <std::size_t kBytes>
void copy_items(std::byte* to, const std::byte* from, const Loop& loop) {
  for (std::uint64_t i = 0; i < loop.count; ++i) {
    std::memmove(to, from, kBytes);
    to += loop.to_stride;
    from += loop.from_stride;
  }
}

void copy_all(const TransferLoops& transfer, std::byte* to, const std::byte* from) {
  switch (transfer.item_bytes) {
    case 1:
      return for_each_row(transfer, to, from, copy_items<1>);
    case 2:
      return for_each_row(transfer, to, from, copy_items<2>);
    case 4:
      return for_each_row(transfer, to, from, copy_items<4>);
    case 8:
      return for_each_row(transfer, to, from, copy_items<8>);
    case 16:
      return for_each_row(transfer, to, from, copy_items<16>);
    default:
      break;
  }
  for_each_row(transfer, to, from, [&](std::byte* to_item, const std::byte* from_item, Loop loop) {
    for (std::uint64_t i = 0; i < loop.count; ++i) {
      // A single item may overlap itself; items of a loop do not.
      std::memmove(to_item, from_item, transfer.item_bytes);
      to_item += loop.to_stride;
      from_item += loop.from_stride;
    }
  });
}

}  // namespace

HostTransfer::HostTransfer(const Step& step)
    : is_fill_(step.kind == StepKind::kFill), fill_byte_(step.fill_byte) {
  const View& to = step.accesses[0].view;
  const View& from = is_fill_ ? to : step.accesses[1].view;
  loops_ = make_transfer_loops(to, from);
  if (!is_fill_ && !loops_.loops.empty() && share_bytes(to, from)) stage(to, from);
}

void HostTransfer::stage(const View& to, const View& from) {
  const View scratch = packed(to);
  loops_ = make_transfer_loops(scratch, from);
  unstage_ = make_transfer_loops(to, scratch);
  scratch_.resize(count_items(loops_) * loops_.item_bytes);
}

std::int32_t HostTransfer::run_copy(void* self, const RegionCall* call) {
  HostTransfer& transfer = *static_cast<HostTransfer*>(self);
  auto* to = static_cast<std::byte*>(call->buffers[0]);
  const auto* from = static_cast<const std::byte*>(call->buffers[1]);
  if (transfer.scratch_.empty()) {
    copy_all(transfer.loops_, to, from);
  } else {
    copy_all(transfer.loops_, transfer.scratch_.data(), from);
    copy_all(transfer.unstage_, to, transfer.scratch_.data());
  }
  return 0;
}

std::int32_t HostTransfer::run_fill(void* self, const RegionCall* call) {
  const HostTransfer& transfer = *static_cast<const HostTransfer*>(self);
  auto* to = static_cast<std::byte*>(call->buffers[0]);
  for_each_row(transfer.loops_, to, to, [&](std::byte* item, const std::byte*, const Loop& loop) {
    for (std::uint64_t i = 0; i < loop.count; ++i, item += loop.to_stride) {
      std::memset(item, transfer.fill_byte_, transfer.loops_.item_bytes);
    }
  });
  return 0;
}

}  // namespace anabranch::host
