// SPDX-License-Identifier: Apache-2.0
// The proof that decisions are safe, from the order of steps and queues alone. It shares no code
// with what makes decisions, so that one mistake cannot hide in both.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "anabranch/experimental/offload.h"
#include "offload/check_problem.h"

namespace anabranch::offload {
namespace {

class Checker {
 public:
  Checker(const Problem& problem, std::span<const Decision> decisions)
      : problem_(problem), decisions_(decisions) {}

  Status run(std::uint64_t peak_bytes) {
    for (std::size_t i = 0; i < decisions_.size() && status_.ok(); ++i) check_decision(i);
    if (status_) check_uses();
    if (status_) check_queue("out", &Decision::out_order, &Decision::out_after, false);
    if (status_) check_queue("in", &Decision::in_order, &Decision::in_before, true);
    if (status_) check_pinned();
    if (status_) check_peak(peak_bytes);
    return std::move(status_);
  }

 private:
  void refuse(StatusCode code, const std::string& what) {
    status_ = Status(code, "offload: " + what);
  }
  void refuse(std::size_t tensor, const std::string& what) {
    refuse(StatusCode::kRace, fmt::format("tensor {} {}.", tensor, what));
  }
  void invalid(std::size_t tensor, const std::string& what) {
    refuse(StatusCode::kPlanInvalid, fmt::format("tensor {} {}.", tensor, what));
  }
  bool offloads(std::size_t i) const { return decisions_[i].choice == Choice::kOffload; }
  bool stays(std::size_t i) const { return decisions_[i].choice == Choice::kKeep; }

  void check_decision(std::size_t i) {
    const Tensor& tensor = problem_.tensors[i];
    const Decision& made = decisions_[i];
    if (made.choice == Choice::kNone || made.choice > Choice::kOffload) {
      return invalid(i, "has no choice");
    }
    if (tensor.must != Choice::kNone && tensor.must != made.choice) {
      return invalid(i, "is not what it must be");
    }
    if (made.choice == Choice::kRecompute && tensor.recompute_ns < 0) {
      return invalid(i, "may not be computed again");
    }
    if (offloads(i) && !tensor.may_offload) return invalid(i, "may not be offloaded");
    if (stays(i)) return;
    if (made.freed_before <= tensor.last_forward_use) {
      return refuse(i, fmt::format("is freed before step {} and used by step {} of the forward",
                                   made.freed_before, tensor.last_forward_use));
    }
    if (made.back_before < made.freed_before || made.back_before >= problem_.step_ns.size()) {
      return invalid(i, fmt::format("is back before step {} and freed before step {}",
                                    made.back_before, made.freed_before));
    }
    if (offloads(i)) check_copies(i);
  }

  void check_copies(std::size_t i) {
    const Decision& made = decisions_[i];
    if (made.out_after < problem_.tensors[i].made_after) {
      return refuse(i, fmt::format("is copied out after step {} and made by step {}",
                                   made.out_after, problem_.tensors[i].made_after));
    }
    if (made.out_after >= made.freed_before) {
      return refuse(i, fmt::format("is copied out after step {} and freed before step {}",
                                   made.out_after, made.freed_before));
    }
    if (made.in_before < made.freed_before) {
      return refuse(i, fmt::format("is copied in before step {}, and its copy out ends before {}",
                                   made.in_before, made.freed_before));
    }
    if (made.in_before > made.back_before) {
      return refuse(i, fmt::format("is used by step {} and copied in before step {}",
                                   made.back_before, made.in_before));
    }
  }

  // Every use in the backward, and every other tensor that is made of it again, finds it.
  void check_uses() {
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      check_use(i, problem_.tensors[i].first_backward_use);
      if (decisions_[i].choice != Choice::kRecompute) continue;
      for (const std::uint32_t need : problem_.tensors[i].needs) {
        check_use(need, decisions_[i].back_before);
      }
    }
  }
  void check_use(std::size_t i, std::uint32_t step) {
    if (!status_ || stays(i) || decisions_[i].back_before <= step) return;
    refuse(i, fmt::format("is used by step {} and back before step {}", step,
                          decisions_[i].back_before));
  }

