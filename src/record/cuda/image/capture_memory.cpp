// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/capture_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace anabranch::cuda {
namespace {

constexpr std::size_t kRangeBytes = std::size_t{64} << 30;  // addresses cost nothing
// Ranges lie further apart than 4 GiB, so that the upper halves of addresses in two of them differ.
// The lower halves do because each range begins another number of pages behind its own beginning.
constexpr std::uint64_t kDifferentBegins = 509;
// Addresses are multiples of 512, as those of torch are, and neither their second nor their third
// byte is 0: flags of a kernel that are all off make no address of what is left behind them.
constexpr std::uint64_t kSecondBytes = 127, kThirdBytes = 31;
std::atomic<std::uint64_t> ranges_so_far{0};
// A mapping costs some 30 us however large it is, so pages are large and mapped ahead of their use.
// They are of 16 MiB, and of 128 while most of the GPU is free.
constexpr std::size_t kPageGranules = 8, kLargePageGranules = 64;
constexpr std::size_t kMappedAheadBytes = std::size_t{256} << 20;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// Of the addresses in the range of this number.
std::size_t shift_of(std::uint64_t number) {
  return (1 + number % kThirdBytes) << 16 | (1 + number % kSecondBytes) << 9;
}

}  // namespace

Result<std::unique_ptr<CaptureMemory>> CaptureMemory::make(const Driver& driver, bool is_kept) {
  if (!driver.has(Feature::kVirtualMemory)) {
    return Status(StatusCode::kNotRecordable,
                  fmt::format("record: nothing can be captured without virtual memory: {}",
                              driver.why_off(Feature::kVirtualMemory)));
  }
  std::unique_ptr<CaptureMemory> made(new CaptureMemory(driver));
  made->is_kept_ = is_kept;
  CuDevice device = 0;
  if (Status got = recorded("cuCtxGetDevice", driver.cuCtxGetDevice(&device)); !got.ok()) {
    return got;
  }
  made->prop_.type = CuAllocationType::kPinned;
  made->prop_.location = {CuLocationType::kDevice, device};
  if (Status got = recorded("cuMemGetAllocationGranularity",
                            driver.cuMemGetAllocationGranularity(
                                &made->granule_bytes_, &made->prop_, CuGranularity::kMinimum));
      !got.ok()) {
    return got;
  }
  std::size_t free = 0, total = 0;
  if (Status got = recorded("cuMemGetInfo", driver.cuMemGetInfo(&free, &total)); !got.ok()) {
    return got;
  }
  const std::size_t granules = free > total / 2 ? kLargePageGranules : kPageGranules;
  made->page_bytes_ = granules * made->granule_bytes_;
  if (is_kept) return made;
  if (Status created = recorded(
          "cuMemCreate", driver.cuMemCreate(&made->page_, made->page_bytes_, &made->prop_, 0));
      !created.ok()) {
    made->page_ = 0;
    return created;
  }
  return made;
}

CaptureMemory::~CaptureMemory() {
  for (const auto& [address, bytes] : own_) driver_.cuMemUnmap(address, bytes);
  for (const Range& range : ranges_) {
    const std::size_t bytes = range.mapped - range.begin;
    if (bytes != 0) driver_.cuMemUnmap(range.address + range.begin, bytes);
    driver_.cuMemAddressFree(range.address, range.bytes);
  }
  if (page_) driver_.cuMemRelease(page_);
}

Result<std::uint64_t> CaptureMemory::allocate(std::uint64_t bytes) {
  if (is_new_ || ranges_.back().bytes - ranges_.back().used < needed_in(ranges_.back(), bytes)) {
    if (Status reserved = reserve(bytes); !reserved.ok()) return reserved;
  }
  Range& range = ranges_.back();
  const std::size_t needed = needed_in(range, bytes);
  const CuDevicePtr address = range.address + range.used + range.shift;
  if (Status mapped = is_kept_ ? map_own(address, bytes) : map_page(range, needed); !mapped.ok()) {
    return mapped;
  }
  range.used += needed;
  allocations_.push_back({address, bytes});
  return address;
}

