// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/arena/plan_arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "record/cuda/rewrite/table_reach.h"

namespace anabranch::cuda {
namespace {

// A result that is larger than itself is a view of its memory, which costs a launch a little.
constexpr std::uint64_t kLeastToGrow = std::uint64_t{1} << 20, kShareToGrow = 64;

// The chain of each node: that of a node it comes after, if that is the chain's last so far.
std::vector<std::uint32_t> make_chains(const GraphImage& image, std::uint32_t& count) {
  constexpr std::uint32_t kNone = ~0u;
  std::vector<std::uint32_t> chain(image.nodes.size(), kNone);
  std::vector<std::uint32_t> last;  // by chain
  auto edge = image.edges.begin();
  for (std::uint32_t node = 0; node < image.nodes.size(); ++node) {
    for (; edge != image.edges.end() && edge->to == node; ++edge) {
      if (chain[node] == kNone && last[chain[edge->from]] == edge->from) {
        chain[node] = chain[edge->from];
      }
    }
    if (chain[node] == kNone) {
      chain[node] = static_cast<std::uint32_t>(last.size());
      last.push_back(node);
    }
    last[chain[node]] = node;
  }
  count = static_cast<std::uint32_t>(last.size());
  return chain;
}

// The units that each node uses, sorted. A node that may overtake one it depends on (is_early)
// keeps that one's units alive until its own end; what comes behind it comes behind both.
std::vector<std::vector<std::uint32_t>> units_of_nodes(const GraphImage& image,
                                                       std::span<const Site> sites,
                                                       std::span<const TableWrite> tables) {
  std::vector<std::vector<std::uint32_t>> units(image.nodes.size());
  for (const Site& site : sites) units[site.node].push_back(site.unit);
  add_units_of_tables(image, tables, units);
  for (const EdgeImage& edge : image.edges) {
    if (!is_early(edge)) continue;
    units[edge.to].insert(units[edge.to].end(), units[edge.from].begin(), units[edge.from].end());
  }
  for (auto& used : units) {
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
  }
  return units;
}

// Of the nodes of one chain that a node depends on, the latest.
std::vector<Wait> waits_between(const GraphImage& image, std::span<const std::uint32_t> chain) {
  std::vector<Wait> waits;
  auto edge = image.edges.begin();
  for (std::uint32_t node = 0; node < image.nodes.size(); ++node) {
    std::map<std::uint32_t, std::uint32_t> latest;  // by chain
    for (; edge != image.edges.end() && edge->to == node; ++edge) {
      if (chain[edge->from] == chain[node]) continue;
      auto& on = latest[chain[edge->from]];
      on = std::max(on, edge->from);
    }
    for (const auto& [_, on] : latest) waits.push_back({StepId(node), StepId(on)});
  }
  return waits;
}

Result<Program> make_program(const GraphImage& image, std::span<const Site> sites,
                             std::span<const Unit> units, std::span<const UnitKind> kinds,
                             std::span<const TableWrite> tables,
                             std::span<const std::uint32_t> chain, std::uint32_t chains) {
  ProgramBuilder builder;
  for (std::uint32_t i = 1; i < chains; ++i) builder.add_stream(fmt::format("chain {}", i));
  for (std::uint32_t i = 0; i < units.size(); ++i) {
    const Role role = kinds[i] == UnitKind::kTemporary ? Role::kTemporary : Role::kInput;
    const std::uint64_t bytes =
        kinds[i] == UnitKind::kFresh ? bytes_to_lend(units[i]) : units[i].bytes;
    builder.add_buffer({fmt::format("unit {}", i), role, bytes, kUnitAlignment});
  }
  const auto used = units_of_nodes(image, sites, tables);
  for (std::uint32_t node = 0; node < image.nodes.size(); ++node) {
    std::vector<Access> accesses;
    for (const std::uint32_t unit : used[node]) {
      accesses.push_back({AccessMode::kWrite, builder.whole(BufferId(unit))});
    }
    builder.compute(StreamId(chain[node]), describe_node(image, node), std::move(accesses));
  }
  return builder.build();
}

}  // namespace

std::uint64_t bytes_to_lend(const Unit& unit) {
  return unit.bytes < kLeastToGrow ? unit.bytes : unit.bytes + unit.bytes / kShareToGrow;
}

Result<ArenaPlan> plan_arena(const GraphImage& image, std::span<const Site> sites,
                             std::span<const Unit> units, std::span<const UnitKind> kinds,
                             std::span<const TableWrite> tables) {
  std::uint32_t chains = 0;
  const std::vector<std::uint32_t> chain = make_chains(image, chains);
  auto program = make_program(image, sites, units, kinds, tables, chain, chains);
  if (!program.ok()) return program.error();
  PlanParts parts;
  for (std::uint32_t node = 0; node < image.nodes.size(); ++node) {
    parts.order.push_back(StepId(node));
  }
  parts.waits = waits_between(image, chain);
  std::vector<BufferId> lenders;
  for (std::uint32_t unit = 0; unit < units.size(); ++unit) {
    if (kinds[unit] == UnitKind::kFresh) lenders.push_back(BufferId{unit});
  }
  MemoryPlan memory = plan_memory(*program, parts.order, parts.waits, lenders);
  parts.arena = std::move(memory.arena);
  return ArenaPlan{*std::move(program), std::move(parts), std::move(memory.loans)};
}

}  // namespace anabranch::cuda
