// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/node_accesses.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kNone = ~0u;

// What is known of one node: the allocations that were there before it was queued, and when that
// had been done; and the noted work that it is of.
struct NodeTime {
  std::uint32_t begin = 0, end = 0;
  std::uint32_t work = kNone;
};

// What noted work does with memory.
struct WorkUses {
  std::map<std::uint32_t, bool> writes;  // by unit
  bool has_scratch = false;
};

std::vector<NodeTime> times_of_nodes(const GraphImage& image, const Notes& notes,
                                     std::size_t allocations) {
  const CaptureMarks& marks = *notes.marks;
  std::vector<std::uint32_t> work_of(marks.count() + 1, kNone);  // by mark
  for (std::uint32_t work = 0; work < notes.works.size(); ++work) {
    if (notes.works[work].mark < marks.count()) work_of[notes.works[work].mark] = work;
  }
  const auto made = [&](std::uint32_t mark) {
    const std::uint64_t until = notes.before + marks.allocations(mark);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(until, allocations));
  };
  std::vector<NodeTime> times;
  for (const NodeImage& node : image.nodes) {
    const std::uint32_t mark = marks.mark_of(node.captured());
    times.push_back({mark == 0 ? notes.before : made(mark - 1),
                     mark == marks.count() ? static_cast<std::uint32_t>(allocations) : made(mark),
                     work_of[mark]});
  }
  return times;
}

// Empty where one writes memory that is no unit: what else does is unknown.
std::vector<std::optional<WorkUses>> uses_of_works(const UnitTable& units, bool of_second,
                                                   const Notes& notes) {
  std::vector<std::optional<WorkUses>> all;
  std::size_t next = 0;
  for (const CaptureWork& work : notes.works) {
    std::optional<WorkUses> found{{{}, work.has_scratch}};
    for (const CaptureUse& use : notes.uses.subspan(next, work.uses)) {
      const auto hit =
          of_second ? units.find_in_second(use.address) : units.find_in_first(use.address);
      if (hit.unit != UnitTable::kNone) {
        if (found) found->writes[hit.unit] |= use.writes;
      } else if (use.writes) {
        found.reset();
      }
    }
    next += work.uses;
    all.push_back(std::move(found));
  }
  return all;
}

// A collective's kernel may come by its buffers some other way than by naming them, and then its
// order cannot be told.
void forget_unnamed(std::span<const FoundSite> sites, std::span<const NodeTime> times,
                    std::span<const CaptureWork> works,
                    std::vector<std::optional<WorkUses>>& uses) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> named;  // works and units
  for (const FoundSite& site : sites) named.emplace(times[site.node].work, site.address_unit);
  for (std::uint32_t work = 0; work < works.size(); ++work) {
    if (!works[work].in_turn || !uses[work]) continue;
    const auto& used = uses[work]->writes;
    const auto is_named = [&](const auto& use) { return named.contains({work, use.first}); };
    if (!std::all_of(used.begin(), used.end(), is_named)) uses[work].reset();
  }
}

std::uint32_t order_of(std::uint32_t work, const CaptureWork& about) {
  if (about.in_turn) return NodeFacts::kInTurn;
  return about.independent ? NodeFacts::kNoWork : work;
}

// Allocations, and pieces of scratch behind them, joined to those that cannot be told from them.
class TenantFinder {
 public:
  TenantFinder(std::span<const CaptureAllocation> allocations, const UnitTable& units)
      : allocations_(allocations), units_(units), made_(units.units().size()) {
    for (std::uint32_t i = 0; i < allocations.size(); ++i) {
      made_[units.unit_of()[i]].push_back(i);
      add_element(i);
    }
  }

  bool is_made_in(std::uint32_t unit, std::uint32_t begin, std::uint32_t end) const {
    const auto made = std::lower_bound(made_[unit].begin(), made_[unit].end(), begin);
    return made != made_[unit].end() && *made < end;
  }

  // What known work means by an address: what it has allocated there itself, one after the other;
  // else what was there before and still is.
  std::uint32_t tenant_of_work(std::uint32_t unit, std::uint32_t begin, std::uint32_t end) {
    const std::uint32_t last = latest(unit, end);
    for (const std::uint32_t made : made_[unit]) {
      if (made >= begin && made < end) join(made, last);
    }
    return last;
  }

  // What any other node may mean by it: also what was there before and is no more.
  std::uint32_t tenant_of_any(std::uint32_t unit, std::uint32_t begin, std::uint32_t end) {
    const std::uint32_t last = tenant_of_work(unit, begin, end);
    join(latest(unit, begin), last);
    return last;
  }

  // A piece of its own for each work.
  std::uint32_t scratch_of(std::uint32_t unit, std::uint32_t work, std::uint32_t end) {
    const auto [at, is_new] = scratch_.try_emplace({unit, work}, elements());
    if (is_new) add_element(latest(unit, end));
    return at->second;
  }

  // Units of all elements, and the number that each element has among them.
  NodeAccesses number(std::vector<std::uint32_t>& numbers) {
    NodeAccesses made;
    numbers.assign(parents_.size(), kNone);
    for (std::uint32_t i = 0; i < parents_.size(); ++i) {
      const std::uint32_t top = root(i), allocation = allocation_of_[i];
      if (numbers[top] == kNone) {
        numbers[top] = static_cast<std::uint32_t>(made.units.size());
        made.units.push_back(units_.units()[units_.unit_of()[allocation]]);
        made.units.back().bytes = 0;
      }
      numbers[i] = numbers[top];
      std::uint64_t& bytes = made.units[numbers[top]].bytes;
      bytes = std::max(bytes, allocations_[allocation].bytes);
      if (i < allocations_.size()) made.unit_of.push_back(numbers[top]);
    }
    return made;
  }

