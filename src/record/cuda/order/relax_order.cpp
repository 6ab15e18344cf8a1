// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/relax_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "record/cuda/order/check_captured.h"
#include "record/cuda/order/copy_window.h"
#include "record/cuda/order/list_schedule.h"
#include "record/cuda/order/reachability.h"
#include "record/cuda/sites/host_copies.h"

namespace anabranch::cuda {
namespace {

// The units that nodes use, and the host's memory, and who has used them.
class Users {
 public:
  Users(const StepGraph& step, std::span<const Unit> units)
      : facts_(step.facts),
        units_(units),
        uses_(step.facts.size()),
        readers_(units.size()),
        writers_(units.size()) {
    for (const Site& site : step.sites) {
      auto& uses = uses_[site.node];
      const auto known = std::find_if(uses.begin(), uses.end(), [&](const Site& use) {
        return use.unit == site.unit && use.bytes == 0 && site.bytes == 0;
      });
      if (known == uses.end()) {
        uses.push_back(site);
      } else {
        known->writes |= site.writes;
      }
    }
  }

  // Of all that it uses, however little of it, where that is not known.
  std::uint64_t bytes_of(std::uint32_t node) const {
    std::uint64_t bytes = 0;
    for (const Site& use : uses_[node]) {
      bytes += use.bytes != 0 ? use.bytes : units_[use.unit].bytes;
    }
    return bytes;
  }

  // Calls found(other) for each node counted so far with which `node` conflicts.
  template <typename Found>
  void find_conflicts(std::uint32_t node, Found found) const {
    for (const Site& use : uses_[node]) {
      const auto look_at = [&](const Site* other) {
        if (may_share(*other, use)) found(other->node);
      };
      std::for_each(writers_[use.unit].begin(), writers_[use.unit].end(), look_at);
      if (use.writes) std::for_each(readers_[use.unit].begin(), readers_[use.unit].end(), look_at);
    }
    const HostBytes& bytes = facts_[node].host_bytes;
    for (const std::uint32_t other : on_host_) {
      if (!bytes.empty() && may_clash(facts_[other].host_bytes, bytes)) found(other);
    }
  }

  void count(std::uint32_t node) {
    for (const Site& use : uses_[node]) {
      (use.writes ? writers_ : readers_)[use.unit].push_back(&use);
    }
    if (!facts_[node].host_bytes.empty()) on_host_.push_back(node);
  }

 private:
  std::span<const NodeFacts> facts_;
  std::span<const Unit> units_;
  std::vector<std::vector<Site>> uses_;                      // by node; one where all may be used
  std::vector<std::vector<const Site*>> readers_, writers_;  // by unit
  std::vector<std::uint32_t> on_host_;                       // nodes that use the host's memory
};

// The order that nodes have to keep, whatever the lanes.
class NeededOrder {
 public:
  // `ahead`: what is kept besides, of find_window_edges(); and so is what `memory` asks for.
  NeededOrder(const StepGraph& step, std::span<const TableWrite> tables,
              std::span<const EdgeImage> ahead, MemoryWindow memory, Users& users)
      : step_(step),
        ahead_(ahead),
        memory_(std::move(memory)),
        users_(users),
        captured_(size()),
        is_free_(size()) {
    for (const EdgeImage& edge : step.image.edges) captured_.add(edge);
    for (std::size_t node = 0; node < size(); ++node) is_free_[node] = step.facts[node].is_known;
    bind_early_launches();
    bind_readers_of_tables(tables);
  }

  ReducedEdges find() {
    ReducedEdges needed(size());
    for (std::uint32_t node = 0; node < size(); ++node) {
      find_earlier(node, needed.before());
      needed.add(earlier_);
    }
    return needed;
  }
  // Its order is that of its memory.
  bool is_free(std::uint32_t node) const { return is_free_[node]; }

 private:
  std::size_t size() const { return step_.facts.size(); }

  void bind_early_launches() {
    for (const EdgeImage& edge : step_.image.edges) {
      if (!is_early(edge)) continue;
      is_free_[edge.from] = is_free_[edge.to] = false;
      early_.push_back(edge);
    }
  }

  // What they reach through a table, their sites do not say.
  void bind_readers_of_tables(std::span<const TableWrite> tables) {
    for (const Site& site : step_.sites) {
      const auto is_in = [&](const TableWrite& table) { return table.unit == site.unit; };
      if (std::any_of(tables.begin(), tables.end(), is_in)) is_free_[site.node] = false;
    }
    const auto never_moves = [](const TableWrite& table) {
      return table.unit == TableWrite::kNowhere;
    };
    if (std::any_of(tables.begin(), tables.end(), never_moves)) {
      std::fill(is_free_.begin(), is_free_.end(), false);  // anyone may know of it
    }
  }

  // The nodes that this one has to run behind, and more that those run behind.
  void find_earlier(std::uint32_t node, const Reachability& before) {
    earlier_.clear();
    const auto add = [&](std::uint32_t other) {
      if (captured_.contains(node, other)) earlier_.push_back({other, node});
    };
    const auto early = std::ranges::lower_bound(early_, node, {}, &EdgeImage::to);
    earlier_.insert(earlier_.end(), early,
                    std::ranges::upper_bound(early, early_.end(), node, {}, &EdgeImage::to));
    users_.find_conflicts(node, add);
    // A piece of work begins when all of it may: what its first node wrote for the next, into
    // scratch, would lie there until then.
    for (std::uint32_t later = node + 1; is_next_in_piece(later); ++later) {
      users_.find_conflicts(later, add);
    }
    users_.count(node);
    for (; !ahead_.empty() && ahead_.front().to == node; ahead_ = ahead_.subspan(1)) {
      add(ahead_.front().from);
    }
    for (const std::uint32_t other : memory_.waits_of(node, before)) add(other);
    for (std::uint32_t other = 0; other < node; ++other) {
      if (!is_free_[node] || !is_free_[other] || are_of_one_work(node, other)) add(other);
    }
  }

