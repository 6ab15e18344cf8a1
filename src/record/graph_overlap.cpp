// SPDX-License-Identifier: Apache-2.0
#include "record/graph_overlap.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace anabranch::cuda {
namespace {

// For each node a set of nodes: those that come before it.
class Before {
 public:
  explicit Before(std::size_t nodes) : words_((nodes + 63) / 64), bits_(nodes * words_) {}

  bool contains(std::uint32_t node, std::uint32_t other) const {
    return row(node)[other / 64] >> (other % 64) & 1;
  }
  // `other`, and all that comes before it, comes before `node`.
  void add(std::uint32_t node, std::uint32_t other) {
    const std::uint64_t* const from = row(other);
    std::uint64_t* const to = row(node);
    for (std::size_t i = 0; i < words_; ++i) to[i] |= from[i];
    to[other / 64] |= std::uint64_t{1} << (other % 64);
  }

 private:
  std::uint64_t* row(std::uint32_t node) { return bits_.data() + node * words_; }
  const std::uint64_t* row(std::uint32_t node) const { return bits_.data() + node * words_; }
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

// The units that nodes use, and who has used them.
class Users {
 public:
  struct Use {
    std::uint32_t unit = 0;
    bool writes = false;
  };

  Users(std::size_t nodes, std::span<const Site> sites) : uses_(nodes) {
    std::size_t units = 0;
    for (const Site& site : sites) {
      units = std::max<std::size_t>(units, site.unit + 1);
      auto& uses = uses_[site.node];
      const auto known = std::find_if(uses.begin(), uses.end(),
                                      [&](const Use& use) { return use.unit == site.unit; });
      if (known == uses.end()) {
        uses.push_back({site.unit, site.writes});
      } else {
        known->writes |= site.writes;
      }
    }
    readers_.resize(units);
    writers_.resize(units);
  }

  // Calls found(other) for each node so far with which `node` conflicts, and then counts it too.
  template <typename Found>
  void conflicts_of(std::uint32_t node, Found found) {
    for (const Use& use : uses_[node]) {
      std::for_each(writers_[use.unit].begin(), writers_[use.unit].end(), found);
      if (use.writes) std::for_each(readers_[use.unit].begin(), readers_[use.unit].end(), found);
    }
    for (const Use& use : uses_[node]) {
      (use.writes ? writers_ : readers_)[use.unit].push_back(node);
    }
  }

 private:
  std::vector<std::vector<Use>> uses_;                         // by node
  std::vector<std::vector<std::uint32_t>> readers_, writers_;  // by unit
};

// Known nodes on lanes, by when each would end if all took one unit of time.
class Lanes {
 public:
  static constexpr std::uint32_t kNone = ~0u;

  Lanes(std::uint32_t lanes, std::size_t nodes)
      : ends_(lanes), last_(lanes, kNone), ends_of_nodes_(nodes) {}

  // Puts it where it can begin first: of several such lanes on that of a node it comes behind
  // anyway, else on the one that is free longest. Answers the node before it there.
  std::uint32_t place(std::uint32_t node, std::span<const std::uint32_t> earlier,
                      std::uint64_t ready) {
    const auto rank = [&](std::size_t lane) {
      const bool follows = std::find(earlier.begin(), earlier.end(), last_[lane]) != earlier.end();
      return std::tuple(std::max(ends_[lane], ready), !follows, ends_[lane]);
    };
    std::size_t best = 0;
    for (std::size_t lane = 1; lane < ends_.size(); ++lane) {
      if (rank(lane) < rank(best)) best = lane;
    }
    ends_of_nodes_[node] = ends_[best] = std::max(ends_[best], ready) + 1;
    return std::exchange(last_[best], node);
  }
  void place_apart(std::uint32_t node, std::uint64_t ready) { ends_of_nodes_[node] = ready + 1; }

  std::uint64_t end_of(std::uint32_t node) const { return ends_of_nodes_[node]; }
  std::uint32_t used() const {
    return static_cast<std::uint32_t>(std::count_if(
        last_.begin(), last_.end(), [](std::uint32_t node) { return node != kNone; }));
  }

 private:
  std::vector<std::uint64_t> ends_;  // by lane
  std::vector<std::uint32_t> last_;  // by lane
  std::vector<std::uint64_t> ends_of_nodes_;
};

class Overlap {
 public:
  Overlap(GraphImage& image, std::span<const Site> sites, std::span<const TableWrite> tables,
          std::uint32_t lanes)
      : image_(image),
        captured_(image.nodes.size()),
        ordered_(image.nodes.size()),
        users_(image.nodes.size(), sites),
        lanes_(lanes, image.nodes.size()),
        is_free_(image.nodes.size()) {
    for (const EdgeImage& edge : image.edges) captured_.add(edge.to, edge.from);
    for (std::size_t node = 0; node < image.nodes.size(); ++node) {
      is_free_[node] = image.nodes[node].is_known;
    }
    bind_programmatic_launches();
    bind_readers_of_tables(sites, tables);
  }

  std::uint32_t run() {
    for (std::uint32_t node = 0; node < image_.nodes.size(); ++node) {
      find_earlier(node);
      if (is_free_[node]) {
        const std::uint32_t before = lanes_.place(node, earlier_, ready());
        if (before != Lanes::kNone) earlier_.push_back(before);
      } else {
        lanes_.place_apart(node, ready());
      }
      add_edges(node);
    }
    if (lanes_.used() < 2) return 1;
    image_.edges = std::move(edges_);
    return lanes_.used();
  }

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
      if (captured_.contains(node, other)) earlier_.push_back(other);
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

  std::uint64_t ready() const {
    std::uint64_t end = 0;
    for (const std::uint32_t other : earlier_) end = std::max(end, lanes_.end_of(other));
    return end;
  }

  // From the latest on: an edge from a node that comes before one of those says nothing new.
  void add_edges(std::uint32_t node) {
    std::sort(earlier_.begin(), earlier_.end(), std::greater<>());
    const std::size_t first = edges_.size();
    for (const std::uint32_t other : earlier_) {
      if (ordered_.contains(node, other)) continue;
      ordered_.add(node, other);
      const auto data = data_.find({other, node});
      edges_.push_back({other, node, data == data_.end() ? CuEdgeData{} : data->second});
    }
    std::reverse(edges_.begin() + static_cast<std::ptrdiff_t>(first), edges_.end());
  }

  GraphImage& image_;
  Before captured_, ordered_;
  Users users_;
  Lanes lanes_;
  std::vector<bool> is_free_;  // by node: its order is that of its memory
  std::map<std::pair<std::uint32_t, std::uint32_t>, CuEdgeData> data_;
  std::vector<std::uint32_t> earlier_;
  std::vector<EdgeImage> edges_;
};

}  // namespace

std::uint32_t overlap_nodes(GraphImage& image, std::span<const Site> sites,
                            std::span<const TableWrite> tables, std::uint32_t lanes) {
  if (lanes < 2 || image.nodes.size() > kMostOverlapNodes) return 1;
  return Overlap(image, sites, tables, lanes).run();
}

}  // namespace anabranch::cuda
