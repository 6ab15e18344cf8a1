// SPDX-License-Identifier: Apache-2.0
// The table's functions over the address space.
#include <fmt/format.h>

#include "device/sim/machine.h"

namespace anabranch::sim {
namespace {

bool is_device_prop(const CuMemAllocationProp* prop, int devices) {
  return prop && prop->type == CuAllocationType::kPinned &&
         prop->location.type == CuLocationType::kDevice && prop->location.id >= 0 &&
         prop->location.id < devices;
}

template <typename T>
CuResult put(void* data, T value) {
  *static_cast<T*>(data) = value;
  return CuResult::kSuccess;
}

// What an address of nobody has of an attribute.
void put_nothing(void* data, CuPointerAttribute attribute) {
  switch (attribute) {
    case CuPointerAttribute::kDeviceOrdinal:
      put(data, -2);
      return;
    case CuPointerAttribute::kMemoryType:
    case CuPointerAttribute::kIsManaged:
    case CuPointerAttribute::kMapped:
    case CuPointerAttribute::kAccessFlags:
      put(data, 0u);
      return;
    default:
      put(data, 0ull);
  }
}

// A pointer attribute of a range that is ours.
CuResult put_attribute(void* data, CuPointerAttribute attribute, const Range& range,
                       CuDevicePtr address, CuContext context) {
  switch (attribute) {
    case CuPointerAttribute::kContext:
      return put(data, context);
    case CuPointerAttribute::kMemoryType:
      return put(data, range.place == Place::kHost ? CuMemoryType::kHost : CuMemoryType::kDevice);
    case CuPointerAttribute::kDevicePointer:
      return put(data, address);
    case CuPointerAttribute::kHostPointer:
      if (range.place != Place::kHost) return CuResult::kInvalidValue;
      return put(data, reinterpret_cast<void*>(address));
    case CuPointerAttribute::kBufferId:
      return put(data, static_cast<unsigned long long>(range.id));
    case CuPointerAttribute::kIsManaged:
      return put(data, 0u);
    case CuPointerAttribute::kDeviceOrdinal:
      return put(data, range.device);
    case CuPointerAttribute::kRangeStart:
      return put(data, range.base);
    case CuPointerAttribute::kRangeSize:
      return put(data, range.bytes);
    case CuPointerAttribute::kMapped:
      return put(data, 1u);
    case CuPointerAttribute::kMappingBase:
      return put(data, range.mapping_base);
    case CuPointerAttribute::kMappingSize:
      return put(data, range.mapping_bytes);
    default:
      return CuResult::kNotSupported;
  }
}

}  // namespace

CuResult Machine::cuMemGetInfo(std::size_t* free, std::size_t* total) {
  const Device* const device = current_device();
  if (!device) return CuResult::kInvalidContext;
  *total = options_.device_bytes;
  *free = *total - memory_.used_bytes(device->ordinal);
  return CuResult::kSuccess;
}

CuResult Machine::cuMemAlloc(CuDevicePtr* address, std::size_t bytes) {
  const Device* const device = current_device();
  if (!device) return CuResult::kInvalidContext;
  return memory_.allocate(Place::kDevice, device->ordinal, bytes, address);
}

CuResult Machine::cuMemFree(CuDevicePtr address) {
  if (address == 0) return CuResult::kSuccess;
  engine_.run_all();  // freeing waits for all that may still use it
  check_damage();
  const CuResult freed = memory_.release(Place::kDevice, address);
  if (freed != CuResult::kSuccess) {
    violations_.push_back(fmt::format("cuMemFree of {:#x}, which is no live allocation", address));
  }
  return freed == CuResult::kSuccess ? sticky_ : freed;
}

CuResult Machine::cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  const Device* const device = current_device();
  if (!device) return CuResult::kInvalidContext;
  Address made = 0;
  const CuResult result = memory_.allocate(Place::kHost, device->ordinal, bytes, &made);
  *address = reinterpret_cast<void*>(made);
  return result;
}

CuResult Machine::cuMemFreeHost(void* address) {
  engine_.run_all();
  check_damage();
  const CuResult freed = memory_.release(Place::kHost, reinterpret_cast<Address>(address));
  return freed == CuResult::kSuccess ? sticky_ : freed;
}