  // A step waits for a copy, and so for all before it on the queue: none of them may begin later.
  void check_queue(const char* name, std::uint32_t Decision::*order,
                   std::uint32_t Decision::*begins, bool is_in) {
    std::vector<std::size_t> queue;
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      if (offloads(i)) queue.push_back(i);
    }
    std::ranges::sort(queue, {}, [&](std::size_t i) { return decisions_[i].*order; });
    std::uint32_t latest = 0;
    for (std::size_t place = 0; place < queue.size(); ++place) {
      const Decision& made = decisions_[queue[place]];
      if (made.*order != place) {
        return invalid(queue[place], fmt::format("has order {} on the queue {}, where {} is due",
                                                 made.*order, name, place));
      }
      latest = std::max(latest, made.*begins);
      const std::uint32_t waits = is_in ? made.back_before + 1 : made.freed_before;
      if (latest < waits) continue;
      return refuse(queue[place], fmt::format("waits on the queue {} for step {}, which waits for "
                                              "it",
                                              name, latest));
    }
  }

  // From the first copy out to the last copy in, which all contain the end of the forward.
  void check_pinned() {
    std::vector<std::size_t> lives;
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      if (offloads(i)) lives.push_back(i);
    }
    const auto place = [&](std::size_t i) {
      return std::pair(decisions_[i].pinned_offset, problem_.tensors[i].size_bytes);
    };
    std::ranges::sort(lives, {}, place);
    std::uint64_t end = 0;
    for (const std::size_t i : lives) {
      const auto [offset, size] = place(i);
      if (offset % kPinnedAlignment != 0) return invalid(i, "is not aligned in pinned memory");
      if (size > 0 && offset < end) return refuse(i, "has pinned bytes of another");
      if (size > problem_.pinned_bytes || offset > problem_.pinned_bytes - size) {
        return invalid(
            i, fmt::format("ends behind the {} bytes of pinned memory", problem_.pinned_bytes));
      }
      end = std::max(end, offset + size);
    }
  }

  void check_peak(std::uint64_t peak_bytes) {
    std::vector<std::uint64_t> bytes = problem_.base_bytes;
    bytes.resize(problem_.step_ns.size(), 0);
    for (std::size_t i = 0; i < decisions_.size(); ++i) {
      const std::uint64_t size = problem_.tensors[i].size_bytes;
      for (std::uint32_t step = 0; step < bytes.size(); ++step) {
        if (is_there(i, step)) bytes[step] += size;
      }
    }
    for (std::uint32_t step = 0; step < bytes.size(); ++step) {
      if (bytes[step] <= peak_bytes) continue;
      return refuse(StatusCode::kPlanInvalid,
                    fmt::format("step {} takes {} bytes, and the peak is said to be {}.", step,
                                bytes[step], peak_bytes));
    }
  }
  bool is_there(std::size_t i, std::uint32_t step) {
    const Decision& made = decisions_[i];
    if (step < problem_.tensors[i].made_after || step > last_use(i)) return false;
    if (stays(i) || step < made.freed_before) return true;
    return step >= (offloads(i) ? made.in_before : made.back_before);
  }
  std::uint32_t last_use(std::size_t i) {
    if (last_uses_.empty()) {
      for (const Tensor& tensor : problem_.tensors) last_uses_.push_back(tensor.last_backward_use);
      for (std::size_t k = 0; k < decisions_.size(); ++k) {
        if (decisions_[k].choice != Choice::kRecompute) continue;
        for (const std::uint32_t need : problem_.tensors[k].needs) {
          last_uses_[need] = std::max(last_uses_[need], decisions_[k].back_before);
        }
      }
    }
    return last_uses_[i];
  }

  const Problem& problem_;
  std::span<const Decision> decisions_;
  std::vector<std::uint32_t> last_uses_;
  Status status_;
};

}  // namespace

Status check_offload(const Problem& problem, std::span<const Decision> decisions,
                     std::uint64_t peak_bytes) {
  if (Status status = check_problem(problem); !status) return status;
  if (decisions.size() != problem.tensors.size()) {
    return Status(StatusCode::kPlanInvalid, fmt::format("offload: {} decisions for {} tensors.",
                                                        decisions.size(), problem.tensors.size()));
  }
  return Checker(problem, decisions).run(peak_bytes);
}

}  // namespace anabranch::offload
