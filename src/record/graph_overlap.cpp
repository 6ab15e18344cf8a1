// SPDX-License-Identifier: Apache-2.0
#include "record/graph_overlap.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "record/graph_order.h"
#include "record/graph_schedule.h"

namespace anabranch::cuda {
namespace {

// The units that nodes use, and who has used them.
class Users {
 public:
  Users(std::size_t nodes, std::span<const Site> sites, std::span<const Unit> units)
      : units_(units), uses_(nodes), readers_(units.size()), writers_(units.size()) {
    for (const Site& site : sites) {
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

  // Calls found(other) for each node so far with which `node` conflicts, and then counts it too.
  template <typename Found>
  void conflicts_of(std::uint32_t node, Found found) {
    for (const Site& use : uses_[node]) {
      const auto look_at = [&](const Site* other) {
        if (may_share(*other, use)) found(other->node);
      };
      std::for_each(writers_[use.unit].begin(), writers_[use.unit].end(), look_at);
      if (use.writes) std::for_each(readers_[use.unit].begin(), readers_[use.unit].end(), look_at);
    }
    for (const Site& use : uses_[node]) {
      (use.writes ? writers_ : readers_)[use.unit].push_back(&use);
    }
  }

 private:
  std::span<const Unit> units_;
  std::vector<std::vector<Site>> uses_;                      // by node; one where all may be used
  std::vector<std::vector<const Site*>> readers_, writers_;  // by unit
};

// The order that nodes have to keep, whatever the lanes.
class NeededOrder {
 public:
  NeededOrder(const GraphImage& image, std::span<const Site> sites,
              std::span<const TableWrite> tables, Users& users)
      : image_(image), users_(users), captured_(image.nodes.size()), is_free_(image.nodes.size()) {
    for (const EdgeImage& edge : image.edges) captured_.add(edge.to, edge.from);
    for (std::size_t node = 0; node < image.nodes.size(); ++node) {
      is_free_[node] = image.nodes[node].is_known;
    }
    bind_programmatic_launches();
    bind_readers_of_tables(sites, tables);
  }

  ReducedEdges find() {
    ReducedEdges needed(image_.nodes.size());
    for (std::uint32_t node = 0; node < image_.nodes.size(); ++node) {
      find_earlier(node);
      needed.add(earlier_);
    }
    return needed;
  }
  // Its order is that of its memory.
  bool is_free(std::uint32_t node) const { return is_free_[node]; }

 private:
  void bind_programmatic_launches() {
    for (const EdgeImage& edge : image_.edges) {
      if (edge.data.type == kEdgeDefault && edge.data.from_port == 0) continue;
      is_free_[edge.from] = is_free_[edge.to] = false;
      data_[{edge.from, edge.to}] = edge.data;
    }
  }

  // What they reach through a table, their sites do not say.
  void bind_readers_of_tables(std::span<const Site> sites, std::span<const TableWrite> tables) {
    for (const Site& site : sites) {
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
  void find_earlier(std::uint32_t node) {
    earlier_.clear();
    const auto add = [&](std::uint32_t other) {
      if (!captured_.contains(node, other)) return;
      const auto data = data_.find({other, node});
      earlier_.push_back({other, node, data == data_.end() ? CuEdgeData{} : data->second});
    };
    users_.conflicts_of(node, add);
    for (std::uint32_t other = 0; other < node; ++other) {
      if (!is_free_[node] || !is_free_[other] || are_of_one_work(node, other)) add(other);
    }
  }

  bool are_of_one_work(std::uint32_t a, std::uint32_t b) const {
    const std::uint32_t work = image_.nodes[a].work;
    return work != NodeImage::kNoWork && work == image_.nodes[b].work;
  }

  const GraphImage& image_;
  Users& users_;
  Before captured_;
  std::vector<bool> is_free_;  // by node
  std::map<std::pair<std::uint32_t, std::uint32_t>, CuEdgeData> data_;
  std::vector<EdgeImage> earlier_;
};

// With what lanes add to the order.
std::vector<EdgeImage> edges_with_lanes(std::span<const EdgeImage> needed,
                                        std::span<const NodePlace> places) {
  ReducedEdges all(places.size());
  std::vector<EdgeImage> earlier;
  auto edge = needed.begin();
  for (std::uint32_t node = 0; node < places.size(); ++node) {
    earlier.clear();
    for (; edge != needed.end() && edge->to == node; ++edge) earlier.push_back(*edge);
    if (places[node].behind != NodePlace::kNone) earlier.push_back({places[node].behind, node, {}});
    all.add(earlier);
  }
  return all.take_edges();
}

// As many lanes as have nodes; collectives have one of their own, where they wait for others.
std::uint32_t count_lanes(const GraphImage& image, const Schedule& schedule) {
  const auto is_in_turn = [](const NodeImage& node) {
    return node.is_known && node.work == NodeImage::kInTurn;
  };
  return schedule.lanes + std::any_of(image.nodes.begin(), image.nodes.end(), is_in_turn);
}

// What the nodes need of one another, and where that puts them.
struct ScheduledOrder {
  std::vector<EdgeImage> needed;
  Schedule schedule;
};

ScheduledOrder schedule_order(const GraphImage& image, std::span<const Site> sites,
                              std::span<const TableWrite> tables, std::span<const Unit> units,
                              std::uint32_t lanes) {
  Users users(image.nodes.size(), sites, units);
  NeededOrder order(image, sites, tables, users);
  ReducedEdges needed = order.find();
  std::vector<NodeCost> costs;
  for (std::uint32_t node = 0; node < image.nodes.size(); ++node) {
    const bool takes_lane = order.is_free(node) && image.nodes[node].work != NodeImage::kInTurn;
    costs.push_back({estimate_ns(users.bytes_of(node)), takes_lane});
  }
  Schedule schedule = schedule_nodes(costs, needed.edges(), needed.before(), lanes);
  return {needed.take_edges(), std::move(schedule)};
}

}  // namespace

std::uint32_t overlap_nodes(GraphImage& image, std::span<const Site> sites,
                            std::span<const TableWrite> tables, std::span<const Unit> units,
                            std::uint32_t lanes) {
  if (lanes < 2 || image.nodes.size() > kMostOverlapNodes) return 1;
  const auto [needed, schedule] = schedule_order(image, sites, tables, units, lanes);
  const std::uint32_t used = count_lanes(image, schedule);
  if (used < 2) return 1;
  image.edges = edges_with_lanes(needed, schedule.places);
  return used;
}

}  // namespace anabranch::cuda