CuResult Machine::cuMemHostGetDevicePointer(CuDevicePtr* address, void* host, unsigned) {
  Range range;
  const Address found = reinterpret_cast<Address>(host);
  if (!memory_.find(found, &range) || range.place != Place::kHost) return CuResult::kInvalidValue;
  *address = found;
  return CuResult::kSuccess;
}

CuResult Machine::cuPointerGetAttribute(void* data, CuPointerAttribute attribute,
                                        CuDevicePtr address) {
  Range range;
  if (!data || !memory_.find(address, &range)) return CuResult::kInvalidValue;
  if (attribute == CuPointerAttribute::kBufferId && range.is_mapped) {
    if (options_.mapped_ids == MappedIds::kNone) return CuResult::kInvalidValue;
    if (options_.mapped_ids == MappedIds::kOfRange) return put(data, range.base);
  }
  // Virtual memory belongs to no context.
  const bool mapped = range.mapping_base != range.base || range.base % kPageBytes == 0;
  const CuContext context =
      mapped ? nullptr : devices_[static_cast<std::size_t>(range.device)].handle;
  return put_attribute(data, attribute, range, address, context);
}

// For an address that is not the driver's the answers are zeros, and that is no error.
CuResult Machine::cuPointerGetAttributes(unsigned count, CuPointerAttribute* attributes,
                                         void** data, CuDevicePtr address) {
  Range range;
  const bool found = memory_.find(address, &range);
  for (unsigned i = 0; i < count; ++i) {
    if (found) {
      const CuResult result = cuPointerGetAttribute(data[i], attributes[i], address);
      if (result != CuResult::kSuccess && result != CuResult::kInvalidValue) return result;
    } else {
      put_nothing(data[i], attributes[i]);
    }
  }
  return CuResult::kSuccess;
}

CuResult Machine::cuMemGetAddressRange(CuDevicePtr* base, std::size_t* bytes, CuDevicePtr address) {
  Range range;
  if (!memory_.find(address, &range)) return CuResult::kNotFound;
  if (base) *base = range.mapping_base;
  if (bytes) *bytes = range.mapping_bytes;
  return CuResult::kSuccess;
}

CuResult Machine::cuMemAddressReserve(CuDevicePtr* address, std::size_t bytes,
                                      std::size_t alignment, CuDevicePtr,
                                      unsigned long long flags) {
  return flags == 0 ? memory_.reserve(bytes, alignment, address) : CuResult::kInvalidValue;
}

CuResult Machine::cuMemAddressFree(CuDevicePtr address, std::size_t bytes) {
  return memory_.unreserve(address, bytes);
}

CuResult Machine::cuMemCreate(CuMemoryHandle* handle, std::size_t bytes,
                              const CuMemAllocationProp* prop, unsigned long long flags) {
  if (flags != 0 || !is_device_prop(prop, options_.device_count)) return CuResult::kInvalidValue;
  return memory_.make_physical(bytes, prop->location.id, handle);
}

CuResult Machine::cuMemRelease(CuMemoryHandle handle) { return memory_.drop_physical(handle); }

CuResult Machine::cuMemMap(CuDevicePtr address, std::size_t bytes, std::size_t offset,
                           CuMemoryHandle handle, unsigned long long flags) {
  return flags == 0 ? memory_.map(address, bytes, offset, handle) : CuResult::kInvalidValue;
}

CuResult Machine::cuMemUnmap(CuDevicePtr address, std::size_t bytes) {
  return memory_.unmap(address, bytes);
}

CuResult Machine::cuMemSetAccess(CuDevicePtr address, std::size_t bytes,
                                 const CuMemAccessDesc* access, std::size_t count) {
  CuResult result = count > 0 ? CuResult::kSuccess : CuResult::kInvalidValue;
  for (std::size_t i = 0; i < count && result == CuResult::kSuccess; ++i) {
    result = memory_.set_access(address, bytes, access[i].flags);
  }
  return result;
}

CuResult Machine::cuMemGetAllocationGranularity(std::size_t* bytes, const CuMemAllocationProp* prop,
                                                CuGranularity) {
  if (!is_device_prop(prop, options_.device_count)) return CuResult::kInvalidValue;
  *bytes = kPageBytes;
  return CuResult::kSuccess;
}

}  // namespace anabranch::sim
