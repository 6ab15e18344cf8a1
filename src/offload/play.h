// SPDX-License-Identifier: Apache-2.0
// Decisions played out in a random order that their waits allow, with an eye on every byte. For
// tests: an oracle that knows what must not happen, and nothing of how it is prevented.
// Ownership: borrows problem and decisions.
// Threads:   pure; the same seed plays the same order.
// Failure:   a sentence that says what went wrong; empty if nothing did.
// Edges:     decisions may be nonsense, so long as steps are below the problem's, or kNever.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "anabranch/experimental/offload.h"

namespace anabranch::offload {

class Play {
 public:
  Play(const Problem& problem, const std::vector<Decision>& decisions, std::uint64_t peak_bytes,
       std::uint64_t seed)
      : problem_(problem),
        decisions_(decisions),
        peak_bytes_(peak_bytes),
        random_(seed),
        states_(decisions.size()) {
    out_ = queue(&Decision::out_order);
    in_ = queue(&Decision::in_order);
  }

  std::string run() {
    while (wrong_.empty() && step_ < problem_.step_ns.size()) {
      const std::uint32_t first = static_cast<std::uint32_t>(random_() % 3);
      bool moved = false;
      for (std::uint32_t turn = 0; turn < 3 && !moved; ++turn) moved = move((first + turn) % 3);
      if (!moved) return "everything waits";
    }
    return wrong_;
  }

 private:
  struct State {
    bool has_memory = false, is_whole = false;  // on the device
    bool out_begun = false, out_ended = false;
    bool in_begun = false, in_ended = false;
  };

  std::vector<std::size_t> queue(std::uint32_t Decision::*order) const {
    std::vector<std::size_t> queue;
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      if (decisions_[i].choice == Choice::kOffload) queue.push_back(i);
    }
    std::ranges::stable_sort(queue, {}, [&](std::size_t i) { return decisions_[i].*order; });
    return queue;
  }
  void expect(bool holds, std::size_t tensor, const char* what) {
    if (!holds && wrong_.empty()) wrong_ = "tensor " + std::to_string(tensor) + " " + what;
  }
  bool move(std::uint32_t who) {
    if (who == 0) return compute();
    return who == 1 ? copy_out() : copy_in();
  }

  bool copy_out() {
    if (out_at_ == out_.size()) return false;
    const std::size_t i = out_[out_at_];
    State& state = states_[i];
    if (!state.out_begun) {
      if (decisions_[i].out_after >= step_) return false;
      expect(state.is_whole, i, "is copied out and not there");
      for (std::size_t k = 0; k < decisions_.size(); ++k) expect(!shares(i, k), i, "overwrites");
      return state.out_begun = true;
    }
    ++out_at_;
    return state.out_ended = true;
  }
  // Whether the other's bytes in pinned memory are in use, and also this one's.
  bool shares(std::size_t i, std::size_t k) const {
    if (i == k || !states_[k].out_begun || states_[k].in_ended) return false;
    const std::uint64_t begin = decisions_[i].pinned_offset, other = decisions_[k].pinned_offset;
    return begin < other + problem_.tensors[k].size_bytes &&
           other < begin + problem_.tensors[i].size_bytes;
  }
  bool copy_in() {
    if (in_at_ == in_.size()) return false;
    const std::size_t i = in_[in_at_];
    State& state = states_[i];
    if (!state.in_begun) {
      const std::uint32_t begun = step_ + (stage_ > 0 ? 1 : 0);
      if (decisions_[i].in_before >= begun) return false;
      expect(state.out_ended, i, "is copied in and not yet out");
      expect(!state.has_memory, i, "has memory twice");
      state.has_memory = true;
      return state.in_begun = true;
    }
    ++in_at_;
    state.is_whole = true;
    return state.in_ended = true;
  }

  bool compute() {
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      const Decision& made = decisions_[i];
      if (made.choice != Choice::kOffload) continue;
      if (stage_ == 0 && made.freed_before == step_ && !states_[i].out_ended) return false;
      if (stage_ == 1 && made.back_before == step_ && !states_[i].in_ended) return false;
    }
    if (stage_ == 0) free_memory();
    if (stage_ == 1) run_step();
    step_ += stage_;
    stage_ = 1 - stage_;
    return true;
  }
  void free_memory() {
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      if (decisions_[i].choice == Choice::kKeep || decisions_[i].freed_before != step_) continue;
      states_[i].has_memory = states_[i].is_whole = false;
    }
  }
  void run_step() {
    std::uint64_t bytes = problem_.base_bytes.empty() ? 0 : problem_.base_bytes[step_];
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      State& state = states_[i];
      const Tensor& tensor = problem_.tensors[i];
      if (tensor.made_after == step_) state.has_memory = true;
      if (decisions_[i].choice == Choice::kRecompute && decisions_[i].back_before == step_) {
        for (const std::uint32_t need : tensor.needs) use(need);
        state.has_memory = state.is_whole = true;
      }
      const bool first = tensor.first_backward_use <= step_ && step_ <= tensor.last_backward_use;
      if (tensor.made_after < step_ && step_ <= tensor.last_forward_use) use(i);
      if (first) use(i);
    }
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      if (problem_.tensors[i].made_after == step_) states_[i].is_whole = true;
      if (states_[i].has_memory && !is_over(i)) bytes += problem_.tensors[i].size_bytes;
    }
    if (bytes > peak_bytes_ && wrong_.empty()) wrong_ = "the peak is higher than claimed";
  }
  void use(std::size_t i) { expect(states_[i].is_whole, i, "is used and not there"); }
  bool is_over(std::size_t i) const {
    if (step_ <= problem_.tensors[i].last_backward_use) return false;
    for (std::size_t k = 0; k < decisions_.size(); ++k) {
      const auto& needs = problem_.tensors[k].needs;
      if (decisions_[k].choice == Choice::kRecompute && decisions_[k].back_before >= step_ &&
          std::ranges::find(needs, i) != needs.end()) {
        return false;
      }
    }
    return true;
  }

  const Problem& problem_;
  const std::vector<Decision>& decisions_;
  std::uint64_t peak_bytes_;
  std::mt19937_64 random_;
  std::vector<State> states_;
  std::vector<std::size_t> out_, in_;
  std::size_t out_at_ = 0, in_at_ = 0;
  std::uint32_t step_ = 0;   // the one that runs or waits
  std::uint32_t stage_ = 0;  // 0: it waits for copies out; 1: it waits for copies in
  std::string wrong_;
};

}  // namespace anabranch::offload