  bool is_next_in_piece(std::uint32_t node) const {
    return node < size() && step_.facts[node].work != NodeFacts::kInTurn &&
           are_of_one_work(node - 1, node);
  }

  bool are_of_one_work(std::uint32_t a, std::uint32_t b) const {
    const std::uint32_t work = step_.facts[a].work;
    return work != NodeFacts::kNoWork && work == step_.facts[b].work;
  }

  const StepGraph& step_;
  std::span<const EdgeImage> ahead_;  // to nodes that are still to come
  MemoryWindow memory_;
  Users& users_;
  Reachability captured_;
  std::vector<bool> is_free_;     // by node
  std::vector<EdgeImage> early_;  // sorted by `to`
  std::vector<EdgeImage> earlier_;
};

NodeCost cost_of(const HostBytes& host, std::uint64_t bytes) {
  if (host.empty()) return {estimate_ns(bytes), Engine::kKernels};
  return {estimate_copy_ns(bytes), host.is_written ? Engine::kToHost : Engine::kToDevice};
}

// With what lanes add to the order.
ReducedEdges order_with_lanes(std::span<const EdgeImage> needed,
                              std::span<const NodePlace> places) {
  ReducedEdges all(places.size());
  std::vector<EdgeImage> earlier;
  auto edge = needed.begin();
  for (std::uint32_t node = 0; node < places.size(); ++node) {
    earlier.clear();
    for (; edge != needed.end() && edge->to == node; ++edge) earlier.push_back(*edge);
    if (places[node].behind != NodePlace::kNone) earlier.push_back({places[node].behind, node});
    all.add(earlier);
  }
  return all;
}

// Whether any node need not wait any more for one that the capture put before it.
bool leaves_order(std::span<const EdgeImage> captured, const Reachability& made) {
  return std::any_of(captured.begin(), captured.end(), [&](const EdgeImage& edge) {
    return !is_early(edge) && !made.contains(edge.to, edge.from);
  });
}

// As many lanes as have nodes; collectives have one of their own, where they wait for others.
std::uint32_t count_lanes(std::span<const NodeFacts> facts, const Schedule& schedule) {
  const auto is_in_turn = [](const NodeFacts& node) {
    return node.is_known && node.work == NodeFacts::kInTurn;
  };
  return schedule.lanes + std::any_of(facts.begin(), facts.end(), is_in_turn);
}

std::vector<std::uint32_t> lanes_of(std::span<const NodePlace> places) {
  std::vector<std::uint32_t> lanes;
  for (const NodePlace& place : places) {
    lanes.push_back(place.lane == NodePlace::kNone ? 0 : place.lane);
  }
  return lanes;
}

// More streams of a step than that are not told apart.
constexpr std::uint32_t kMostCapturedLanes = 64;

RelaxedOrder keep_captured(const GraphImage& image) {
  const std::size_t nodes = image.nodes.size();
  RelaxedOrder kept{image.edges, std::vector<std::uint32_t>(nodes)};
  if (!has_branches(image) || nodes > kMostRelaxedNodes) return kept;
  const ReducedEdges order = order_with_lanes(image.edges, std::vector<NodePlace>(nodes));
  const Schedule schedule = list_schedule(std::vector<NodeCost>(nodes), order.edges(),
                                          order.before(), kMostCapturedLanes);
  kept.lane_of = lanes_of(schedule.places);
  kept.captured_lanes = schedule.lanes;
  return kept;
}

// What the nodes need of one another, and where that puts them.
struct ScheduledOrder {
  std::vector<EdgeImage> needed;
  Schedule schedule;
};

ScheduledOrder schedule_order(const StepGraph& step, std::span<const TableWrite> tables,
                              std::span<const Unit> units, const RelaxBounds& bounds) {
  Users users(step, units);
  const auto ahead = find_window_edges(step, units.size(), bounds.ahead_bytes);
  NeededOrder order(step, tables, ahead,
                    MemoryWindow(step, bounds.unit_bytes, bounds.parallel_bytes), users);
  ReducedEdges needed = order.find();
  std::vector<NodeCost> costs;
  for (std::uint32_t node = 0; node < step.facts.size(); ++node) {
    costs.push_back(cost_of(step.facts[node].host_bytes, users.bytes_of(node)));
    if (!order.is_free(node) || step.facts[node].work == NodeFacts::kInTurn) {
      costs.back().engine = Engine::kNone;
    }
  }
  Schedule schedule = list_schedule(costs, needed.edges(), needed.before(), bounds.lanes);
  return {needed.take_edges(), std::move(schedule)};
}

}  // namespace

RelaxedOrder relax_order(const StepGraph& step, std::span<const TableWrite> tables,
                         std::span<const Unit> units, const RelaxBounds& bounds) {
  const GraphImage& image = step.image;
  if (bounds.lanes < 2 || image.nodes.size() > kMostRelaxedNodes) return keep_captured(image);
  const auto [needed, schedule] = schedule_order(step, tables, units, bounds);
  const std::uint32_t used = count_lanes(step.facts, schedule);
  if (used < 2) return keep_captured(image);
  ReducedEdges made = order_with_lanes(needed, schedule.places);
  if (!leaves_order(image.edges, made.before())) return keep_captured(image);
  return {made.take_edges(), lanes_of(schedule.places), used};
}

}  // namespace anabranch::cuda
