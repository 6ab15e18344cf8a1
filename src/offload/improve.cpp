// SPDX-License-Identifier: Apache-2.0
#include "offload/improve.h"

#include <algorithm>
#include <utility>

#include "offload/choose.h"
#include "offload/lives.h"
#include "offload/schedule.h"

namespace anabranch::offload {
namespace {

constexpr Choice kAll[] = {Choice::kKeep, Choice::kRecompute, Choice::kOffload};
// Tries times steps and tensors: about a tenth of a second.
constexpr std::size_t kWork = 2'000'000;

class Improver {
 public:
  Improver(const Problem& problem, std::uint64_t limit_bytes, std::vector<Choice>& choices)
      : problem_(problem),
        limit_(limit_bytes),
        choices_(choices),
        best_(score_choices(problem, limit_bytes, choices)),
        tries_(kWork / (problem.step_ns.size() + choices.size() + 1)) {
    for (std::uint32_t i = 0; i < choices.size(); ++i) {
      if (problem.tensors[i].must == Choice::kNone) free_.push_back(i);
    }
  }

  void run() {
    const auto stays = [&](std::uint32_t i) { return choices_[i] == Choice::kKeep; };
    if (std::ranges::all_of(free_, stays)) return;
    const std::size_t pairs = free_.size() * (free_.size() + 1) / 2;
    if (pairs * 4 > tries_) return draw();
    while (try_all()) {
    }
  }

 private:
  bool try_all() {
    bool is_better = false;
    for (std::size_t a = 0; a < free_.size(); ++a) {
      for (std::size_t b = 0; b <= a; ++b) is_better |= try_pair(free_[a], free_[b]);
    }
    return is_better;
  }
  bool try_pair(std::uint32_t a, std::uint32_t b) {
    bool is_better = false;
    for (const Choice of_a : kAll) {
      for (const Choice of_b : kAll) {
        if (choices_[a] == of_a || (a != b && choices_[b] == of_b)) continue;
        if (a != b || of_a == of_b) is_better |= try_change(a, of_a, b, of_b);
      }
    }
    return is_better;
  }
  // Something that does not stay becomes something else; half of the time in exchange for another.
  void draw() {
    while (tries_ > 0) {
      const std::uint32_t a = free_[next_random() % free_.size()];
      const std::uint32_t b = free_[next_random() % free_.size()];
      const Choice of_a = kAll[next_random() % 3];
      const Choice of_b = kAll[next_random() % 3];
      const bool both = next_random() % 2 == 0;
      try_change(a, of_a, both ? b : a, both ? of_b : of_a);
    }
  }
  bool try_change(std::uint32_t a, Choice of_a, std::uint32_t b, Choice of_b) {
    if (tries_ == 0) return false;
    --tries_;
    const Choice before_a = choices_[a], before_b = choices_[b];
    choices_[a] = of_a;
    choices_[b] = of_b;
    if (is_allowed(a) && is_allowed(b) && fits()) {
      const Score score = score_choices(problem_, limit_, choices_);
      if (score < best_) {
        best_ = score;
        return true;
      }
    }
    choices_[b] = before_b;
    choices_[a] = before_a;
    return false;
  }
  bool is_allowed(std::uint32_t i) const {
    if (choices_[i] == Choice::kOffload) return problem_.tensors[i].may_offload;
    return choices_[i] == Choice::kKeep || problem_.tensors[i].recompute_ns >= 0;
  }
  bool fits() const {
    std::uint64_t pinned = 0;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (choices_[i] == Choice::kOffload) pinned += pinned_bytes_of(problem_.tensors[i]);
    }
    return pinned <= problem_.pinned_bytes && least_peak(problem_, choices_) <= limit_;
  }
  std::uint32_t next_random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 33);
  }

  const Problem& problem_;
  std::uint64_t limit_;
  std::vector<Choice>& choices_;
  Score best_;
  std::size_t tries_;
  std::vector<std::uint32_t> free_;  // of no wish
  std::uint64_t state_ = 1;
};

}  // namespace

Score score_choices(const Problem& problem, std::uint64_t limit_bytes,
                    const std::vector<Choice>& choices) {
  const Prediction predicted =
      simulate_offload(problem, schedule_copies(problem, choices, limit_bytes));
  return {predicted.total_ns, predicted.out_bytes};
}

void improve_choices(const Problem& problem, std::uint64_t limit_bytes,
                     std::vector<Choice>& choices) {
  Improver(problem, limit_bytes, choices).run();
}

}  // namespace anabranch::offload
