// SPDX-License-Identifier: Apache-2.0
#include "plan/regions.h"

#include <algorithm>
#include <utility>

#include "plan/clocks.h"
#include "plan/order.h"
#include "plan/waits.h"

namespace anabranch {
namespace {

bool is_sync(const Step& step) {
  return step.kind == StepKind::kRecordEvent || step.kind == StepKind::kWaitEvent ||
         step.kind == StepKind::kSynchronize;
}

// Finds for each step the one that leads its group: itself, or an earlier one of its stream.
class Gatherer {
 public:
  Gatherer(const Program& program, std::span<const Wait> waits, CompareWork& work)
      : program_(program),
        waits_(waits),
        clocks_(program),
        dependencies_(program, AccessHistory::Reads::kAll, work),
        waited_for_(program.steps().size(), false),
        lead_(program.steps().size()),
        leads_(program.streams().size()) {
    for (const Wait& wait : waits) waited_for_[index_of(wait.on)] = true;
  }

  // Steps come in program order.
  void add(StepId step) {
    add_to_clocks(step);
    const std::span<const StepId> after = dependencies_.next(step);
    const bool compute = program_.step(step).kind == StepKind::kCompute;
    lead_[index_of(step)] = compute ? find_lead(step, after) : step;
    std::vector<StepId>& leads = leads_[index_of(program_.step(step).stream)];
    if (compute && lead_[index_of(step)] == step) leads.push_back(step);
    if (waited_for_[index_of(step)] || is_sync(program_.step(step))) leads.clear();
  }
  StepId lead(StepId step) const { return lead_[index_of(step)]; }

 private:
  void add_to_clocks(StepId step) {
    after_.clear();
    for (; next_wait_ < waits_.size() && waits_[next_wait_].step == step; ++next_wait_) {
      after_.push_back(waits_[next_wait_].on);
    }
    clocks_.add(step, after_);
  }

  // The first lead that comes after all that the step must come after. What satisfies one lead
  // satisfies the later ones.
  StepId find_lead(StepId step, std::span<const StepId> after) const {
    const StreamId stream = program_.step(step).stream;
    const auto comes_before_needed = [&](StepId lead) {
      return std::any_of(after.begin(), after.end(), [&](StepId on) {
        if (on == step) return false;
        if (program_.step(on).stream == stream) return this->lead(on) > lead;
        return !clocks_.before(on, lead);
      });
    };
    const std::vector<StepId>& leads = leads_[index_of(stream)];
    const auto at = std::partition_point(leads.begin(), leads.end(), comes_before_needed);
    return at == leads.end() ? step : *at;
  }

  const Program& program_;
  std::span<const Wait> waits_;
  std::size_t next_wait_ = 0;
  Clocks clocks_;
  Dependencies dependencies_;
  std::vector<bool> waited_for_;
  std::vector<StepId> lead_;
  // By stream, since the last step that another stream waits for.
  std::vector<std::vector<StepId>> leads_;
  std::vector<StepId> after_;
};

}  // namespace

Result<std::vector<StepId>> gather_steps(const Program& program, std::span<const Wait> waits) {
  std::vector<StepId> order = make_order(program);
  CompareWork work(program);
  Gatherer gatherer(program, waits, work);
  for (const StepId step : order) {
    gatherer.add(step);
    if (work.exhausted()) return work.refusal("regions");
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](StepId a, StepId b) { return gatherer.lead(a) < gatherer.lead(b); });
  return order;
}

Groups cut_regions(const Program& program, std::span<const StepId> order,
                   std::span<const Wait> waits) {
  std::vector<bool> waits_for(order.size(), false);
  std::vector<bool> waited_for(order.size(), false);
  for (const Wait& wait : waits) {
    waits_for[index_of(wait.step)] = true;
    waited_for[index_of(wait.on)] = true;
  }
  constexpr std::uint32_t kCut = ~0u;
  std::vector<std::uint32_t> open(program.streams().size(), kCut);  // the group that goes on
  Groups groups{std::vector<std::uint32_t>(order.size()), 0};
  for (const StepId id : order) {
    const Step& step = program.step(id);
    std::uint32_t& group = open[index_of(step.stream)];
    const bool compute = step.kind == StepKind::kCompute;
    if (!compute || waits_for[index_of(id)] || group == kCut) group = groups.count++;
    groups.group_of[index_of(id)] = group;
    if (!compute || waited_for[index_of(id)]) group = kCut;
  }
  return groups;
}

Result<std::vector<std::uint32_t>> find_regions(const Program& program) {
  const std::vector<StepId> given = make_order(program);
  const Result<std::vector<Wait>> waits = derive_waits(program, given);
  if (!waits) return waits.error();
  const Result<std::vector<StepId>> gathered = gather_steps(program, *waits);
  if (!gathered) return gathered.error();
  Groups as_given = cut_regions(program, given, *waits);
  if (*gathered == given) return as_given.group_of;
  const Result<std::vector<Wait>> waits_gathered = derive_waits(program, *gathered);
  if (!waits_gathered) return waits_gathered.error();
  Groups as_gathered = cut_regions(program, *gathered, *waits_gathered);
  const bool more = as_gathered.count > as_given.count;
  return more ? std::move(as_given.group_of) : std::move(as_gathered.group_of);
}

}  // namespace anabranch
