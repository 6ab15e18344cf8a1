// SPDX-License-Identifier: Apache-2.0
#include "plan/clocks.h"

#include <algorithm>

namespace anabranch {

Clocks::Clocks(const Program& program)
    : program_(program),
      width_(program.streams().size()),
      steps_(program.steps().size()),
      latest_(width_),
      rows_(width_, 0) {}

void Clocks::add(StepId step, std::span<const StepId> waits_for) {
  At& latest = latest_[stream(step)];
  if (!waits_for.empty()) {
    const std::uint32_t from = latest.row;
    latest.row = static_cast<std::uint32_t>(rows_.size() / width_);
    rows_.resize(rows_.size() + width_);
    std::uint32_t* const to = row(latest.row);
    std::copy_n(row(from), width_, to);
    for (const StepId on : waits_for) {
      const At& ended = steps_[index_of(on)];
      const std::uint32_t* const seen = row(ended.row);
      for (std::size_t i = 0; i < width_; ++i) to[i] = std::max(to[i], seen[i]);
      to[stream(on)] = std::max(to[stream(on)], ended.place);
    }
  }
  ++latest.place;
  steps_[index_of(step)] = latest;
}

bool Clocks::before(StepId first, StepId second) const {
  const At& a = steps_[index_of(first)];
  const At& b = steps_[index_of(second)];
  if (stream(first) == stream(second)) return a.place < b.place;
  return a.place <= row(b.row)[stream(first)];
}

bool Clocks::known_to(StreamId to, StepId step) const {
  if (stream(step) == index_of(to)) return true;
  return steps_[index_of(step)].place <= row(latest_[index_of(to)].row)[stream(step)];
}

}  // namespace anabranch
