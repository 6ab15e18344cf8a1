// SPDX-License-Identifier: Apache-2.0
// Kernels of our own, embedded in the library: what device code does for recordings.
// Ownership: a DeviceCode owns its module; unload it before its context goes.
// Threads:   values; load() for the current context.
// Failure:   load() is a Status: where the library was built without nvcc, or the driver is older
//            than 12.4, there is none, and addresses are set from the host.
// Edges:     also included by the device code itself, so nothing here but plain types for nvcc.
#pragma once

#include <cstdint>

#ifndef __CUDACC__
#include <memory>

#include "anabranch/status.h"
#include "device/cuda/driver.h"
#endif

namespace anabranch::cuda {

// Writes table[unit] + shift at `offset` of the parameters of `node`: its lowest 8, 4 or 2 bytes.
struct SiteUpdate {
  std::uint64_t node = 0;  // a CuDeviceNode
  std::uint64_t shift = 0;
  std::uint16_t offset = 0;  // parameters reach 32,764 bytes
  std::uint16_t bytes = 0;
  std::uint32_t unit = 0;
};
struct UpdateParams {
  std::uint64_t updates = 0;  // SiteUpdates
  std::uint64_t table = 0;    // addresses
  std::uint64_t count = 0;    // of updates
};
static_assert(sizeof(SiteUpdate) == 24 && sizeof(UpdateParams) == 24);

inline constexpr std::uint32_t kUpdaterBlock = 128;  // threads

// Fills the updater's table from the host's memory, where launches of an executable, which run one
// after the other, take turns with so many. One block, lest a second one counts the launch as well.
inline constexpr std::uint32_t kHostTables = 16;
struct FetchParams {
  std::uint64_t host_tables = 0;  // kHostTables times `count` addresses
  std::uint64_t table = 0;
  std::uint64_t launches = 0;  // of the word that counts them
  std::uint64_t count = 0;     // of addresses
};
static_assert(sizeof(FetchParams) == 32);

inline constexpr std::uint32_t kFetchBlock = 1024;

// Both at once, for graphs of so few addresses that one block does it sooner than a second kernel
// begins. The table is the block's own.
inline constexpr std::uint32_t kMostRepointed = 256;  // addresses, and updates: a thread each
struct RepointParams {
  std::uint64_t host_tables = 0;
  std::uint64_t launches = 0;
  std::uint64_t addresses = 0;  // how many
  std::uint64_t updates = 0;
  std::uint64_t count = 0;  // of updates
};
static_assert(sizeof(RepointParams) == 40);

// A box of rows from one place to another. They must not overlap, as with any copy.
struct CopyParams {
  std::uint64_t from = 0, to = 0;  // addresses of the first byte
  std::uint64_t width_bytes = 0, height = 0, depth = 0;
  std::uint64_t from_pitch = 0, to_pitch = 0;  // from row to row
  std::uint64_t from_slice = 0, to_slice = 0;  // from layer to layer
};

// Rows that hold one word again and again, beginning with its lowest byte; a row may end in part
// of it.
struct FillParams {
  std::uint64_t to = 0;
  std::uint64_t width_bytes = 0, height = 0;
  std::uint64_t pitch = 0;
  std::uint32_t word = 0;
  std::uint32_t padding = 0;
};
static_assert(sizeof(CopyParams) == 72 && sizeof(FillParams) == 40);

// Bytes from one place to another, with some words of them put in place of what is there. A word
// is where the updater and the host can set it; 4 KiB of parameters are what every driver takes.
inline constexpr std::uint32_t kTableWords = 256;
struct TableParams {
  std::uint64_t from = 0, to = 0;
  std::uint64_t bytes = 0;
  std::uint32_t count = 0;  // of words
  std::uint32_t padding = 0;
  std::uint64_t words[kTableWords] = {};
  std::uint32_t places[kTableWords] = {};  // bytes from `to`: multiples of 8, and rising
};
static_assert(sizeof(TableParams) == 32 + 12 * kTableWords && sizeof(TableParams) <= 4096);

// Bytes of a table that one block does from end to end: what it copies, it may write over.
inline constexpr std::uint32_t kTableRange = 16384;

// Threads of a block. Any grid and any shape of block does the whole box.
inline constexpr std::uint32_t kTransferBlock = 256;

// Two sums of each of many ranges: checksums.h says of what. A block does one chunk, and a range
// has as many chunks as begin in it.
inline constexpr std::uint64_t kChecksumPiece = std::uint64_t{16} << 20;   // bytes
inline constexpr std::uint64_t kChecksumChunk = std::uint64_t{256} << 10;  // bytes
inline constexpr std::uint32_t kChecksumBlock = 256;  // threads, no other number
struct ChecksumRange {
  std::uint64_t begin = 0, bytes = 0;
  std::uint64_t first_chunk = 0;  // chunks of all ranges before it
};
struct Checksum {
  std::uint64_t first = 0, second = 0;
};
struct ChecksumParams {
  std::uint64_t ranges = 0;  // ChecksumRanges
  std::uint64_t sums = 0;    // a Checksum each, to which theirs are added
  std::uint64_t count = 0;   // of ranges
};
static_assert(sizeof(ChecksumRange) == 24 && sizeof(Checksum) == 16);
static_assert(sizeof(ChecksumParams) == 24);

#ifndef __CUDACC__
inline bool operator==(const Checksum& a, const Checksum& b) {
  return a.first == b.first && a.second == b.second;
}

class DeviceCode {
 public:
  // The module embedded in the library, or `image` in its place.
  static Result<std::unique_ptr<DeviceCode>> load(const Driver& driver,
                                                  const void* image = nullptr);
  ~DeviceCode();
  DeviceCode(const DeviceCode&) = delete;
  DeviceCode& operator=(const DeviceCode&) = delete;

  // anabranch_fetch(FetchParams), anabranch_update(UpdateParams), anabranch_repoint(RepointParams)
  struct Updater {
    CuFunction fetch = nullptr, update = nullptr, repoint = nullptr;
  };
  const Updater& updater() const { return updater_; }
  // anabranch_copy(CopyParams)
  CuFunction copy() const { return copy_; }
  // anabranch_fill(FillParams)
  CuFunction fill() const { return fill_; }
  // anabranch_table(TableParams)
  CuFunction table() const { return table_; }
  // anabranch_checksum(ChecksumParams)
  CuFunction checksum() const { return checksum_; }

 private:
  explicit DeviceCode(const Driver& driver) : driver_(driver) {}
  Status find(CuFunction& function, const char* name);

  const Driver& driver_;
  CuModule module_ = nullptr;
  Updater updater_;
  CuFunction copy_ = nullptr, fill_ = nullptr, table_ = nullptr, checksum_ = nullptr;
};
#endif

}  // namespace anabranch::cuda
