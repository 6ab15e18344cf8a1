// SPDX-License-Identifier: Apache-2.0
#include "plan/check_clocks.h"

#include <algorithm>

namespace anabranch::check {
namespace {

// The waits of each step, without those that name no step of the program.
class WaitsByStep {
 public:
  WaitsByStep(std::size_t step_count, std::span<const Wait> waits) : begin_(step_count + 1, 0) {
    const auto known = [&](const Wait& wait) {
      return index_of(wait.step) < step_count && index_of(wait.on) < step_count;
    };
    for (const Wait& wait : waits) {
      if (known(wait)) ++begin_[index_of(wait.step) + 1];
    }
    for (std::size_t i = 1; i <= step_count; ++i) begin_[i] += begin_[i - 1];
    on_.resize(begin_[step_count]);
    std::vector<std::size_t> next = begin_;
    for (const Wait& wait : waits) {
      if (known(wait)) on_[next[index_of(wait.step)]++] = wait.on;
    }
  }
  std::span<const StepId> of(StepId step) const {
    const std::size_t begin = begin_[index_of(step)];
    return {on_.data() + begin, begin_[index_of(step) + 1] - begin};
  }

 private:
  std::vector<std::size_t> begin_;
  std::vector<StepId> on_;
};

}  // namespace

Clocks::Clocks(const Program& program, std::span<const StepId> order, std::span<const Wait> waits)
    : at_(program.steps().size()) {
  number_lanes(program);
  const WaitsByStep waits_by_step(at_.size(), waits);
  rows_.assign(lane_count_, 0);
  std::vector<At> latest(lane_count_, At{.place = 0});
  std::uint32_t position = 0;
  for (const StepId step : order) {
    if (index_of(step) >= at_.size() || place(step) != kNever) continue;
    At& at = at_[index_of(step)];
    at.row = latest[at.lane].row;
    join(at, waits_by_step.of(step));
    at.place = latest[at.lane].place + 1;
    at.position = position++;
    latest[at.lane] = at;
  }
}

void Clocks::number_lanes(const Program& program) {
  constexpr std::uint32_t kUnused = ~0u;
  std::vector<std::uint32_t> lanes(program.streams().size(), kUnused);
  for (std::size_t i = 0; i < at_.size(); ++i) {
    std::uint32_t& lane = lanes[index_of(program.steps()[i].stream)];
    if (lane == kUnused) lane = lane_count_++;
    at_[i].lane = lane;
  }
}

// A step that the order has not named yet adds nothing.
void Clocks::join(At& to, std::span<const StepId> waited_for) {
  const auto adds = [&](StepId on) { return place(on) != kNever && lane(on) != to.lane; };
  if (std::none_of(waited_for.begin(), waited_for.end(), adds)) return;
  const std::size_t width = lane_count_;
  const std::size_t from = to.row * width;
  to.row = static_cast<std::uint32_t>(rows_.size() / width);
  rows_.resize(rows_.size() + width);
  std::copy_n(rows_.begin() + from, width, rows_.end() - width);
  std::uint32_t* const row = rows_.data() + to.row * width;
  for (const StepId on : waited_for) {
    if (!adds(on)) continue;
    const At& other = at_[index_of(on)];
    const std::uint32_t* const seen_there = rows_.data() + other.row * width;
    for (std::size_t i = 0; i < width; ++i) row[i] = std::max(row[i], seen_there[i]);
    row[other.lane] = std::max(row[other.lane], other.place);
  }
}

}  // namespace anabranch::check
