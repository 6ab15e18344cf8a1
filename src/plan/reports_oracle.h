// SPDX-License-Identifier: Apache-2.0
// What find_reports is tested against: every pair of steps of a small program, byte by byte, by the
// words of docs/streams.md. For tests; shares nothing with what it tests.
// Ownership: values; a ReportsOracle borrows its program.
// Threads:   pure.
// Failure:   programs have at most kMostSteps steps over buffers of at most kMostBytes bytes.
// Edges:     the caller's work before and after the program are steps of their own.
#pragma once

#include <bitset>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "anabranch/plan.h"
#include "plan/waits_oracle.h"

namespace anabranch {

inline constexpr std::size_t kMostSteps = 126;
inline constexpr std::size_t kMostBytes = 256;

class ReportsOracle {
 public:
  // Steps are numbered from 1 here: 0 is the caller before, steps + 1 the caller after.
  using Steps = std::bitset<kMostSteps + 2>;
  using Edges = std::vector<std::pair<std::size_t, std::size_t>>;
  enum class Race : std::uint8_t { kNone, kFlow, kMutation };

  explicit ReportsOracle(const Program& program)
      : program_(program), count_(program.steps().size()), races_(count_ + 2) {
    assert(count_ <= kMostSteps);
    for (const Step& step : program.steps()) {
      for (const Access& access : step.accesses) bytes_[&access] = bytes_of_access(access);
    }
    for (std::size_t b = 1; b <= count_; ++b) {
      races_[b].resize(b, Race::kNone);
      for (std::size_t a = 0; a < b; ++a) races_[b][a] = find_conflict(a, b);
    }
  }

  std::size_t entry() const { return 0; }
  std::size_t exit() const { return count_ + 1; }
  // What two conflicting steps have if nothing orders them.
  Race conflict(std::size_t a, std::size_t b) const { return races_[b][a]; }

  // By step, all that have ended whenever it starts, given the user's syncs and `added`.
  std::vector<Steps> ended_before(const Edges& added = {}) const {
    std::vector<Steps> ended(count_ + 2);
    for (std::size_t b = 1; b < ended.size(); ++b) {
      for (std::size_t a = 0; a < b; ++a) {
        if (is_ordered(a, b)) ended[b] |= Steps(ended[a]).set(a);
      }
      for (const auto& [first, second] : added) {
        if (second == b) ended[b] |= Steps(ended[first]).set(first);
      }
    }
    return ended;
  }
  // The last step that is no record, and no wait for nothing, of each of the user's streams.
  std::vector<std::size_t> ends_of_streams() const {
    std::vector<std::size_t> ends;
    for (std::size_t stream = 1; stream < program_.streams().size(); ++stream) {
      if (program_.origins()[stream] == StreamOrigin::kPlaced) continue;
      for (std::size_t step = count_; step > 0; --step) {
        if (index_of(at(step).stream) != stream || is_callers(step)) continue;
        if (at(step).kind == StepKind::kRecordEvent || is_unrecorded(step)) continue;
        ends.push_back(step);
        break;
      }
    }
    return ends;
  }
  bool is_unrecorded(std::size_t step) const {
    if (at(step).kind != StepKind::kWaitEvent) return false;
    for (std::size_t a = 1; a < step; ++a) {
      if (at(a).kind == StepKind::kRecordEvent && at(a).event == at(step).event) return false;
    }
    return true;
  }

 private:
  using Bytes = std::bitset<kMostBytes>;

  const Step& at(std::size_t step) const { return program_.steps()[step - 1]; }
  bool is_outside(std::size_t step) const { return step == 0 || step > count_; }
  bool is_callers(std::size_t step) const {
    if (is_outside(step)) return false;
    return at(step).kind == StepKind::kSynchronize ||
           (at(step).kind == StepKind::kHost && stream(step) != 0);
  }
  // Placed streams, and what is outside, as the ambient stream.
  std::size_t stream(std::size_t step) const {
    if (is_outside(step)) return 0;
    const std::size_t own = index_of(at(step).stream);
    return program_.origins()[own] == StreamOrigin::kPlaced ? 0 : own;
  }
  bool is_ordered(std::size_t a, std::size_t b) const {
    if (is_callers(a)) return true;
    if (is_callers(b)) return at(b).kind == StepKind::kSynchronize && stream(a) == stream(b);
    return stream(a) == stream(b) || binds(a, b);
  }
  bool binds(std::size_t a, std::size_t b) const {
    if (is_outside(a) || is_outside(b)) return false;
    if (at(a).kind != StepKind::kRecordEvent || at(b).kind != StepKind::kWaitEvent) return false;
    for (std::size_t k = a + 1; k < b; ++k) {
      if (at(k).kind == StepKind::kRecordEvent && at(k).event == at(b).event) return false;
    }
    return at(a).event == at(b).event;
  }
  Bytes bytes_of_access(const Access& access) const {
    const std::uint64_t size = program_.buffer(access.view.buffer).size_bytes;
    assert(size <= kMostBytes);
    const std::vector<bool> list = bytes_of(access.view, size);
    Bytes bytes;
    for (std::size_t i = 0; i < list.size(); ++i) bytes[i] = list[i];
    return bytes;
  }
  bool meet(const Access& x, const Access& y) const {
    return x.view.buffer == y.view.buffer && (bytes_.at(&x) & bytes_.at(&y)).any();
  }
  static bool writes(const Access& access) { return access.mode != AccessMode::kRead; }
  bool is_input(const Access& access) const {
    return program_.buffer(access.view.buffer).role == Role::kInput;
  }
  // What the access writes had a value before.
  bool changes(std::size_t step, const Access& access) const {
    if (access.mode == AccessMode::kReadWrite || is_input(access)) return true;
    for (std::size_t a = 1; a < step; ++a) {
      for (const Access& earlier : at(a).accesses) {
        if (writes(earlier) && meet(earlier, access)) return true;
      }
    }
    return false;
  }
  Race find_conflict(std::size_t a, std::size_t b) const {
    Race found = Race::kNone;
    for (const Access& later : at(b).accesses) {
      if (a == 0) {
        if (is_input(later) && bytes_.at(&later).any() && !is_callers(b)) found = Race::kFlow;
        continue;
      }
      for (const Access& earlier : at(a).accesses) {
        if (!meet(earlier, later) || (!writes(earlier) && !writes(later))) continue;
        if (writes(later) || changes(a, earlier)) return Race::kMutation;
        found = Race::kFlow;
      }
    }
    return found;
  }

  const Program& program_;
  std::size_t count_;
  std::map<const Access*, Bytes> bytes_;
  std::vector<std::vector<Race>> races_;  // by second, then by first
};

}  // namespace anabranch
