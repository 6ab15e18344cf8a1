// SPDX-License-Identifier: Apache-2.0
#include "anabranch/experimental/offload.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "handles.h"

namespace ab = anabranch;

namespace {

ab::offload::Tensor tensor_of(const AnabranchOffloadTensor& from) {
  return {.size_bytes = from.size_bytes,
          .made_after = from.made_after,
          .last_forward_use = from.last_forward_use,
          .first_backward_use = from.first_backward_use,
          .last_backward_use = from.last_backward_use,
          .recompute_ns = from.recompute_ns,
          .may_offload = from.may_offload != 0,
          .must = ab::offload::Choice(from.must),
          .needs = {from.needs, from.needs + from.need_count}};
}

ab::offload::Problem problem_of(const AnabranchOffloadProblem& from) {
  ab::offload::Problem problem;
  problem.step_ns.assign(from.step_ns, from.step_ns + from.step_count);
  problem.forward_steps = static_cast<uint32_t>(from.forward_steps);
  if (from.base_bytes) {
    problem.base_bytes.assign(from.base_bytes, from.base_bytes + from.step_count);
  }
  std::transform(from.tensors, from.tensors + from.tensor_count,
                 std::back_inserter(problem.tensors), tensor_of);
  problem.link = {from.link.out_bytes_per_s, from.link.in_bytes_per_s, from.link.latency_ns,
                  from.link.both_ways};
  problem.link_margin = from.link_margin;
  problem.budget_bytes = from.budget_bytes;
  problem.pinned_bytes = from.pinned_bytes;
  return problem;
}

ab::offload::Decision decision_of(const AnabranchOffloadDecision& from) {
  return {.choice = ab::offload::Choice(from.choice),
          .back_before = from.back_before,
          .freed_before = from.freed_before,
          .out_order = from.out_order,
          .out_after = from.out_after,
          .in_order = from.in_order,
          .in_before = from.in_before,
          .pinned_offset = from.pinned_offset};
}

std::vector<ab::offload::Decision> decisions_of(const AnabranchOffloadProblem& problem,
                                                const AnabranchOffloadDecision* from) {
  std::vector<ab::offload::Decision> decisions;
  std::transform(from, from + problem.tensor_count, std::back_inserter(decisions), decision_of);
  return decisions;
}

AnabranchOffloadDecision written(const ab::offload::Decision& from) {
  return {static_cast<int32_t>(from.choice),
          from.back_before,
          from.freed_before,
          from.out_order,
          from.out_after,
          from.in_order,
          from.in_before,
          from.pinned_offset};
}

AnabranchOffloadPrediction written(const ab::offload::Prediction& from) {
  return {from.peak_bytes,   from.peak_step, from.total_ns, from.added_ns,
          from.recompute_ns, from.out_bytes, from.in_bytes, from.pinned_bytes};
}

}  // namespace

int32_t anabranch_offload_plan(const AnabranchOffloadProblem* problem,
                               AnabranchOffloadDecision* decisions,
                               AnabranchOffloadPrediction* predicted, uint64_t* least_bytes,
                               const char** reason) {
  return ab::bridge::guard([&] {
    auto plan = ab::offload::plan_offload(problem_of(*problem));
    if (!plan.ok()) return ab::bridge::fail(plan.error());
    std::ranges::transform(plan->decisions, decisions,
                           [](const ab::offload::Decision& made) { return written(made); });
    *predicted = written(plan->predicted);
    *least_bytes = plan->least_bytes;
    *reason = ab::bridge::keep(std::move(plan->reason));
    return 0;
  });
}

int32_t anabranch_offload_simulate(const AnabranchOffloadProblem* problem,
                                   const AnabranchOffloadDecision* decisions,
                                   AnabranchOffloadPrediction* predicted) {
  return ab::bridge::guard([&] {
    const ab::offload::Problem given = problem_of(*problem);
    const auto made = decisions_of(*problem, decisions);
    const ab::Status status = ab::offload::check_offload(given, made, ~uint64_t{0});
    if (!status) return ab::bridge::fail(status);
    *predicted = written(ab::offload::simulate_offload(given, made));
    return 0;
  });
}

int32_t anabranch_offload_check(const AnabranchOffloadProblem* problem,
                                const AnabranchOffloadDecision* decisions, uint64_t peak_bytes) {
  return ab::bridge::guard([&] {
    const ab::Status status = ab::offload::check_offload(
        problem_of(*problem), decisions_of(*problem, decisions), peak_bytes);
    return status ? 0 : ab::bridge::fail(status);
  });
}

size_t anabranch_offload_link_count(void) { return ab::offload::known_links().size(); }

const char* anabranch_offload_link(size_t number, AnabranchOffloadLink* out) {
  const ab::offload::NamedLink& known = ab::offload::known_links()[number];
  *out = {known.link.out_bytes_per_s, known.link.in_bytes_per_s, known.link.latency_ns,
          known.link.both_ways};
  return known.name.data();
}
