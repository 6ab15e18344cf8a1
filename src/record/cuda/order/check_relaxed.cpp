// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/check_relaxed.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "record/cuda/order/reachability.h"

namespace anabranch::cuda {
namespace {

Reachability reachability_of(std::size_t nodes, std::span<const EdgeImage> edges) {
  Reachability before(nodes);
  for (const EdgeImage& edge : edges) before.add(edge);
  return before;
}

// Nodes that may use any memory, or may begin before what they come behind has ended.
std::vector<bool> find_open_nodes(const StepGraph& step, std::span<const TableWrite> tables) {
  std::vector<bool> is_open;
  for (const NodeFacts& node : step.facts) is_open.push_back(!node.is_known);
  for (const EdgeImage& edge : step.image.edges) {
    if (!is_early(edge)) continue;
    is_open[edge.from] = is_open[edge.to] = true;
  }
  std::set<std::uint32_t> with_tables;
  for (const TableWrite& table : tables) with_tables.insert(table.unit);
  if (with_tables.contains(TableWrite::kNowhere)) is_open.assign(is_open.size(), true);
  for (const Site& site : step.sites) {
    if (with_tables.contains(site.unit)) is_open[site.node] = true;
  }
  return is_open;
}

class OrderCheck {
 public:
  OrderCheck(const StepGraph& step, std::span<const EdgeImage> made)
      : step_(step),
        edges_(made),
        captured_(reachability_of(step.image.nodes.size(), step.image.edges)),
        made_(reachability_of(step.image.nodes.size(), made)) {}

  // A kernel may wait by one of these.
  Status check_early_edges() const {
    const auto key = [](const EdgeImage& edge) {
      return std::tuple(edge.from, edge.to, edge.data.from_port, edge.data.type);
    };
    std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint8_t, std::uint8_t>> kept;
    for (const EdgeImage& edge : edges_) kept.insert(key(edge));
    for (const EdgeImage& edge : step_.image.edges) {
      if (!is_early(edge) || kept.contains(key(edge))) continue;
      if (made_.contains(edge.to, edge.from)) continue;
      return refuse(edge.from, edge.to, "the second may wait for the first");
    }
    return {};
  }

  Status check_open(const std::vector<bool>& is_open) const {
    std::vector<std::uint64_t> open((is_open.size() + 63) / 64);
    for (std::size_t i = 0; i < is_open.size(); ++i) {
      open[i / 64] |= std::uint64_t{is_open[i]} << (i % 64);
    }
    for (std::uint32_t node = 0; node < is_open.size(); ++node) {
      const auto was = captured_.row(node), is = made_.row(node);
      for (std::size_t i = 0; i < open.size(); ++i) {
        const std::uint64_t lost = was[i] & ~is[i] & (is_open[node] ? ~std::uint64_t{0} : open[i]);
        if (lost == 0) continue;
        const auto other = static_cast<std::uint32_t>(64 * i) + std::countr_zero(lost);
        return refuse(other, node, "what one of them uses is not known");
      }
    }
    return {};
  }

  Status check_works() const {
    std::map<std::uint32_t, std::vector<std::uint32_t>> nodes;  // by work
    for (std::uint32_t node = 0; node < step_.facts.size(); ++node) {
      const std::uint32_t work = step_.facts[node].work;
      if (work == NodeFacts::kNoWork) continue;
      for (const std::uint32_t other : nodes[work]) {
        if (is_lost(other, node)) return refuse(other, node, "they are of one piece of work");
      }
      nodes[work].push_back(node);
    }
    return {};
  }

  Status check_memory() const {
    std::map<std::uint32_t, std::vector<const Site*>> readers, writers;  // by unit
    for (const Site& site : step_.sites) {
      const auto clash = [&](const Site* other) {
        return may_share(*other, site) && is_lost(other->node, site.node);
      };
      for (auto* users : {&writers, site.writes ? &readers : nullptr}) {
        if (!users) continue;
        const auto& there = (*users)[site.unit];
        const auto found = std::find_if(there.begin(), there.end(), clash);
        if (found == there.end()) continue;
        return refuse((*found)->node, site.node, "they use the same memory and one of them writes");
      }
      (site.writes ? writers : readers)[site.unit].push_back(&site);
    }
    return {};
  }

  Status check_host_memory() const {
    std::vector<std::uint32_t> copies;
    for (std::uint32_t node = 0; node < step_.facts.size(); ++node) {
      if (!step_.facts[node].host_bytes.empty()) copies.push_back(node);
    }
    // By where they begin: one that begins at or behind the end of another does not meet it.
    const auto begin = [&](std::uint32_t node) { return step_.facts[node].host_bytes.begin; };
    std::sort(copies.begin(), copies.end(),
              [&](std::uint32_t a, std::uint32_t b) { return begin(a) < begin(b); });
    for (auto one = copies.begin(); one != copies.end(); ++one) {
      const HostBytes& bytes = step_.facts[*one].host_bytes;
      for (auto two = one + 1; two != copies.end() && begin(*two) < bytes.end; ++two) {
        const auto [first, second] = std::minmax(*one, *two);
        if (!bytes.is_written && !step_.facts[*two].host_bytes.is_written) continue;
        if (!is_lost(first, second)) continue;
        return refuse(first, second, "they use the same memory of the host and one of them writes");
      }
    }
    return {};
  }

 private:
  bool is_lost(std::uint32_t first, std::uint32_t second) const {
    return captured_.contains(second, first) && !made_.contains(second, first);
  }
  Status refuse(std::uint32_t first, std::uint32_t second, std::string_view why) const {
    return Status(
        StatusCode::kRace,
        fmt::format("record: side by side nothing would order {} and {}, which the step "
                    "ran one behind the other, and {}.",
                    describe_node(step_.image, first), describe_node(step_.image, second), why));
  }

  const StepGraph& step_;
  const std::span<const EdgeImage> edges_;  // those that are made
  const Reachability captured_, made_;
};

}  // namespace

Status check_relaxed(const StepGraph& step, std::span<const EdgeImage> made,
                     std::span<const TableWrite> tables) {
  const OrderCheck check(step, made);
  const auto is_open = find_open_nodes(step, tables);
  if (Status early = check.check_early_edges(); !early.ok()) return early;
  if (Status open = check.check_open(is_open); !open.ok()) return open;
  if (Status works = check.check_works(); !works.ok()) return works;
  if (Status host = check.check_host_memory(); !host.ok()) return host;
  return check.check_memory();
}

}  // namespace anabranch::cuda
