// SPDX-License-Identifier: Apache-2.0
#include "plan/antichain.h"

#include <algorithm>
#include <vector>

namespace anabranch::memory {
namespace {

// Each life hands its bytes on to lives that come after it, and takes bytes from lives before it;
// a byte handed on is a chain made one longer. Dinic's algorithm over these two sides.
class Handover {
 public:
  Handover(const Lives& lives, std::span<const std::uint32_t> among)
      : after_(among.size()), moved_(among.size(), std::vector<std::uint64_t>(among.size(), 0)) {
    for (std::uint32_t a = 0; a < among.size(); ++a) {
      const Life& life = lives.all[among[a]];
      gives_.push_back(life.size_bytes);
      for (std::uint32_t b = a + 1; b < among.size(); ++b) {
        if (lives.before(life, lives.all[among[b]])) after_[a].push_back(b);
      }
    }
    takes_ = gives_;
  }

  // The most bytes that can be handed on.
  std::uint64_t maximum() {
    std::uint64_t total = 0;
    while (find_levels()) {
      next_giver_.assign(after_.size(), 0);
      next_taker_.assign(after_.size(), 0);
      for (std::uint32_t a = 0; a < after_.size(); ++a) {
        if (gives_[a] == 0) continue;
        const std::uint64_t sent = send(a, gives_[a]);
        gives_[a] -= sent;
        total += sent;
      }
    }
    return total;
  }

 private:
  static constexpr std::uint32_t kFar = ~0u;

  // Distances from what still has bytes to give; whether one reaches a taker with room.
  bool find_levels() {
    giver_level_.assign(after_.size(), kFar);
    taker_level_.assign(after_.size(), kFar);
    std::vector<std::uint32_t> queue;
    for (std::uint32_t a = 0; a < after_.size(); ++a) {
      if (gives_[a] == 0) continue;
      giver_level_[a] = 0;
      queue.push_back(a);
    }
    bool reached = false;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const std::uint32_t a = queue[i];
      for (const std::uint32_t b : after_[a]) {
        if (taker_level_[b] != kFar) continue;
        taker_level_[b] = giver_level_[a] + 1;
        reached = reached || takes_[b] > 0;
        for (std::uint32_t back = 0; back < b; ++back) {
          if (moved_[back][b] == 0 || giver_level_[back] != kFar) continue;
          giver_level_[back] = taker_level_[b] + 1;
          queue.push_back(back);
        }
      }
    }
    return reached;
  }

  std::uint64_t send(std::uint32_t a, std::uint64_t bytes) {
    std::uint64_t sent = 0;
    for (std::uint32_t& i = next_giver_[a]; i < after_[a].size(); ++i) {
      const std::uint32_t b = after_[a][i];
      if (taker_level_[b] != giver_level_[a] + 1) continue;
      const std::uint64_t taken = receive(b, bytes - sent);
      moved_[a][b] += taken;
      sent += taken;
      if (sent == bytes) break;
    }
    return sent;
  }

  // A taker without room makes an earlier giver of its bytes look elsewhere.
  std::uint64_t receive(std::uint32_t b, std::uint64_t bytes) {
    std::uint64_t taken = std::min(bytes, takes_[b]);
    takes_[b] -= taken;
    for (std::uint32_t& back = next_taker_[b]; taken < bytes && back < b; ++back) {
      if (moved_[back][b] == 0 || giver_level_[back] != taker_level_[b] + 1) continue;
      const std::uint64_t freed = send(back, std::min(bytes - taken, moved_[back][b]));
      moved_[back][b] -= freed;
      taken += freed;
      if (taken == bytes) break;
    }
    return taken;
  }

  std::vector<std::vector<std::uint32_t>> after_;
  std::vector<std::vector<std::uint64_t>> moved_;
  std::vector<std::uint64_t> gives_;  // bytes not yet handed on
  std::vector<std::uint64_t> takes_;  // bytes not yet taken from others
  std::vector<std::uint32_t> giver_level_;
  std::vector<std::uint32_t> taker_level_;
  std::vector<std::uint32_t> next_giver_;
  std::vector<std::uint32_t> next_taker_;
};

}  // namespace

std::uint64_t find_heaviest_antichain(const Lives& lives, std::span<const std::uint32_t> among) {
  std::uint64_t sum = 0;
  for (const std::uint32_t life : among) sum += lives.all[life].size_bytes;
  return sum - Handover(lives, among).maximum();
}

}  // namespace anabranch::memory