 private:
  // The last allocation before that one; the first where there was none yet.
  std::uint32_t latest(std::uint32_t unit, std::uint32_t before) const {
    const auto after = std::lower_bound(made_[unit].begin(), made_[unit].end(), before);
    return after == made_[unit].begin() ? made_[unit].front() : *std::prev(after);
  }
  std::uint32_t elements() const { return static_cast<std::uint32_t>(parents_.size()); }
  void add_element(std::uint32_t allocation) {
    parents_.push_back(elements());
    allocation_of_.push_back(allocation);
  }
  std::uint32_t root(std::uint32_t element) {
    while (parents_[element] != element) {
      element = parents_[element] = parents_[parents_[element]];
    }
    return element;
  }
  void join(std::uint32_t a, std::uint32_t b) { parents_[root(a)] = root(b); }

  const std::span<const CaptureAllocation> allocations_;
  const UnitTable& units_;
  std::vector<std::vector<std::uint32_t>> made_;  // by unit: its allocations, in order of time
  std::vector<std::uint32_t> parents_;            // by element
  std::vector<std::uint32_t> allocation_of_;      // by element
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> scratch_;
};

// Each launch of a kernel over a list of tensors has the addresses of some in its parameters, and
// behind them what the launches before it, or whatever was on the stack, had there.
void drop_leftovers(std::span<const NodeTime> times, std::span<const CaptureWork> works,
                    std::span<const std::optional<WorkUses>> uses, const TenantFinder& tenants,
                    std::vector<FoundSite>& sites) {
  std::erase_if(sites, [&](const FoundSite& site) {
    const NodeTime& time = times[site.node];
    if (site.operand != Operand::kParam || time.work == kNone || !uses[time.work]) return false;
    const WorkUses& known = *uses[time.work];
    return works[time.work].independent && !known.has_scratch &&
           !known.writes.contains(site.address_unit) &&
           !tenants.is_made_in(site.address_unit, time.begin, time.end);
  });
}

// NCCL's events order its kernels with work outside of the graph; they touch no memory.
bool can_be_known(const NodeImage& node, std::uint32_t work) {
  const bool is_event =
      node.type == CuNodeType::kWaitEvent || node.type == CuNodeType::kEventRecord;
  return node.type == CuNodeType::kKernel || (is_event && work == NodeFacts::kInTurn);
}

// The element that a site means, and what its node does there.
class SiteReader {
 public:
  SiteReader(TenantFinder& tenants, std::span<const NodeTime> times,
             std::span<const std::optional<WorkUses>> uses, std::uint32_t before)
      : tenants_(tenants), times_(times), uses_(uses), before_(before) {}

  // Of a node; null where it is of no work that is known.
  const WorkUses* work_of(std::size_t node) const {
    const std::uint32_t work = times_[node].work;
    return work != kNone && uses_[work] ? &*uses_[work] : nullptr;
  }

  std::uint32_t element_of(const FoundSite& found, Site& site) {
    const NodeTime& time = times_[found.node];
    const std::uint32_t unit = found.address_unit;
    const WorkUses* const work = work_of(found.node);
    if (!work) return tenants_.tenant_of_any(unit, time.begin, time.end);
    const auto use = work->writes.find(unit);
    const bool is_named = use != work->writes.end();
    if (is_named) site.writes = use->second;
    const bool is_scratch = !is_named && work->has_scratch &&
                            !tenants_.is_made_in(unit, 0, before_) &&
                            !tenants_.is_made_in(unit, time.begin, time.end);
    return is_scratch ? tenants_.scratch_of(unit, time.work, time.end)
                      : tenants_.tenant_of_work(unit, time.begin, time.end);
  }

 private:
  TenantFinder& tenants_;
  const std::span<const NodeTime> times_;
  const std::span<const std::optional<WorkUses>> uses_;
  const std::uint32_t before_;
};

}  // namespace

NodeAccesses find_accesses(std::span<const CaptureAllocation> allocations, const UnitTable& units,
                           bool of_second, const Notes* notes, const GraphImage& image,
                           std::vector<FoundSite> found) {
  TenantFinder tenants(allocations, units);
  const auto count = static_cast<std::uint32_t>(allocations.size());
  std::vector<NodeTime> times(image.nodes.size(), NodeTime{0, count});
  std::vector<std::optional<WorkUses>> uses;
  if (notes) {
    times = times_of_nodes(image, *notes, count);
    uses = uses_of_works(units, of_second, *notes);
    forget_unnamed(found, times, notes->works, uses);
    drop_leftovers(times, notes->works, uses, tenants, found);
  }
  SiteReader reader(tenants, times, uses, notes ? notes->before : 0);
  std::vector<Site> sites;
  std::vector<std::uint32_t> elements, numbers;
  for (const FoundSite& each : found) {
    Site& site = sites.emplace_back(Site{each.node, each.operand, each.offset, 0, each.shift});
    elements.push_back(reader.element_of(each, site));
  }
  NodeAccesses made = tenants.number(numbers);
  for (std::size_t i = 0; i < sites.size(); ++i) sites[i].unit = numbers[elements[i]];
  made.sites = std::move(sites);
  for (std::size_t node = 0; node < times.size(); ++node) {
    NodeFacts& facts = made.facts.emplace_back();
    if (!reader.work_of(node)) continue;
    facts.work = order_of(times[node].work, notes->works[times[node].work]);
    facts.is_known = can_be_known(image.nodes[node], facts.work);
  }
  return made;
}

}  // namespace anabranch::cuda
