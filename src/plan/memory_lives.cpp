// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_lives.h"

#include <utility>

namespace anabranch::memory {
namespace {

using check::Clocks;

// The last accesses of lives that have begun, by lane and there by place: those that end too late
// for another life stand at the end.
class Endings {
 public:
  explicit Endings(const Lives& lives) : lives_(lives), by_lane_(lives.clocks.lane_count()) {
    seen_.assign(lives.all.size(), kUnseen);
  }

  void add(std::uint32_t life) {
    for (const StepId last : lives_.all[life].last) {
      std::vector<Ending>& lane = by_lane_[lives_.clocks.lane(last)];
      lane.push_back({lives_.clocks.place(last), life, lives_.all[life].last.size() > 1});
      for (std::size_t i = lane.size() - 1; i > 0 && lane[i - 1].place > lane[i].place; --i) {
        std::swap(lane[i - 1], lane[i]);
      }
    }
  }
  // Appends those that have not ended whenever `life` begins.
  void find_conflicts(std::uint32_t life, std::vector<std::uint32_t>& conflicts) {
    for (std::uint32_t lane = 0; lane < by_lane_.size(); ++lane) {
      const std::uint32_t ended = ended_before(lives_.all[life], lane);
      for (std::size_t i = by_lane_[lane].size(); i-- > 0;) {
        const Ending ending = by_lane_[lane][i];
        if (ending.place <= ended) break;
        if (ending.one_of_several && std::exchange(seen_[ending.life], life) == life) continue;
        conflicts.push_back(ending.life);
      }
    }
  }

 private:
  static constexpr std::uint32_t kUnseen = ~0u;
  struct Ending {
    std::uint32_t place = 0;
    std::uint32_t life = 0;
    bool one_of_several = false;
  };
  std::uint32_t ended_before(const Life& life, std::uint32_t lane) const {
    const Clocks& clocks = lives_.clocks;
    std::uint32_t ended = check::kNever;
    for (const StepId first : life.first) {
      const bool own = clocks.lane(first) == lane;
      ended = std::min(ended, own ? clocks.place(first) - 1 : clocks.seen(first, lane));
    }
    return ended;
  }

  const Lives& lives_;
  std::vector<std::vector<Ending>> by_lane_;
  std::vector<std::uint32_t> seen_;  // by life, for which other it was found last
};

}  // namespace

Lives::Lives(const Program& program, std::span<const StepId> order, const Clocks& times)
    : clocks(times) {
  std::vector<BufferId> temporaries;
  for (std::uint32_t i = 0; i < program.buffers().size(); ++i) {
    if (program.buffers()[i].role == Role::kTemporary) temporaries.push_back(BufferId{i});
  }
  add(program, order, temporaries);
}

Lives::Lives(const Program& program, std::span<const StepId> order, const Clocks& times,
             std::span<const BufferId> buffers)
    : clocks(times) {
  add(program, order, buffers);
}

void Lives::add(const Program& program, std::span<const StepId> order,
                std::span<const BufferId> buffers) {
  constexpr std::uint32_t kNone = ~0u, kNoLife = kNone - 1;
  std::vector<std::uint32_t> life_of(program.buffers().size(), kNoLife);
  for (const BufferId buffer : buffers) {
    if (program.buffer(buffer).size_bytes != 0) life_of[index_of(buffer)] = kNone;
  }
  for (const StepId step : order) {
    for (const Access& access : program.step(step).accesses) {
      std::uint32_t& life = life_of[index_of(access.view.buffer)];
      if (life == kNoLife) continue;
      if (life == kNone) {
        const Buffer& buffer = program.buffer(access.view.buffer);
        life = static_cast<std::uint32_t>(all.size());
        all.push_back({access.view.buffer,
                       buffer.size_bytes,
                       buffer.alignment,
                       {},
                       {},
                       clocks.position(step),
                       clocks.position(step)});
      }
      add_access(all[life], step);
    }
  }
}

// Steps come in plan order, so that none happens before an earlier one.
void Lives::add_access(Life& life, StepId step) const {
  if (!life.last.empty() && life.last.back() == step) return;
  const auto ends_before = [&](StepId other) { return clocks.before(other, step); };
  if (std::none_of(life.first.begin(), life.first.end(), ends_before)) life.first.push_back(step);
  life.last.erase(std::remove_if(life.last.begin(), life.last.end(), ends_before), life.last.end());
  life.last.push_back(step);
  life.end = clocks.position(step);
}

Conflicts::Conflicts(std::span<const std::size_t> begin, std::span<const std::uint32_t> earlier)
    : begin_(begin.size(), 0) {
  const std::size_t lives = begin.size() - 1;
  for (std::size_t i = 0; i < lives; ++i) begin_[i + 1] += begin[i + 1] - begin[i];
  for (const std::uint32_t other : earlier) ++begin_[other + 1];
  for (std::size_t i = 1; i <= lives; ++i) begin_[i] += begin_[i - 1];
  others_.resize(begin_[lives]);
  std::vector<std::size_t> next = begin_;
  for (std::uint32_t i = 0; i < lives; ++i) {
    for (const std::uint32_t other : earlier.subspan(begin[i], begin[i + 1] - begin[i])) {
      others_[next[i]++] = other;
      others_[next[other]++] = i;
    }
  }
}

std::optional<Conflicts> find_conflicts(const Lives& lives, std::size_t limit) {
  Endings endings(lives);
  std::vector<std::size_t> begin{0};
  std::vector<std::uint32_t> earlier;  // conflicts of each life with lives that began before it
  for (std::uint32_t i = 0; i < lives.all.size(); ++i) {
    endings.find_conflicts(i, earlier);
    if (earlier.size() > limit) return std::nullopt;
    begin.push_back(earlier.size());
    endings.add(i);
  }
  return Conflicts(begin, earlier);
}

}  // namespace anabranch::memory
