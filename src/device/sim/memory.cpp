// SPDX-License-Identifier: Apache-2.0
#include "device/sim/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace anabranch::sim {
namespace {

// Room for addresses that are never used again; only what is touched takes memory.
constexpr std::size_t kArenaBytes = std::size_t{64} << 30;
// A sanitizer leaves few of the addresses.
constexpr std::size_t kMostRetiredBytes = std::size_t{1} << 40;

unsigned char* bytes_at(Address address) { return reinterpret_cast<unsigned char*>(address); }

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

Address map_pages(std::size_t bytes, int protection) {
  void* pages = mmap(nullptr, bytes + kPageBytes, protection,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return 0;
  const Address start = reinterpret_cast<Address>(pages);
  const Address aligned = round_up(start, kPageBytes);
  if (aligned > start) munmap(pages, aligned - start);
  const Address rest = start + kPageBytes - aligned;
  if (rest > 0) munmap(bytes_at(aligned + bytes), rest);
  return aligned;
}

bool all_are(Address address, std::size_t bytes, unsigned char value) {
  const unsigned char* first = bytes_at(address);
  return std::all_of(first, first + bytes, [value](unsigned char b) { return b == value; });
}

// The bytes after a block up to the end of its last 256 are red too.
std::size_t padding_of(const Block& block) {
  return round_up(block.bytes, kAllocationAlignment) - block.bytes + kRedZoneBytes;
}

std::string damage_of(const Block& block) {
  if (!all_are(block.base - kRedZoneBytes, kRedZoneBytes, kRedZone)) return "before";
  return all_are(block.base + block.bytes, padding_of(block), kRedZone) ? "" : "after";
}

void paint_red(const Block& block) {
  std::memset(bytes_at(block.base - kRedZoneBytes), kRedZone, kRedZoneBytes);
  std::memset(bytes_at(block.base + block.bytes), kRedZone, padding_of(block));
}

template <typename Map>
auto find_at_or_before(Map& map, Address address) {
  auto it = map.upper_bound(address);
  return it == map.begin() ? map.end() : std::prev(it);
}

bool is_pages(Address address, std::size_t bytes) {
  return bytes > 0 && bytes % kPageBytes == 0 && address % kPageBytes == 0;
}

}  // namespace

AddressSpace::AddressSpace(std::size_t device_bytes, int devices) : device_bytes_(device_bytes) {
  for (int i = 0; i < devices; ++i) arenas_[{Place::kDevice, i}] = {};
  arenas_[{Place::kHost, 0}] = {};
  for (auto& [key, arena] : arenas_) {
    arena = {map_pages(kArenaBytes, PROT_READ | PROT_WRITE), kArenaBytes, kRedZoneBytes};
  }
}

AddressSpace::~AddressSpace() {
  for (const auto& [key, arena] : arenas_) {
    if (arena.base) munmap(bytes_at(arena.base), arena.bytes);
  }
  for (const auto& [base, bytes] : reserved_) munmap(bytes_at(base), bytes);
  for (const auto& [base, bytes] : retired_) munmap(bytes_at(base), bytes);
  for (const auto& [handle, physical] : physical_) close(physical.file);
}

bool AddressSpace::carve(Place place, int device, std::size_t bytes, Address* base) {
  Arena& arena = arenas_[{place, place == Place::kHost ? 0 : device}];
  const std::size_t taken = round_up(bytes, kAllocationAlignment) + 2 * kRedZoneBytes;
  if (!arena.base || taken > arena.bytes - arena.next) return false;
  *base = arena.base + arena.next;
  arena.next += taken;
  return true;
}

CuResult AddressSpace::allocate(Place place, int device, std::size_t bytes, Address* address) {
  if (bytes == 0) return CuResult::kInvalidValue;
  const bool full = place == Place::kDevice &&
                    (bytes > device_bytes_ || used_bytes(device) > device_bytes_ - bytes);
  Block block{0, bytes, place, device, next_id_};
  if (full || !(take_last_freed(block) || carve(place, device, bytes, &block.base))) {
    return CuResult::kOutOfMemory;
  }
  ++next_id_;
  std::memset(bytes_at(block.base), kAllocPoison, bytes);
  paint_red(block);
  blocks_[block.base] = block;
  *address = block.base;
  return CuResult::kSuccess;
}

bool AddressSpace::take_last_freed(Block& block) {
  if (!reuses_addresses_ || freed_.empty()) return false;
  const Block& last = freed_.back();
  if (last.place != block.place || last.device != block.device || last.bytes != block.bytes) {
    return false;
  }
  block.base = last.base;
  freed_bytes_ -= last.bytes;
  freed_.pop_back();
  return true;
}

CuResult AddressSpace::release(Place place, Address address) {
  const auto it = blocks_.find(address);
  if (it == blocks_.end() || it->second.place != place) return CuResult::kInvalidValue;
  std::memset(bytes_at(address), kFreePoison, it->second.bytes);
  freed_bytes_ += it->second.bytes;
  freed_.push_back(it->second);
  blocks_.erase(it);
  stop_watching_old();
  return CuResult::kSuccess;
}

void AddressSpace::stop_watching_old() {
  while (freed_bytes_ > kWatchedBytes && freed_.size() > 1) {
    const Block& old = freed_.front();
    const Address first = round_up(old.base, 4096);
    const Address last = (old.base + old.bytes) / 4096 * 4096;
    if (first < last) madvise(bytes_at(first), last - first, MADV_DONTNEED);
    freed_bytes_ -= old.bytes;
    freed_.pop_front();
  }
}

bool AddressSpace::is_ours(Address address) const {
  for (const auto& [key, arena] : arenas_) {
    if (address >= arena.base && address < arena.base + arena.bytes) return true;
  }
  const auto reserved = find_at_or_before(reserved_, address);
  if (reserved != reserved_.end() && address < reserved->first + reserved->second) return true;
  return std::any_of(retired_.begin(), retired_.end(), [address](const auto& retired) {
    return address >= retired.first && address < retired.first + retired.second;
  });
}

bool AddressSpace::find(Address address, Range* range) const {
  if (const auto it = find_at_or_before(blocks_, address);
      it != blocks_.end() && address < it->first + it->second.bytes) {
    const Block& block = it->second;
    *range = {block.base, block.bytes, block.place, block.device,
              block.id,   block.base,  block.bytes};
    return true;
  }
  Address base = 0;
  const Mapping* mapping = find_mapping(address, &base);
  if (!mapping) return false;
  const auto reservation = find_at_or_before(reserved_, address);
  const Physical& physical = physical_.at(mapping->handle);
  *range = {reservation->first,
            reservation->second,
            Place::kDevice,
            physical.device,
            mapping->handle,
            base,
            mapping->bytes,
            mapping->access != CuAccess::kNone,
            true};
  return true;
}

bool AddressSpace::is_live(Address address, std::size_t bytes) const {
  for (Address at = address; at < address + bytes;) {
    Range range;
    if (!find(at, &range) || !range.accessible) return false;
    at = range.mapping_base + range.mapping_bytes;
    // Blocks have red zones between them, so only mappings can go on.
  }
  return true;
}

std::uint64_t AddressSpace::id_of(Address address, std::size_t bytes) const {
  constexpr std::uint64_t kPrime = 1'000'003;
  std::uint64_t id = 0;
  Range range;
  for (Address at = address; at < address + bytes && find(at, &range);) {
    id = id * kPrime + range.id;
    at = range.mapping_base + range.mapping_bytes;
  }
  return id;
}

std::string AddressSpace::find_damage() {
  for (auto& [base, block] : blocks_) {
    const std::string side = damage_of(block);
    if (side.empty()) continue;
    paint_red(block);
    return fmt::format("the red zone {} {:#x} ({} bytes) was written", side, base, block.bytes);
  }
  for (const Block& block : freed_) {
    if (all_are(block.base, block.bytes, kFreePoison)) continue;
    std::memset(bytes_at(block.base), kFreePoison, block.bytes);
    return fmt::format("{:#x} ({} bytes) was written after it was freed", block.base, block.bytes);
  }
  return "";
}

std::size_t AddressSpace::used_bytes(int device) const {
  std::size_t used = 0;
  for (const auto& [base, block] : blocks_) {
    if (block.place == Place::kDevice && block.device == device) used += block.bytes;
  }
  for (const auto& [handle, physical] : physical_) {
    if (physical.device == device) used += physical.bytes;
  }
  return used;
}

std::size_t AddressSpace::live_objects() const {
  const auto held = std::count_if(physical_.begin(), physical_.end(),
                                  [](const auto& entry) { return entry.second.held; });
  return blocks_.size() + reserved_.size() + mappings_.size() + static_cast<std::size_t>(held);
}

CuResult AddressSpace::reserve(std::size_t bytes, std::size_t alignment, Address* address) {
  if (!is_pages(0, bytes) || alignment > kPageBytes) return CuResult::kInvalidValue;
  *address = map_pages(bytes, PROT_NONE);
  if (!*address) return CuResult::kOutOfMemory;
  reserved_[*address] = bytes;
  return CuResult::kSuccess;
}

CuResult AddressSpace::unreserve(Address address, std::size_t bytes) {
  const auto it = reserved_.find(address);
  if (it == reserved_.end() || it->second != bytes) return CuResult::kInvalidValue;
  const auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + bytes)
    return CuResult::kInvalidValue;
  retired_.push_back(*it);
  retired_bytes_ += bytes;
  reserved_.erase(it);
  while (retired_bytes_ > kMostRetiredBytes) {
    munmap(bytes_at(retired_.front().first), retired_.front().second);
    retired_bytes_ -= retired_.front().second;
    retired_.pop_front();
  }
  return CuResult::kSuccess;
}

