// SPDX-License-Identifier: Apache-2.0
// For tests of launch: memory for the slots of a plan, fenced and poisoned.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <new>
#include <span>
#include <vector>

#include "anabranch/launch.h"
#include "record/record_testing.h"

namespace anabranch::testing {

// Where memory comes from that a test and the device can both reach. Outlives what it gave.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* allocate(std::size_t bytes, std::size_t alignment) = 0;
  virtual void release(void* memory, std::size_t alignment) = 0;
};

class HostMemory : public MemorySource {
 public:
  static MemorySource& get() {
    static HostMemory memory;
    return memory;
  }
  void* allocate(std::size_t bytes, std::size_t alignment) override {
    return ::operator new (bytes, std::align_val_t{alignment});
  }
  void release(void* memory, std::size_t alignment) override {
    ::operator delete (memory, std::align_val_t{alignment});
  }
};

// Memory for each slot of a plan, with a fence of poison on both sides.
class SlotMemory {
 public:
  static constexpr std::size_t kFence = 64;
  static constexpr unsigned char kPoison = 0xA5;

  explicit SlotMemory(const Plan& plan, MemorySource& source = HostMemory::get()) {
    for (const Slot& slot : plan.slots()) {
      const Buffer& buffer = plan.program().buffer(slot.buffer);
      blocks_.emplace_back(source, buffer.size_bytes,
                           std::max<std::uint64_t>(buffer.alignment, 64));
      bindings_.push_back({blocks_.back().data(), buffer.size_bytes});
    }
  }

  std::span<const Binding> bindings() const { return bindings_; }
  std::span<unsigned char> bytes(std::size_t slot) {
    return {static_cast<unsigned char*>(bindings_[slot].data), bindings_[slot].size_bytes};
  }
  std::vector<unsigned char> copy(std::size_t slot) {
    return {bytes(slot).begin(), bytes(slot).end()};
  }
  bool fences_stand() const {
    return std::all_of(blocks_.begin(), blocks_.end(),
                       [](const Block& block) { return block.fences_stand(); });
  }
  bool all_poison() {
    for (std::size_t slot = 0; slot < bindings_.size(); ++slot) {
      for (const unsigned char byte : bytes(slot)) {
        if (byte != kPoison) return false;
      }
    }
    return fences_stand();
  }

 private:
  class Block {
   public:
    Block(MemorySource& source, std::uint64_t size, std::uint64_t alignment)
        : fence_(std::max<std::uint64_t>(alignment, kFence)),
          bytes_(source, size + 2 * fence_, alignment) {
      std::memset(bytes_.data, kPoison, size + 2 * fence_);
      end_ = fence_ + size;
    }
    unsigned char* data() { return bytes_.data + fence_; }
    bool fences_stand() const {
      for (std::uint64_t i = 0; i < fence_; ++i) {
        if (bytes_.data[i] != kPoison || bytes_.data[end_ + i] != kPoison) return false;
      }
      return true;
    }

   private:
    struct Bytes {
      Bytes(MemorySource& from, std::uint64_t size, std::uint64_t aligned_to)
          : source(from),
            alignment(aligned_to),
            data(static_cast<unsigned char*>(from.allocate(size, aligned_to))) {}
      ~Bytes() { source.release(data, alignment); }
      Bytes(const Bytes&) = delete;
      Bytes& operator=(const Bytes&) = delete;
      MemorySource& source;
      std::uint64_t alignment;
      unsigned char* data;
    };
    std::uint64_t fence_;
    std::uint64_t end_ = 0;
    Bytes bytes_;
  };
  std::deque<Block> blocks_;
  std::vector<Binding> bindings_;
};

}  // namespace anabranch::testing
