// SPDX-License-Identifier: Apache-2.0
// Launching a recording: new addresses in, one ticket out.
// Ownership: bound buffers belong to the caller and must outlive the launch. A ticket may go at any
//            time; it keeps the device, not the recording.
// Threads:   see record.h; on the host the calling thread is the ambient stream.
// Failure:   a Status, never an exception. A refused launch has started nothing. On the host a
//            failed step stops the launch; on CUDA work that fails shows in a later call. Either
//            way the recording can be launched again, unless the driver says the context is lost.
// Edges:     on the host device the launch has ended when the call returns.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "anabranch/captured_recording.h"
#include "anabranch/cuda_handles.h"
#include "anabranch/export.h"
#include "anabranch/record.h"
#include "anabranch/status.h"
#include "anabranch/timed_recording.h"

namespace anabranch {

// What a number of a plan may be given as. bfloat16 is its bits, an std::uint16_t.
template <typename Number>
constexpr NumberKind number_kind_of() {
  if constexpr (std::is_same_v<Number, float>) return NumberKind::kF32;
  if constexpr (std::is_same_v<Number, double>) return NumberKind::kF64;
  if constexpr (std::is_same_v<Number, std::uint16_t>) return NumberKind::kBF16;
  if constexpr (std::is_integral_v<Number> && std::is_signed_v<Number>) {
    if constexpr (sizeof(Number) == 4) return NumberKind::kI32;
    if constexpr (sizeof(Number) == 8) return NumberKind::kI64;  // long and long long
  }
  return NumberKind::kNone;
}

struct Binding {
  void* data = nullptr;  // on CUDA an address on the device
  std::uint64_t size_bytes = 0;
  NumberKind kind = NumberKind::kNone;
  SlotKind slot = SlotKind::kAddress;

  // For a number: its bytes in `data`, not their address. Of a plan, of the number's own kind; of a
  // captured step, of as many bytes as the kernels take, where bfloat16 and half are their bits.
  template <typename Number>
  static Binding number(Number value) {
    static_assert(std::is_arithmetic_v<Number> && sizeof(Number) <= sizeof(std::uint64_t));
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof value);
    return {reinterpret_cast<void*>(word), sizeof value, number_kind_of<Number>(),
            SlotKind::kNumber};
  }
  // For a table of a plan: bytes of the host's, at any address, on CUDA too. launch() takes them:
  // they may be changed or freed as soon as it has returned, while the launch still runs.
  static Binding table(const void* bytes, std::uint64_t size_bytes) {
    return {const_cast<void*>(bytes), size_bytes, NumberKind::kNone, SlotKind::kTable};
  }
  // For a grid of a plan: blocks in x, y and z, by value. x and y lie in `data`, z in `size_bytes`.
  static Binding grid(std::uint32_t x, std::uint32_t y = 1, std::uint32_t z = 1) {
    const std::uint64_t word = std::uint64_t{y} << 32 | x;
    return {reinterpret_cast<void*>(word), z, NumberKind::kNone, SlotKind::kGrid};
  }
};

namespace cuda {
class LaunchMark;  // src/record/cuda/exec/launch_mark.h
}  // namespace cuda

class Ticket {
 public:
  Ticket() = default;  // of a launch that has ended

  // Whether the launch has ended, well or not.
  bool done() const { return !mark_ || is_over(); }
  // Blocks until it has. kLaunchDriverFailed where it, or work queued earlier, failed.
  ANABRANCH_API Status wait() const;

 private:
  friend struct detail::Inside;
  explicit Ticket(std::shared_ptr<const cuda::LaunchMark> mark) : mark_(std::move(mark)) {}
  ANABRANCH_API bool is_over() const;
  std::shared_ptr<const cuda::LaunchMark> mark_;
};

// `bindings[i]` serves recording.slots()[i]. Checked before anything runs: count, kind, address,
// alignment, size, and that no written buffer shares bytes with another; on CUDA, that no two that
// the recording uses do. A table may have fewer bytes than were declared, the others are zero; it
// may not have more. A grid has one block at least, and no more than were declared.
//
// On the host there is no stream but the calling thread: another `stream` than null is refused
// (kStreamRefused), since the launch could not come after the work queued on it. On CUDA the launch
// starts after all work queued on `stream` so far, and later work on it waits for the launch.
// Launches on different streams may overlap, as long as they write nothing in common. Those of a
// plan have an arena each, up to two of them, and further ones wait, on the device, for one before;
// those of a captured step are given theirs. Each launch of a plan with tables copies its own to
// the device. Where eight before it on its arena have not ended, the call waits for the first.
ANABRANCH_API Result<Ticket> launch(const Recording& recording, std::span<const Binding> bindings,
                                    CudaStream stream = {});

// The same of a captured step without a ticket, by addresses alone: for callers with these at
// hand, whose stream tells when the launch has ended. One for each of slots(), then one for each of
// parts(), which are aligned to 512 and may lie in one block or anywhere.
ANABRANCH_API Status queue_launch(const CapturedRecording& recording,
                                  std::span<const std::uint64_t> addresses, CudaStream stream);

// The same through a timed twin (timed_recording.h). kBusy where another thread is queueing one, or
// the last one has not ended: its times would be lost.
ANABRANCH_API Status queue_timed_launch(const TimedRecording& timed,
                                        std::span<const std::uint64_t> addresses,
                                        CudaStream stream);

}  // namespace anabranch
