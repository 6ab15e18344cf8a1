// SPDX-License-Identifier: Apache-2.0
#include "offload/choose.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "offload/lives.h"

namespace anabranch::offload {
namespace {

// Choices that grow, with what they take.
class Choices {
 public:
  Choices(const Problem& problem, std::vector<Choice>& choices)
      : problem_(problem), choices_(choices) {
    for (std::uint32_t i = 0; i < choices.size(); ++i) {
      if (choices[i] == Choice::kOffload) pinned_bytes_ += pinned_bytes_of(problem.tensors[i]);
    }
    rebuild();
  }

  const std::vector<std::int64_t>& floor() const { return floor_; }
  Choice of(std::uint32_t i) const { return choices_[i]; }
  std::uint32_t gap_begin(std::uint32_t i) const {
    return problem_.tensors[i].last_forward_use + 1;
  }
  std::uint32_t gap_end(std::uint32_t i) const { return stays_[i].first; }
  bool may(std::uint32_t i, Choice choice) const {
    const Tensor& tensor = problem_.tensors[i];
    if (choice == Choice::kRecompute) return tensor.recompute_ns >= 0;
    return tensor.may_offload && pinned_bytes_ + pinned_bytes_of(tensor) <= problem_.pinned_bytes;
  }
  void set(std::uint32_t i, Choice choice) {
    const Choice before = std::exchange(choices_[i], choice);
    const std::uint64_t pinned = pinned_bytes_of(problem_.tensors[i]);
    if (before == Choice::kOffload) pinned_bytes_ -= pinned;
    if (choice == Choice::kOffload) pinned_bytes_ += pinned;
    if (before == Choice::kRecompute) return rebuild();
    const std::int64_t size = bytes_of(problem_.tensors[i]);
    if (before == Choice::kKeep) add_bytes(floor_, gap_begin(i), gap_end(i), -size);
    if (choice == Choice::kKeep) add_bytes(floor_, gap_begin(i), gap_end(i), size);
    if (choice == Choice::kRecompute && !extend_needs(i)) rebuild();
  }

 private:
  // Those that it needs are needed from where it is. False: one of them has needs of its own, which
  // would have to follow.
  bool extend_needs(std::uint32_t i) {
    const std::uint32_t step = stays_[i].first;
    for (const std::uint32_t need : problem_.tensors[i].needs) {
      Stay& stay = stays_[need];
      const std::int64_t size = bytes_of(problem_.tensors[need]);
      if (step > stay.last) add_bytes(floor_, stay.last + 1, step + 1, size);
      stay.last = std::max(stay.last, step);
      if (step >= stay.first) continue;
      if (choices_[need] == Choice::kRecompute) return false;
      if (choices_[need] == Choice::kOffload) add_bytes(floor_, step, stay.first, size);
      stay.first = step;
    }
    return true;
  }
  void rebuild() {
    stays_ = find_stays(problem_, choices_);
    floor_ = find_floor(problem_, choices_, stays_);
  }

  const Problem& problem_;
  std::vector<Choice>& choices_;
  std::vector<Stay> stays_;
  std::vector<std::int64_t> floor_;
  std::uint64_t pinned_bytes_ = 0;
};

// The greedy choice.  Steps
// that are above the limit become fewer, and so does what a tensor is good for: the best one of a
// heap is weighed again before it is taken.
class Cover {
 public:
  Cover(const Problem& problem, std::uint64_t limit_bytes, double hidden_ns,
        std::vector<Choice>& choices)
      : problem_(problem),
        limit_(static_cast<std::int64_t>(limit_bytes)),
        hidden_ns_(hidden_ns),
        choices_(problem, choices),
        begin_ns_(problem.step_ns.size() + 1, 0),
        stride_(1 + problem.tensors.size() / 256) {
    for (std::size_t step = 0; step < problem.step_ns.size(); ++step) {
      begin_ns_[step + 1] = begin_ns_[step] + static_cast<double>(problem.step_ns[step]);
    }
  }

