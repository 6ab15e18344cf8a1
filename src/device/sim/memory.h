// SPDX-License-Identifier: Apache-2.0
// The simulated address space: allocations with red zones and poison, and virtual memory whose
// ranges may share physical pages.
// Ownership: an AddressSpace owns its pages; they go when it does.
// Threads:   one at a time; the Machine's lock.
// Failure:   codes of the driver; what a check finds is told in words.
// Edges:     addresses are never given out twice. Freed memory stays poisoned and watched until
//            more than kWatchedBytes of it has been freed after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "device/cuda/driver_abi.h"

namespace anabranch::sim {

using namespace cuda;  // the driver's types, all of them

using Address = CuDevicePtr;

inline constexpr std::size_t kAllocationAlignment = 256;
inline constexpr std::size_t kRedZoneBytes = 256;
inline constexpr std::size_t kPageBytes = std::size_t{2} << 20;  // of virtual memory
inline constexpr std::size_t kWatchedBytes = std::size_t{4} << 20;
inline constexpr unsigned char kAllocPoison = 0xcd, kFreePoison = 0xdd, kRedZone = 0xfd;

enum class Place : std::uint8_t { kDevice, kHost };

struct Block {
  Address base = 0;
  std::size_t bytes = 0;
  Place place = Place::kDevice;
  int device = 0;
  std::uint64_t id = 0;
};

// What an address belongs to: a Block, or the reservation of mapped virtual memory.
struct Range {
  Address base = 0;
  std::size_t bytes = 0;
  Place place = Place::kDevice;
  int device = 0;
  std::uint64_t id = 0;
  Address mapping_base = 0;
  std::size_t mapping_bytes = 0;
  bool accessible = true;
  bool is_mapped = false;  // virtual memory
};

class AddressSpace {
 public:
  AddressSpace(std::size_t device_bytes, int devices);
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  CuResult allocate(Place place, int device, std::size_t bytes, Address* address);
  CuResult release(Place place, Address address);
  void reuse_addresses() { reuses_addresses_ = true; }

  CuResult reserve(std::size_t bytes, std::size_t alignment, Address* address);
  CuResult unreserve(Address address, std::size_t bytes);
  CuResult make_physical(std::size_t bytes, int device, CuMemoryHandle* handle);
  CuResult drop_physical(CuMemoryHandle handle);
  CuResult map(Address address, std::size_t bytes, std::size_t offset, CuMemoryHandle handle);
  CuResult unmap(Address address, std::size_t bytes);
  CuResult set_access(Address address, std::size_t bytes, CuAccess access);

  // Fills `range`; false for an address that is not ours, or whose memory is gone.
  bool find(Address address, Range* range) const;
  // All `bytes` are live and accessible: in one block, or in mappings that join without a hole.
  bool is_live(Address address, std::size_t bytes) const;
  // Another number for other memory: of all pages that these bytes lie in. 0 where there is none.
  std::uint64_t id_of(Address address, std::size_t bytes) const;
  // The address is one that this space gave out once, live or not.
  bool is_ours(Address address) const;

  // What has been written that must not be: the words for it, once; empty where all is well.
  std::string find_damage();

  std::size_t live_objects() const;
  std::size_t used_bytes(int device) const;

 private:
  struct Arena {
    Address base = 0;
    std::size_t bytes = 0, next = 0;
  };
  struct Physical {
    int file = -1;
    std::size_t bytes = 0;
    int device = 0;
    bool held = true;  // its handle was not released
    int mappings = 0;
  };
  struct Mapping {
    std::size_t bytes = 0;
    CuMemoryHandle handle = 0;
    CuAccess access = CuAccess::kNone;
  };

  bool carve(Place place, int device, std::size_t bytes, Address* base);
  void close_if_unused(CuMemoryHandle handle);
  const Mapping* find_mapping(Address address, Address* base) const;
  void stop_watching_old();
  bool take_last_freed(Block& block);

  const std::size_t device_bytes_;
  std::uint64_t next_id_ = 1;
  bool reuses_addresses_ = false;
  std::map<std::pair<Place, int>, Arena> arenas_;
  std::map<Address, Block> blocks_;
  std::deque<Block> freed_;
  std::size_t freed_bytes_ = 0;
  std::map<Address, std::size_t> reserved_;
  std::map<Address, Mapping> mappings_;
  std::map<CuMemoryHandle, Physical> physical_;
  // Reservations given back, the oldest first: their addresses are not used again for a while.
  std::deque<std::pair<Address, std::size_t>> retired_;
  std::size_t retired_bytes_ = 0;
};

}  // namespace anabranch::sim
