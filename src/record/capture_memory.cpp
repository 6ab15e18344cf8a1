// SPDX-License-Identifier: Apache-2.0
#include "record/capture_memory.h"

#include <fmt/format.h>

namespace anabranch::cuda {

Result<std::unique_ptr<CaptureMemory>> CaptureMemory::make(const Driver& driver) {
  if (!driver.has(Feature::kVirtualMemory)) {
    return Status(Code::kNotRecordable,
                  fmt::format("record: nothing can be captured without virtual memory: {}",
                              driver.why_off(Feature::kVirtualMemory)));
  }
  std::unique_ptr<CaptureMemory> made(new CaptureMemory(driver));
  CuDevice device = 0;
  if (Status got = recorded("cuCtxGetDevice", driver.cuCtxGetDevice(&device)); !got.ok()) {
    return got;
  }
  made->prop_.type = CuAllocationType::kPinned;
  made->prop_.location = {CuLocationType::kDevice, device};
  if (Status got = recorded("cuMemGetAllocationGranularity",
                            driver.cuMemGetAllocationGranularity(&made->page_bytes_, &made->prop_,
                                                                 CuGranularity::kMinimum));
      !got.ok()) {
    return got;
  }
  if (Status created = recorded(
          "cuMemCreate", driver.cuMemCreate(&made->page_, made->page_bytes_, &made->prop_, 0));
      !created.ok()) {
    made->page_ = 0;
    return created;
  }
  return made;
}

CaptureMemory::~CaptureMemory() {
  for (const Range& range : ranges_) {
    if (range.mapped != 0) driver_.cuMemUnmap(range.address, range.mapped);
    driver_.cuMemAddressFree(range.address, range.bytes);
  }
  if (page_) driver_.cuMemRelease(page_);
}

Result<std::uint64_t> CaptureMemory::allocate(std::uint64_t bytes) {
  Range range;
  range.bytes = (bytes / page_bytes_ + 1) * page_bytes_;  // at least one byte behind the end
  if (Status reserved = recorded("cuMemAddressReserve",
                                 driver_.cuMemAddressReserve(&range.address, range.bytes, 0, 0, 0));
      !reserved.ok()) {
    return reserved;
  }
  const Status mapped = map(range);
  ranges_.push_back(range);  // also where it failed half way: the destructor cleans up
  if (!mapped.ok()) return mapped;
  allocations_.push_back({range.address, bytes});
  return range.address;
}

Status CaptureMemory::map(Range& range) {
  while (range.mapped < range.bytes) {
    if (Status mapped = recorded(
            "cuMemMap", driver_.cuMemMap(range.address + range.mapped, page_bytes_, 0, page_, 0));
        !mapped.ok()) {
      return mapped;
    }
    range.mapped += page_bytes_;
  }
  const CuMemAccessDesc access{prop_.location, CuAccess::kReadWrite};
  return recorded("cuMemSetAccess", driver_.cuMemSetAccess(range.address, range.bytes, &access, 1));
}

}  // namespace anabranch::cuda