// With a byte behind the end.
std::size_t CaptureMemory::needed_in(const Range& range, std::uint64_t bytes) const {
  return ((range.shift + bytes) / granule_bytes_ + 1) * granule_bytes_;
}

Status CaptureMemory::reserve(std::uint64_t bytes) {
  const std::uint64_t number = ranges_so_far++;
  Range range;
  // Memory of their own is mapped at kept addresses, which are multiples of what can be mapped.
  range.shift = is_kept_ ? 0 : shift_of(number) % granule_bytes_;
  range.begin = range.used = range.mapped = granule_bytes_ * (number % kDifferentBegins);
  range.bytes = range.begin + round_up(std::max(needed_in(range, bytes), kRangeBytes), page_bytes_);
  if (Status reserved = recorded("cuMemAddressReserve",
                                 driver_.cuMemAddressReserve(&range.address, range.bytes, 0, 0, 0));
      !reserved.ok()) {
    return reserved;
  }
  ranges_.push_back(range);
  is_new_ = false;
  return {};
}

// Ahead of what is needed.
Status CaptureMemory::map_page(Range& range, std::size_t needed) {
  if (range.mapped >= range.used + needed) return {};
  const std::size_t missing = range.used + needed - range.mapped;
  const std::size_t more = std::min(round_up(std::max(missing, kMappedAheadBytes), page_bytes_),
                                    range.bytes - range.mapped);
  Status mapped = map(range.address + range.mapped, more, page_, page_bytes_);
  if (mapped.ok()) range.mapped += more;
  return mapped;
}

Status CaptureMemory::map_own(CuDevicePtr address, std::size_t bytes) {
  const std::size_t needed = round_up(std::max<std::size_t>(bytes, 1), granule_bytes_);
  CuMemoryHandle own = 0;
  if (Status created = recorded("cuMemCreate", driver_.cuMemCreate(&own, needed, &prop_, 0));
      !created.ok()) {
    return created;
  }
  Status mapped = map(address, needed, own, needed);
  driver_.cuMemRelease(own);  // the mapping keeps it
  if (!mapped.ok()) return mapped;
  own_[address] = needed;
  own_bytes_ += needed;
  return {};
}

Status CaptureMemory::map(CuDevicePtr address, std::size_t bytes, CuMemoryHandle page,
                          std::size_t page_bytes) {
  Status failed;
  std::size_t mapped = 0;
  while (mapped < bytes && failed.ok()) {
    failed = recorded("cuMemMap", driver_.cuMemMap(address + mapped, page_bytes, 0, page, 0));
    if (failed.ok()) mapped += page_bytes;
  }
  const CuMemAccessDesc access{prop_.location, CuAccess::kReadWrite};
  if (failed.ok()) {
    failed = recorded("cuMemSetAccess", driver_.cuMemSetAccess(address, bytes, &access, 1));
  }
  if (!failed.ok() && mapped != 0) driver_.cuMemUnmap(address, mapped);
  return failed;
}

Status CaptureMemory::give_own() {
  while (!taken_.empty()) {
    const auto [address, bytes] = *taken_.begin();
    if (Status given = map_own(address, bytes); !given.ok()) return given;
    taken_.erase(address);
  }
  return {};
}

void CaptureMemory::release(std::uint64_t address) {
  take_own({&address, 1});
  taken_.erase(address);
}

void CaptureMemory::take_own(std::span<const std::uint64_t> addresses) {
  bool is_idle = false;
  for (const std::uint64_t address : addresses) {
    const auto own = own_.find(address);
    if (own == own_.end()) continue;
    if (!is_idle && driver_.cuCtxSynchronize() != CuResult::kSuccess) return;
    is_idle = true;
    if (driver_.cuMemUnmap(own->first, own->second) != CuResult::kSuccess) continue;
    taken_.insert(*own);
    own_bytes_ -= own->second;
    own_.erase(own);
  }
}

}  // namespace anabranch::cuda
