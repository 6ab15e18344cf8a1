// SPDX-License-Identifier: Apache-2.0
// Tenants of arena bytes. In the order of their first accesses, each temporary is compared with the
// tenants it takes bytes from; earlier tenants of these bytes were compared with those.
#include <algorithm>
#include <map>

#include "plan/check_order.h"

namespace anabranch::check {
namespace {

using Entry = AccessesByBuffer::Entry;

struct Tenant {
  BufferId buffer{};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t position = 0;  // of its first access
  std::vector<StepId> first;   // accesses, of each lane
  std::vector<StepId> last;
};

void add_step(const Clocks& clocks, Tenant& tenant, StepId step) {
  const auto same_lane = [&](StepId other) { return clocks.lane(other) == clocks.lane(step); };
  const auto at = std::find_if(tenant.first.begin(), tenant.first.end(), same_lane);
  if (at == tenant.first.end()) {
    tenant.first.push_back(step);
    tenant.last.push_back(step);
    return;
  }
  StepId& last = tenant.last[static_cast<std::size_t>(at - tenant.first.begin())];
  if (clocks.place(step) < clocks.place(*at)) *at = step;
  if (clocks.place(step) > clocks.place(last)) last = step;
}

std::vector<Tenant> make_tenants(const Demands& demands, const AccessesByBuffer& accesses,
                                 const ArenaLayout& arena) {
  const Clocks& clocks = demands.clocks;
  std::vector<Tenant> tenants;
  for (std::uint32_t i = 0; i < demands.program.buffers().size(); ++i) {
    const std::uint64_t size = demands.program.buffers()[i].size_bytes;
    if (i >= arena.offsets.size() || arena.offsets[i] > ~std::uint64_t{0} - size) continue;
    if (arena.offsets[i] == kNotInArena || size == 0) continue;
    Tenant tenant{BufferId{i}, arena.offsets[i], arena.offsets[i] + size, kNever, {}, {}};
    for (const Entry entry : accesses.of(BufferId{i})) {
      add_step(clocks, tenant, entry.step);
      tenant.position = std::min(tenant.position, clocks.position(entry.step));
    }
    if (!tenant.first.empty()) tenants.push_back(std::move(tenant));
  }
  std::stable_sort(tenants.begin(), tenants.end(),
                   [](const Tenant& a, const Tenant& b) { return a.position < b.position; });
  return tenants;
}

// Who had each byte of the arena last.
class Tenancy {
 public:
  // Answers those that lose bytes to the new tenant.
  std::vector<std::size_t> move_in(std::size_t tenant, std::uint64_t begin, std::uint64_t end) {
    split(begin);
    split(end);
    std::vector<std::size_t> before;
    auto at = spans_.lower_bound(begin);
    while (at != spans_.end() && at->first < end) {
      before.push_back(at->second.tenant);
      at = spans_.erase(at);
    }
    spans_.emplace(begin, Span{end, tenant});
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    return before;
  }

 private:
  struct Span {
    std::uint64_t end = 0;
    std::size_t tenant = 0;
  };
  void split(std::uint64_t byte) {
    auto at = spans_.lower_bound(byte);
    if (at == spans_.begin()) return;
    Span& span = (--at)->second;
    if (span.end <= byte) return;
    spans_.emplace(byte, span);
    span.end = byte;
  }
  std::map<std::uint64_t, Span> spans_;  // by first byte
};

void demand_all_before(Demands& demands, const Tenant& a, const Tenant& b) {
  for (const StepId last : a.last) {
    for (const StepId first : b.first) {
      if (last == first) {
        demands.unmet.push_back({first, last, a.buffer, b.buffer});
        return;
      }
      if (!demands.demand(last, first, a.buffer, b.buffer)) return;
    }
  }
}

}  // namespace

void demand_arena_order(Demands& demands, const AccessesByBuffer& accesses,
                        const ArenaLayout& arena) {
  const std::vector<Tenant> tenants = make_tenants(demands, accesses, arena);
  Tenancy tenancy;
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    for (const std::size_t before : tenancy.move_in(i, tenants[i].begin, tenants[i].end)) {
      demand_all_before(demands, tenants[before], tenants[i]);
    }
  }
}

}  // namespace anabranch::check