CuResult AddressSpace::make_physical(std::size_t bytes, int device, CuMemoryHandle* handle) {
  if (!is_pages(0, bytes)) return CuResult::kInvalidValue;
  if (bytes > device_bytes_ || used_bytes(device) > device_bytes_ - bytes) {
    return CuResult::kOutOfMemory;
  }
  const int file = memfd_create("anabranch sim", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    if (file >= 0) close(file);
    return CuResult::kOutOfMemory;
  }
  *handle = next_id_++;
  physical_[*handle] = {file, bytes, device};
  return CuResult::kSuccess;
}

CuResult AddressSpace::drop_physical(CuMemoryHandle handle) {
  const auto it = physical_.find(handle);
  if (it == physical_.end() || !it->second.held) return CuResult::kInvalidValue;
  it->second.held = false;
  close_if_unused(handle);
  return CuResult::kSuccess;
}

// Mappings keep the pages after their handle is released.
void AddressSpace::close_if_unused(CuMemoryHandle handle) {
  const auto it = physical_.find(handle);
  if (it->second.held || it->second.mappings > 0) return;
  close(it->second.file);
  physical_.erase(it);
}

CuResult AddressSpace::map(Address address, std::size_t bytes, std::size_t offset,
                           CuMemoryHandle handle) {
  const auto physical = physical_.find(handle);
  const auto reservation = find_at_or_before(reserved_, address);
  if (physical == physical_.end() || !physical->second.held || !is_pages(address, bytes) ||
      offset != 0 || bytes > physical->second.bytes || reservation == reserved_.end() ||
      address + bytes > reservation->first + reservation->second) {
    return CuResult::kInvalidValue;
  }
  Address base = 0;
  const auto next = mappings_.lower_bound(address);
  if (find_mapping(address, &base) || (next != mappings_.end() && next->first < address + bytes)) {
    return CuResult::kInvalidValue;
  }
  // Without access until cuMemSetAccess: touching it before is a fault.
  if (mmap(bytes_at(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->second.file, 0) ==
      MAP_FAILED) {
    return CuResult::kOutOfMemory;
  }
  mappings_[address] = {bytes, handle};
  ++physical->second.mappings;
  return CuResult::kSuccess;
}

CuResult AddressSpace::unmap(Address address, std::size_t bytes) {
  for (Address at = address; at < address + bytes;) {
    const auto it = mappings_.find(at);
    if (it == mappings_.end() || at + it->second.bytes > address + bytes) {
      return CuResult::kInvalidValue;
    }
    const Mapping mapping = it->second;
    mmap(bytes_at(at), mapping.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    mappings_.erase(it);
    --physical_[mapping.handle].mappings;
    close_if_unused(mapping.handle);
    at += mapping.bytes;
  }
  return CuResult::kSuccess;
}

CuResult AddressSpace::set_access(Address address, std::size_t bytes, CuAccess access) {
  for (Address at = address; at < address + bytes;) {
    const auto it = mappings_.find(at);
    if (it == mappings_.end() || at + it->second.bytes > address + bytes) {
      return CuResult::kInvalidValue;
    }
    const int protection = access == CuAccess::kReadWrite ? PROT_READ | PROT_WRITE
                           : access == CuAccess::kRead    ? PROT_READ
                                                          : PROT_NONE;
    if (mprotect(bytes_at(at), it->second.bytes, protection) != 0) return CuResult::kInvalidValue;
    it->second.access = access;
    at += it->second.bytes;
  }
  return CuResult::kSuccess;
}

const AddressSpace::Mapping* AddressSpace::find_mapping(Address address, Address* base) const {
  const auto it = find_at_or_before(mappings_, address);
  if (it == mappings_.end() || address >= it->first + it->second.bytes) return nullptr;
  *base = it->first;
  return &it->second;
}

}  // namespace anabranch::sim
