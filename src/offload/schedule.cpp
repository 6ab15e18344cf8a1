// SPDX-License-Identifier: Apache-2.0
#include "offload/schedule.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "offload/lives.h"

namespace anabranch::offload {
namespace {

class Scheduler {
 public:
  Scheduler(const Problem& problem, std::span<const Choice> choices, std::uint64_t limit_bytes)
      : problem_(problem),
        stays_(find_stays(problem, choices)),
        room_(find_floor(problem, choices, stays_)),
        work_ns_(problem.step_ns.begin(), problem.step_ns.end()),
        freed_by_use_(problem.step_ns.size()),
        decisions_(choices.size()) {
    for (std::int64_t& room : room_) room = static_cast<std::int64_t>(limit_bytes) - room;
    for (std::uint32_t i = 0; i < choices.size(); ++i) decide(i, choices[i]);
    order_queues();
    find_latest_starts();
  }

  std::vector<Decision> run() {
    for (step_ = 0; step_ < work_ns_.size(); ++step_) {
      for (const std::uint32_t i : freed_by_use_[step_]) linger(i);
      while (lingering_bytes_ > room_[step_]) free_next();
      queue_copies_in();
      wait_for_copies_in();
      now_ += work_ns_[step_];
      queue_copies_out();
    }
    return std::move(decisions_);
  }

 private:
  void decide(std::uint32_t i, Choice choice) {
    const Tensor& tensor = problem_.tensors[i];
    Decision& made = decisions_[i];
    made.choice = choice;
    if (choice == Choice::kKeep) return;
    made.back_before = stays_[i].first;
    if (choice == Choice::kRecompute) {
      made.freed_before = tensor.last_forward_use + 1;
      work_ns_[made.back_before] += static_cast<double>(tensor.recompute_ns);
      return;
    }
    made.out_after = tensor.made_after;
    freed_by_use_[tensor.last_forward_use + 1].push_back(i);
    out_.push_back(i);
  }
  // What can be freed first goes first; of those needed by one step, what is out first.
  void order_queues() {
    std::ranges::stable_sort(out_, {}, [&](std::uint32_t i) {
      return std::pair(problem_.tensors[i].made_after, problem_.tensors[i].last_forward_use);
    });
    in_ = out_;
    std::ranges::stable_sort(in_, {}, [&](std::uint32_t i) { return stays_[i].first; });
    for (std::uint32_t k = 0; k < out_.size(); ++k) decisions_[out_[k]].out_order = k;
    for (std::uint32_t k = 0; k < in_.size(); ++k) decisions_[in_[k]].in_order = k;
    out_end_ns_.resize(out_.size());
  }
  // The last step of which the beginning leaves time for each copy in, if no step waits.
  void find_latest_starts() {
    std::vector<double> begin_ns(work_ns_.size() + 1, 0);
    for (std::size_t i = 0; i < work_ns_.size(); ++i) begin_ns[i + 1] = begin_ns[i] + work_ns_[i];
    latest_.resize(in_.size());
    double latest_ns = begin_ns.back();
    for (std::size_t k = in_.size(); k-- > 0;) {
      const Tensor& tensor = problem_.tensors[in_[k]];
      latest_ns = std::min(latest_ns, begin_ns[stays_[in_[k]].first]) - in_ns(problem_, tensor);
      const auto after = std::ranges::upper_bound(begin_ns, std::max(latest_ns, 0.0));
      latest_[k] =
          std::min(stays_[in_[k]].first, static_cast<std::uint32_t>(after - begin_ns.begin() - 1));
    }
  }

  // From here on it is on the device only because its copy out may be under way.
  void linger(std::uint32_t i) {
    lingering_.push(decisions_[i].out_order);
    lingering_bytes_ += bytes_of(problem_.tensors[i]);
  }
  // Waits for the copy out that ends first.
  void free_next() {
    const std::uint32_t order = lingering_.top();
    lingering_.pop();
    lingering_bytes_ -= bytes_of(problem_.tensors[out_[order]]);
    decisions_[out_[order]].freed_before = step_;
    now_ = std::max(now_, out_end_ns_[order]);
  }
  // Frees what has been copied, or will have been before half of this step's work is done: a copy
  // in that is late anyway loses more by beginning after the step.
  bool free_one_soon() {
    if (lingering_.empty()) return false;
    const double wait_ns = out_end_ns_[lingering_.top()] - now_;
    if (wait_ns > 0 && 2 * wait_ns > work_ns_[step_]) return false;
    free_next();
    return true;
  }

  void queue_copies_in() {
    for (; next_in_ < in_.size() && latest_[next_in_] <= step_; ++next_in_) {
      const std::uint32_t i = in_[next_in_];
      const bool is_due = stays_[i].first == step_;
      if (!is_due && !has_room(i)) return;
      Decision& made = decisions_[i];
      while (made.freed_before == kNever) free_next();
      add_bytes(room_, step_, stays_[i].first, -bytes_of(problem_.tensors[i]));
      made.in_before = step_;
      in_queue_ns_ = std::max(in_queue_ns_, now_) + in_ns(problem_, problem_.tensors[i]);
      in_end_ns_.push_back(in_queue_ns_);
    }
  }
  // Room from now until its use.
  bool has_room(std::uint32_t i) {
    if (step_ < blocked_until_) return false;
    const std::int64_t size = bytes_of(problem_.tensors[i]);
    for (std::uint32_t step = stays_[i].first; step-- > step_;) {
      if (room_[step] >= size) continue;
      blocked_until_ = step + 1;
      return false;
    }
    while (lingering_bytes_ + size > room_[step_] || decisions_[i].freed_before == kNever) {
      if (!free_one_soon()) return false;
    }
    return true;
  }
  void wait_for_copies_in() {
    for (; next_back_ < in_.size() && stays_[in_[next_back_]].first == step_; ++next_back_) {
      now_ = std::max(now_, in_end_ns_[next_back_]);
    }
  }
  void queue_copies_out() {
    for (; next_out_ < out_.size(); ++next_out_) {
      const Tensor& tensor = problem_.tensors[out_[next_out_]];
      if (tensor.made_after > step_) return;
      out_queue_ns_ = std::max(out_queue_ns_, now_) + out_ns(problem_, tensor);
      out_end_ns_[next_out_] = out_queue_ns_;
    }
  }

  const Problem& problem_;
  std::vector<Stay> stays_;
  std::vector<std::int64_t> room_;  // by step, above the floor and what was copied in early
  std::vector<double> work_ns_;
  std::vector<std::vector<std::uint32_t>> freed_by_use_;  // by step, after whose last use it is
  std::vector<Decision> decisions_;
  std::vector<std::uint32_t> out_, in_;         // tensors, by order on the queue
  std::vector<std::uint32_t> latest_;           // by order on the queue in
  std::vector<double> out_end_ns_, in_end_ns_;  // by order on their queue
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> lingering_;
  std::int64_t lingering_bytes_ = 0;
  std::uint32_t step_ = 0;
  std::uint32_t blocked_until_ = 0;  // no room for the next copy in before this step
  std::size_t next_out_ = 0, next_in_ = 0, next_back_ = 0;
  double now_ = 0, out_queue_ns_ = 0, in_queue_ns_ = 0;
};

}  // namespace

std::vector<Decision> schedule_copies(const Problem& problem, std::span<const Choice> choices,
                                      std::uint64_t limit_bytes) {
  return Scheduler(problem, choices, limit_bytes).run();
}

}  // namespace anabranch::offload
