// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "anabranch/experimental/offload.h"
#include "offload/check_problem.h"
#include "offload/choose.h"
#include "offload/improve.h"
#include "offload/lives.h"
#include "offload/schedule.h"

namespace anabranch::offload {
namespace {

// The best of several greedy choices, which differ in how much time of copies they take for hidden.
class HiddenSearch {
 public:
  HiddenSearch(const Problem& problem, std::uint64_t limit_bytes, std::vector<Choice> least)
      : problem_(problem), limit_(limit_bytes), best_(std::move(least)) {
    for (const std::uint64_t ns : problem.step_ns) total_ns_ += static_cast<double>(ns);
  }

  // From none to all that both queues can hide, in quarters; then ever nearer to the best.
  std::vector<Choice> run() {
    for (const double share : {0.0, 0.5, 1.0, 1.5, 2.0}) try_share(share);
    for (const double distance : {0.25, 0.125, 0.0625, 0.03, 0.015}) {
      const double around = best_share_;
      try_share(around - distance);
      try_share(around + distance);
    }
    if (!best_score_) relax_least(problem_, limit_, best_);
    return std::move(best_);
  }

 private:
  void try_share(double share) {
    std::vector<Choice> choices;
    if (!cover_limit(problem_, limit_, share * total_ns_, choices)) return;
    if (best_score_ && choices == best_) return;
    const Score score = score_choices(problem_, limit_, choices);
    if (best_score_ && *best_score_ <= score) return;
    best_score_ = score;
    best_share_ = share;
    best_ = std::move(choices);
  }

  const Problem& problem_;
  std::uint64_t limit_;
  std::vector<Choice> best_;
  std::optional<Score> best_score_;
  double best_share_ = 0;
  double total_ns_ = 0;
};

// All lives in pinned memory contain the end of the forward, so each has bytes of its own. The next
// run of the program has the same.
void place_pinned(const Problem& problem, std::vector<Decision>& decisions) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i].choice != Choice::kOffload) continue;
    decisions[i].pinned_offset = end;
    end += pinned_bytes_of(problem.tensors[i]);
  }
}

// `step` takes the most under the least choices.
std::string explain_miss(const Problem& problem, std::uint64_t least_bytes, std::uint32_t step) {
  std::uint64_t used = 0, kept = 0;
  for (const Tensor& tensor : problem.tensors) {
    const bool in_gap = tensor.last_forward_use < step && step < tensor.first_backward_use;
    const bool is_there = tensor.made_after <= step && step <= tensor.last_backward_use;
    const bool may_not = !tensor.may_offload && tensor.recompute_ns < 0;
    if (is_there && !in_gap) used += tensor.size_bytes;
    if (in_gap && (tensor.must == Choice::kKeep || may_not)) kept += tensor.size_bytes;
  }
  const std::uint64_t base = problem.base_bytes.empty() ? 0 : problem.base_bytes[step];
  return fmt::format(
      "the budget of {} bytes cannot be met: step {} of {} takes at least {}, of which {} are not "
      "saved tensors, {} are saved tensors in use there, {} others must stay, and {} stay for want "
      "of pinned memory or since others are computed from them",
      problem.budget_bytes, step, problem.step_ns.size(), least_bytes, base, used, kept,
      least_bytes - base - used - kept);
}

// Copies begin in time, and no more of them are taken for hidden than can be, also where they take
// longer.
Problem with_margin(Problem problem) {
  const double times = 1 + problem.link_margin;
  problem.link.out_bytes_per_s /= times;
  problem.link.in_bytes_per_s /= times;
  problem.link.latency_ns = static_cast<std::uint64_t>(
      std::llround(static_cast<double>(problem.link.latency_ns) * times));
  return problem;
}

}  // namespace

Result<OffloadPlan> plan_offload(const Problem& problem) {
  if (Status status = check_problem(problem); !status) return status;
  OffloadPlan plan;
  std::vector<Choice> choices = choose_least(problem);
  const std::vector<std::int64_t> floor =
      find_floor(problem, choices, find_stays(problem, choices));
  plan.least_bytes = static_cast<std::uint64_t>(find_peak(floor));
  if (plan.least_bytes > problem.budget_bytes) {
    const auto top = std::ranges::max_element(floor) - floor.begin();
    plan.reason = explain_miss(problem, plan.least_bytes, static_cast<std::uint32_t>(top));
  }
  const std::uint64_t limit_bytes = std::max(problem.budget_bytes, plan.least_bytes);
  const Problem slower = with_margin(problem);
  choices = HiddenSearch(slower, limit_bytes, std::move(choices)).run();
  improve_choices(slower, limit_bytes, choices);
  plan.decisions = schedule_copies(slower, choices, limit_bytes);
  place_pinned(problem, plan.decisions);
  plan.predicted = simulate_offload(problem, plan.decisions);
  if (Status status = check_offload(problem, plan.decisions, plan.predicted.peak_bytes); !status) {
    return status;
  }
  return plan;
}

}  // namespace anabranch::offload
