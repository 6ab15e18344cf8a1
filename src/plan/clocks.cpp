// SPDX-License-Identifier: Apache-2.0
#include "plan/clocks.h"

#include <algorithm>
#include <utility>

namespace anabranch {
namespace {

std::vector<std::uint32_t> streams_of(const Program& program) {
  std::vector<std::uint32_t> streams;
  streams.reserve(program.steps().size());
  for (const Step& step : program.steps()) streams.push_back(index_of(step.stream));
  return streams;
}

}  // namespace

Clocks::Clocks(const Program& program) : Clocks(streams_of(program), program.streams().size()) {}

Clocks::Clocks(std::vector<std::uint32_t> lanes, std::size_t lane_count)
    : lanes_(std::move(lanes)),
      width_(lane_count),
      steps_(lanes_.size()),
      latest_(width_),
      rows_(width_, 0) {}

void Clocks::add(StepId step, std::span<const StepId> waits_for) {
  At& latest = latest_[lane(step)];
  if (!waits_for.empty()) join(latest, waits_for);
  ++latest.place;
  steps_[index_of(step)] = latest;
}

void Clocks::add_waits(StepId step, std::span<const StepId> waits_for) {
  At& latest = latest_[lane(step)];
  join(latest, waits_for);
  steps_[index_of(step)] = latest;
}

void Clocks::join(At& to, std::span<const StepId> ended) {
  const std::uint32_t from = to.row;
  to.row = static_cast<std::uint32_t>(rows_.size() / width_);
  rows_.resize(rows_.size() + width_);
  std::uint32_t* const joined = row(to.row);
  std::copy_n(row(from), width_, joined);
  for (const StepId on : ended) {
    const At& other = steps_[index_of(on)];
    const std::uint32_t* const seen = row(other.row);
    for (std::size_t i = 0; i < width_; ++i) joined[i] = std::max(joined[i], seen[i]);
    joined[lane(on)] = std::max(joined[lane(on)], other.place);
  }
}

bool Clocks::before(StepId first, StepId second) const {
  const At& a = steps_[index_of(first)];
  const At& b = steps_[index_of(second)];
  if (lane(first) == lane(second)) return a.place < b.place;
  return a.place <= row(b.row)[lane(first)];
}

bool Clocks::known_to(std::uint32_t to, StepId step) const {
  if (lane(step) == to) return true;
  return steps_[index_of(step)].place <= row(latest_[to].row)[lane(step)];
}

}  // namespace anabranch
