// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/checksums.h"

#include <fmt/format.h>

#include "device/cuda/context_scope.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint64_t kMostBlocks = 0x7FFF'FFFF;  // of a grid

// What the device is given: the ranges, and behind them a sum each, which are zero.
struct Table {
  std::vector<std::uint64_t> words;
  std::uint64_t chunks = 0;
};

Table table_of(std::span<const ByteRange> ranges) {
  Table table;
  table.words.reserve(ranges.size() * (sizeof(ChecksumRange) + sizeof(Checksum)) / 8);
  for (const ByteRange& range : ranges) {
    table.words.insert(table.words.end(), {range.begin, range.bytes, table.chunks});
    table.chunks += range.bytes / kChecksumChunk + (range.bytes % kChecksumChunk != 0);
  }
  table.words.resize(table.words.size() + ranges.size() * sizeof(Checksum) / 8);
  return table;
}

// Memory of the device. To free it waits for what still uses it, so that goes on until then.
class Allocation {
 public:
  explicit Allocation(const Driver& driver) : driver_(driver) {}
  ~Allocation() {
    if (address_) driver_.cuMemFree(address_);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  Status allocate(std::size_t bytes) {
    Status allocated = recorded("cuMemAlloc", driver_.cuMemAlloc(&address_, bytes));
    if (!allocated.ok()) address_ = 0;
    return allocated;
  }
  CuDevicePtr address() const { return address_; }

 private:
  const Driver& driver_;
  CuDevicePtr address_ = 0;
};

// The host's memory is in use until the stream has been waited for, also after a failure.
Status queue(const CudaDevice& device, CuStream stream, const Table& table, CuDevicePtr at,
             std::span<Checksum> sums) {
  const Driver& driver = device.driver();
  const std::size_t bytes = table.words.size() * sizeof table.words.front();
  ChecksumParams params{at, at + sums.size() * sizeof(ChecksumRange), sums.size()};
  if (Status sent = recorded("cuMemcpyHtoDAsync",
                             driver.cuMemcpyHtoDAsync(at, table.words.data(), bytes, stream));
      !sent.ok()) {
    return sent;
  }
  const auto blocks = static_cast<unsigned>(table.chunks);
  void* args[] = {&params};
  if (Status launched = recorded(
          "cuLaunchKernel", driver.cuLaunchKernel(device.device_code()->checksum(), blocks, 1, 1,
                                                  kChecksumBlock, 1, 1, 0, stream, args, nullptr));
      !launched.ok()) {
    return launched;
  }
  return recorded("cuMemcpyDtoHAsync",
                  driver.cuMemcpyDtoHAsync(sums.data(), params.sums, sums.size_bytes(), stream));
}

}  // namespace

Result<std::vector<Checksum>> checksums(const CudaDevice& device, CuStream stream,
                                        std::span<const ByteRange> ranges) {
  if (!device.device_code()) {
    return Status(StatusCode::kNotRecordable,
                  fmt::format("record: checksums are made by device code, and there is none: {}",
                              device.why_no_device_code()));
  }
  std::vector<Checksum> sums(ranges.size());
  const Table table = table_of(ranges);
  if (table.chunks == 0) return sums;
  if (table.chunks > kMostBlocks) {
    return Status(StatusCode::kNotRecordable,
                  fmt::format("record: checksums are made of {} bytes at most at a time",
                              kMostBlocks * kChecksumChunk));
  }
  const ContextScope current(device);
  if (!current.status().ok()) return current.status();
  const Driver& driver = device.driver();
  Allocation there(driver);
  if (Status got = there.allocate(table.words.size() * sizeof table.words.front()); !got.ok()) {
    return got;
  }
  const Status queued = queue(device, stream, table, there.address(), sums);
  const Status done = recorded("cuStreamSynchronize", driver.cuStreamSynchronize(stream));
  if (!queued.ok()) return queued;
  if (!done.ok()) return done;
  return sums;
}

}  // namespace anabranch::cuda
