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

// Memory for each slot of a plan, with a fence of poison on both sides.
class SlotMemory {
 public:
  static constexpr std::size_t kFence = 64;
  static constexpr unsigned char kPoison = 0xA5;

  explicit SlotMemory(const Plan& plan) {
    for (const Slot& slot : plan.slots()) {
      const Buffer& buffer = plan.program().buffer(slot.buffer);
      blocks_.emplace_back(buffer.size_bytes, std::max<std::uint64_t>(buffer.alignment, 64));
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
    Block(std::uint64_t size, std::uint64_t alignment)
        : fence_(std::max<std::uint64_t>(alignment, kFence)),
          bytes_(size + 2 * fence_, std::align_val_t{alignment}) {
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
      Bytes(std::uint64_t size, std::align_val_t alignment)
          : alignment_(alignment),
            data(static_cast<unsigned char*>(::operator new(size, alignment_))) {}
      ~Bytes() { ::operator delete(data, alignment_); }
      Bytes(const Bytes&) = delete;
      Bytes& operator=(const Bytes&) = delete;
      std::align_val_t alignment_;
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