  bool run() {
    count_steps_above();
    for (std::uint32_t i = 0; i < problem_.tensors.size(); ++i) {
      if (choices_.of(i) == Choice::kKeep && problem_.tensors[i].must == Choice::kNone) push(i);
    }
    while (above_.back() > 0 && !best_.empty()) take_best();
    keep_what_can();
    count_steps_above();
    return above_.back() == 0;
  }

 private:
  // Above the limit, before each step.
  void count_steps_above() {
    const std::vector<std::int64_t>& floor = choices_.floor();
    above_.assign(floor.size() + 1, 0);
    for (std::size_t step = 0; step < floor.size(); ++step) {
      above_[step + 1] = above_[step] + (floor[step] > limit_ ? 1 : 0);
    }
  }
  double cost(std::uint32_t i, Choice choice) const {
    const Tensor& tensor = problem_.tensors[i];
    if (choice == Choice::kRecompute) return static_cast<double>(tensor.recompute_ns);
    const double copies_ns = out_ns(problem_, tensor) + in_ns(problem_, tensor);
    if (hidden_ns_ <= 0) return copies_ns;
    // Least for what is longest unused and would cost most otherwise.
    const double unused_ns = begin_ns_[choices_.gap_end(i)] - begin_ns_[choices_.gap_begin(i)];
    const auto again_ns = static_cast<double>(tensor.recompute_ns);
    const double other_ns = again_ns < 0 ? copies_ns : std::min(again_ns + 1, copies_ns);
    return 1e-12 * copies_ns * copies_ns / std::max(other_ns * unused_ns / begin_ns_.back(), 1e-3);
  }
  // kKeep where there is no other.
  Choice cheapest(std::uint32_t i) const {
    const bool again = choices_.may(i, Choice::kRecompute);
    if (!choices_.may(i, Choice::kOffload)) return again ? Choice::kRecompute : Choice::kKeep;
    if (!again) return Choice::kOffload;
    const bool is_cheaper = cost(i, Choice::kRecompute) < cost(i, Choice::kOffload);
    return is_cheaper ? Choice::kRecompute : Choice::kOffload;
  }
  double worth(std::uint32_t i, Choice choice) const {
    if (choice == Choice::kKeep || choices_.gap_begin(i) >= choices_.gap_end(i)) return 0;
    const std::uint32_t steps = above_[choices_.gap_end(i)] - above_[choices_.gap_begin(i)];
    const double byte_steps = static_cast<double>(bytes_of(problem_.tensors[i])) * steps;
    return byte_steps / (cost(i, choice) + 1e-9);
  }
  void push(std::uint32_t i) {
    const double value = worth(i, cheapest(i));
    if (value > 0) best_.push({value, i});
  }
  void take_best() {
    const auto [value, i] = best_.top();
    best_.pop();
    const Choice choice = cheapest(i);
    if (worth(i, choice) < value) return push(i);
    choices_.set(i, choice);
    taken_.push_back(i);
    if (choice == Choice::kOffload) {
      hidden_ns_ -= out_ns(problem_, problem_.tensors[i]) + in_ns(problem_, problem_.tensors[i]);
    }
    if (taken_.size() % stride_ == 0) count_steps_above();
  }

  // The dearest first.
  void keep_what_can() {
    std::ranges::stable_sort(taken_, std::greater<>(),
                             [&](std::uint32_t i) { return cost(i, choices_.of(i)); });
    for (const std::uint32_t i : taken_) {
      const std::int64_t size = bytes_of(problem_.tensors[i]);
      bool fits = true;
      for (std::uint32_t step = choices_.gap_begin(i); fits && step < choices_.gap_end(i); ++step) {
        fits = choices_.floor()[step] + size <= limit_;
      }
      if (fits) choices_.set(i, Choice::kKeep);
    }
  }

