// SPDX-License-Identifier: Apache-2.0
#include "offload/check_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "offload/lives.h"

namespace anabranch::offload {
namespace {

Status refuse(const std::string& what) {
  return Status(StatusCode::kProgramInvalid, "offload: " + what);
}

Status check_sizes(const Problem& problem) {
  const std::size_t steps = problem.step_ns.size();
  if (steps > kMaxSteps || problem.tensors.size() > kMaxTensors) {
    return refuse(fmt::format("{} steps and {} tensors; {} and {} can be planned.", steps,
                              problem.tensors.size(), kMaxSteps, kMaxTensors));
  }
  if (problem.forward_steps > steps) {
    return refuse(fmt::format("{} of {} steps are the forward's.", problem.forward_steps, steps));
  }
  if (!problem.base_bytes.empty() && problem.base_bytes.size() != steps) {
    return refuse(fmt::format("base_bytes has {} steps of {}. Give all, or none.",
                              problem.base_bytes.size(), steps));
  }
  const auto too_large = [](std::uint64_t value) { return value > kMaxBytes; };
  if (std::ranges::any_of(problem.base_bytes, too_large) ||
      std::ranges::any_of(problem.step_ns, [](auto ns) { return ns > kMaxNs; })) {
    return refuse(fmt::format("a step has more than {} ns or base bytes.", kMaxNs));
  }
  return {};
}

Status check_link(const Problem& problem) {
  const Link& link = problem.link;
  // Written so that no NaN passes.
  if (!(link.out_bytes_per_s >= 1) || !(link.in_bytes_per_s >= 1) || link.latency_ns > kMaxNs) {
    return refuse(
        fmt::format("a link of {} bytes/s out, {} in and {} ns of latency copies nothing.",
                    link.out_bytes_per_s, link.in_bytes_per_s, link.latency_ns));
  }
  if (!(link.both_ways > 0 && link.both_ways <= 1)) {
    return refuse(fmt::format("both_ways is {}; it is above 0 and at most 1.", link.both_ways));
  }
  if (!(problem.link_margin >= 0 && problem.link_margin <= 1)) {
    return refuse(fmt::format("link_margin is {}; it is from 0 to 1.", problem.link_margin));
  }
  return {};
}

Status check_wish(const Tensor& tensor, std::size_t number) {
  if (tensor.must > Choice::kOffload) {
    return refuse(fmt::format("tensor {} must be {}, which is no choice.", number,
                              static_cast<unsigned>(tensor.must)));
  }
  if (tensor.must == Choice::kOffload && !tensor.may_offload) {
    return refuse(fmt::format("tensor {} must be offloaded and may not be.", number));
  }
  if (tensor.must == Choice::kRecompute && tensor.recompute_ns < 0) {
    return refuse(fmt::format("tensor {} must be computed again and may not be.", number));
  }
  return {};
}

Status check_tensor(const Problem& problem, std::size_t number) {
  const Tensor& tensor = problem.tensors[number];
  const bool in_order = tensor.made_after <= tensor.last_forward_use &&
                        tensor.last_forward_use < problem.forward_steps &&
                        problem.forward_steps <= tensor.first_backward_use &&
                        tensor.first_backward_use <= tensor.last_backward_use &&
                        tensor.last_backward_use < problem.step_ns.size();
  if (!in_order) {
    return refuse(fmt::format(
        "tensor {} is made by step {}, used until {} and again from {} to {}; the forward ends at "
        "{} of {} steps.",
        number, tensor.made_after, tensor.last_forward_use, tensor.first_backward_use,
        tensor.last_backward_use, problem.forward_steps, problem.step_ns.size()));
  }
  if (tensor.size_bytes > kMaxBytes || tensor.recompute_ns > static_cast<std::int64_t>(kMaxNs)) {
    return refuse(fmt::format("tensor {} has {} bytes and takes {} ns again: too much.", number,
                              tensor.size_bytes, tensor.recompute_ns));
  }
  for (const std::uint32_t need : tensor.needs) {
    if (need >= number) {
      return refuse(
          fmt::format("tensor {} needs tensor {}, which does not stand before it.", number, need));
    }
  }
  return check_wish(tensor, number);
}

Status check_pinned(const Problem& problem) {
  std::uint64_t wished = 0;
  for (const Tensor& tensor : problem.tensors) {
    if (tensor.must == Choice::kOffload) wished += pinned_bytes_of(tensor);
  }
  if (wished <= problem.pinned_bytes) return {};
  return refuse(
      fmt::format("tensors that must be offloaded take {} bytes of pinned memory, and {} "
                  "are allowed.",
                  wished, problem.pinned_bytes));
}

}  // namespace

Status check_problem(const Problem& problem) {
  if (Status sizes = check_sizes(problem); !sizes) return sizes;
  if (Status link = check_link(problem); !link) return link;
  for (std::size_t i = 0; i < problem.tensors.size(); ++i) {
    if (Status tensor = check_tensor(problem, i); !tensor) return tensor;
  }
  return check_pinned(problem);
}

}  // namespace anabranch::offload
