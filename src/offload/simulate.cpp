// SPDX-License-Identifier: Apache-2.0
// Decisions played out: one stream that computes, two queues that copy. An event is the end of a
// step or of a copy; between events a copy goes on at its rate, which the other queue may slow.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "anabranch/experimental/offload.h"
#include "offload/lives.h"

namespace anabranch::offload {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

struct Copy {
  std::uint32_t order = 0;
  std::uint32_t after = 0;      // steps of which so many have ended, or begun, before it may start
  std::uint32_t waited_by = 0;  // the step that waits for its end
  double work_ns = 0;
};

// Copies in order, one at a time.
class Queue {
 public:
  explicit Queue(std::vector<Copy> copies) : copies_(std::move(copies)) {
    std::ranges::sort(copies_, {}, &Copy::order);
  }
  bool is_busy() const { return left_ns_ >= 0; }
  double left_ns() const { return is_busy() ? left_ns_ : kForever; }
  // Starts the next copy if it may, where none is under way.
  void start(std::uint32_t steps) {
    if (!is_busy() && at_ < copies_.size() && copies_[at_].after <= steps) {
      left_ns_ = copies_[at_].work_ns;
    }
  }
  // Goes on for so long; takes a copy that ends off the count of those its step waits for.
  void advance(double work_ns, std::vector<std::uint32_t>& awaited) {
    if (!is_busy()) return;
    left_ns_ -= work_ns;
    if (left_ns_ > kDust) return;
    --awaited[copies_[at_++].waited_by];
    left_ns_ = kIdle;
  }

 private:
  static constexpr double kIdle = -1;
  static constexpr double kDust = 1e-6;  // what rounding leaves of a copy that has ended
  std::vector<Copy> copies_;
  std::size_t at_ = 0;
  double left_ns_ = kIdle;
};

class Simulation {
 public:
  Simulation(const Problem& problem, std::span<const Decision> decisions)
      : problem_(problem),
        work_ns_(problem.step_ns.begin(), problem.step_ns.end()),
        awaited_out_(problem.step_ns.size(), 0),
        awaited_in_(problem.step_ns.size(), 0),
        out_(copies_out(decisions)),
        in_(copies_in(decisions)) {}

  double run() {
    while (step_ < work_ns_.size()) {
      begin_what_can();
      const double rate = out_.is_busy() && in_.is_busy() ? problem_.link.both_ways : 1;
      const double wait = std::min({step_left_, out_.left_ns() / rate, in_.left_ns() / rate});
      if (wait == kForever) break;  // decisions that check_offload refuses
      now_ += wait;
      out_.advance(wait * rate, awaited_out_);
      in_.advance(wait * rate, awaited_in_);
      if (step_left_ == kForever) continue;
      step_left_ -= wait;
      if (step_left_ <= 0) end_step();
    }
    return now_;
  }

 private:
  std::vector<Copy> copies_out(std::span<const Decision> decisions) {
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < decisions.size(); ++i) {
      const Decision& made = decisions[i];
      if (made.choice != Choice::kOffload) continue;
      copies.push_back({made.out_order, made.out_after + 1, made.freed_before,
                        out_ns(problem_, problem_.tensors[i])});
      ++awaited_out_[made.freed_before];
    }
    return copies;
  }
  std::vector<Copy> copies_in(std::span<const Decision> decisions) {
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < decisions.size(); ++i) {
      const Decision& made = decisions[i];
      if (made.choice == Choice::kRecompute) {
        work_ns_[made.back_before] += static_cast<double>(problem_.tensors[i].recompute_ns);
      }
      if (made.choice != Choice::kOffload) continue;
      copies.push_back({made.in_order, made.in_before + 1, made.back_before,
                        in_ns(problem_, problem_.tensors[i])});
      ++awaited_in_[made.back_before];
    }
    return copies;
  }
  void begin_what_can() {
    out_.start(step_);
    if (step_left_ == kForever && awaited_out_[step_] == 0) {
      in_.start(step_ + 1);
      if (awaited_in_[step_] == 0) step_left_ = work_ns_[step_];
    } else {
      in_.start(step_left_ == kForever ? step_ : step_ + 1);
    }
  }
  void end_step() {
    ++step_;
    step_left_ = kForever;
  }

  const Problem& problem_;
  std::vector<double> work_ns_;             // by step, with what is computed again before it
  std::vector<std::uint32_t> awaited_out_;  // by step, copies that it waits for
  std::vector<std::uint32_t> awaited_in_;
  Queue out_, in_;
  double now_ = 0;
  std::uint32_t step_ = 0;       // the one that runs or waits
  double step_left_ = kForever;  // kForever: it waits
};

void set_peak(Prediction& predicted, const Problem& problem, std::span<const Decision> decisions) {
  std::vector<Choice> choices;
  for (const Decision& made : decisions) choices.push_back(made.choice);
  const std::vector<Stay> stays = find_stays(problem, choices);
  std::vector<std::int64_t> bytes = find_floor(problem, choices, stays);
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i].choice != Choice::kOffload) continue;
    const std::int64_t size = bytes_of(problem.tensors[i]);
    add_bytes(bytes, problem.tensors[i].last_forward_use + 1, decisions[i].freed_before, size);
    add_bytes(bytes, decisions[i].in_before, stays[i].first, size);
  }
  if (bytes.empty()) return;
  const auto top = std::ranges::max_element(bytes);
  predicted.peak_bytes = static_cast<std::uint64_t>(*top);
  predicted.peak_step = static_cast<std::uint32_t>(top - bytes.begin());
}

}  // namespace

Prediction simulate_offload(const Problem& problem, std::span<const Decision> decisions) {
  Prediction predicted;
  set_peak(predicted, problem, decisions);
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    const Tensor& tensor = problem.tensors[i];
    if (decisions[i].choice == Choice::kRecompute) {
      predicted.recompute_ns += static_cast<std::uint64_t>(tensor.recompute_ns);
    }
    if (decisions[i].choice != Choice::kOffload) continue;
    predicted.out_bytes += tensor.size_bytes;
    predicted.in_bytes += tensor.size_bytes;
    predicted.pinned_bytes =
        std::max(predicted.pinned_bytes, decisions[i].pinned_offset + pinned_bytes_of(tensor));
  }
  std::uint64_t kept_ns = 0;
  for (const std::uint64_t ns : problem.step_ns) kept_ns += ns;
  // A link may be so slow that no clock counts it.
  const double total_ns = std::min(Simulation(problem, decisions).run(), 9e18);
  predicted.total_ns = static_cast<std::uint64_t>(std::llround(total_ns));
  predicted.added_ns = predicted.total_ns - std::min(predicted.total_ns, kept_ns);
  return predicted;
}

}  // namespace anabranch::offload