  const Problem& problem_;
  std::int64_t limit_;
  double hidden_ns_;  // of copies, which cost no time
  Choices choices_;
  std::vector<double> begin_ns_;  // of each step, and the end
  std::vector<std::uint32_t> above_;
  std::size_t stride_;  // so many choices between two counts of the steps above
  std::priority_queue<std::pair<double, std::uint32_t>> best_;
  std::vector<std::uint32_t> taken_;
};

// Lowers the first of the highest steps, as long as one tensor can do that.
class Least {
 public:
  Least(const Problem& problem, std::vector<Choice>& choices)
      : problem_(problem), choices_(problem, choices) {
    for (std::uint32_t i = 0; i < choices.size(); ++i) {
      if (problem.tensors[i].must == Choice::kNone) turn_.push_back(i);
    }
    const auto size = [&](std::uint32_t i) { return problem.tensors[i].size_bytes; };
    std::ranges::stable_sort(turn_, std::greater<>(), size);
    std::uint64_t pinned = 0;
    for (const Tensor& tensor : problem.tensors) pinned += pinned_bytes_of(tensor);
    if (pinned > problem.pinned_bytes) std::swap(ways_[0], ways_[1]);
  }

  void run() {
    while (lower_peak()) {
    }
  }

 private:
  bool lower_peak() {
    const auto& floor = choices_.floor();
    const std::int64_t peak = find_peak(floor);
    const auto top = static_cast<std::uint32_t>(std::ranges::find(floor, peak) - floor.begin());
    return std::ranges::any_of(turn_, [&](std::uint32_t i) {
      const bool is_there = top >= choices_.gap_begin(i) && top < choices_.gap_end(i);
      return is_there && choices_.of(i) == Choice::kKeep && problem_.tensors[i].size_bytes > 0 &&
             (give_up(i, ways_[0], peak) || give_up(i, ways_[1], peak));
    });
  }
  // Computing a tensor again keeps others that it needs, and may gain nothing.
  bool give_up(std::uint32_t i, Choice choice, std::int64_t peak) {
    if (!choices_.may(i, choice)) return false;
    choices_.set(i, choice);
    if (find_peak(choices_.floor()) <= peak) return true;
    choices_.set(i, Choice::kKeep);
    return false;
  }

  const Problem& problem_;
  Choices choices_;
  std::vector<std::uint32_t> turn_;                          // the largest first
  Choice ways_[2] = {Choice::kOffload, Choice::kRecompute};  // which is tried first
};

}  // namespace

std::vector<Choice> wished_choices(const Problem& problem) {
  std::vector<Choice> choices;
  for (const Tensor& tensor : problem.tensors) {
    choices.push_back(tensor.must == Choice::kNone ? Choice::kKeep : tensor.must);
  }
  return choices;
}

bool cover_limit(const Problem& problem, std::uint64_t limit_bytes, double hidden_ns,
                 std::vector<Choice>& choices) {
  choices = wished_choices(problem);
  return Cover(problem, limit_bytes, hidden_ns, choices).run();
}

void relax_least(const Problem& problem, std::uint64_t limit_bytes, std::vector<Choice>& choices) {
  const auto gain_ns = [&](std::uint32_t i) {
    const Tensor& tensor = problem.tensors[i];
    return out_ns(problem, tensor) + in_ns(problem, tensor) -
           static_cast<double>(tensor.recompute_ns);
  };
  std::vector<std::uint32_t> turn;
  for (std::uint32_t i = 0; i < choices.size(); ++i) {
    const Tensor& tensor = problem.tensors[i];
    const bool may = tensor.recompute_ns >= 0 && tensor.must == Choice::kNone;
    if (may && choices[i] == Choice::kOffload && gain_ns(i) > 0) turn.push_back(i);
  }
  std::ranges::stable_sort(turn, std::greater<>(), gain_ns);
  Choices relaxed(problem, choices);
  for (const std::uint32_t i : turn) {
    relaxed.set(i, Choice::kRecompute);
    if (find_peak(relaxed.floor()) > static_cast<std::int64_t>(limit_bytes)) {
      relaxed.set(i, Choice::kOffload);
    }
  }
}

std::uint64_t least_peak(const Problem& problem, const std::vector<Choice>& choices) {
  const std::vector<std::int64_t> floor =
      find_floor(problem, choices, find_stays(problem, choices));
  return static_cast<std::uint64_t>(find_peak(floor));
}

std::vector<Choice> choose_least(const Problem& problem) {
  std::vector<Choice> choices = wished_choices(problem);
  Least(problem, choices).run();
  return choices;
}

}  // namespace anabranch::offload
