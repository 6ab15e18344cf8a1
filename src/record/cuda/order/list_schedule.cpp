// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/order/list_schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <iterator>
#include <queue>
#include <tuple>
#include <utility>

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kNone = NodePlace::kNone;

constexpr std::size_t kEngines = static_cast<std::size_t>(Engine::kNone);

class Lanes {
 public:
  Lanes(std::uint32_t kernels, const Reachability& before)
      : kernels_(kernels), lanes_(kernels + kEngines - 1), before_(before) {}

  // Of the engine's lanes that are free, the one for this node; kNone if none is. Best is one that
  // costs no edge, because the node comes behind the last one there anyway: of these the one that
  // became free latest, since what ended long ago comes before most nodes and suits others as well.
  // Where an edge it must be, it is from what ended first, so that it holds the node up least if
  // the estimates are wrong.
  std::uint32_t find_free(Engine engine, std::uint32_t node, std::uint64_t now) const {
    std::uint32_t best = kNone;
    std::tuple<bool, std::uint64_t> least;
    for (std::uint32_t i = first_of(engine); i < end_of(engine); ++i) {
      if (lanes_[i].end_ns > now) continue;
      const std::uint32_t other = behind(i, node);
      const bool costs_edge = other != kNone && !before_.contains(node, other);
      const std::tuple order(costs_edge, costs_edge ? lanes_[i].end_ns : now - lanes_[i].end_ns);
      if (best == kNone || order < least) std::tie(best, least) = std::tie(i, order);
    }
    return best;
  }

  // The last one there with a lower number.
  std::uint32_t behind(std::uint32_t lane, std::uint32_t node) const {
    const auto& rising = lanes_[lane].rising;
    const auto higher = std::lower_bound(rising.begin(), rising.end(), node);
    return higher == rising.begin() ? kNone : *std::prev(higher);
  }

  void place(std::uint32_t lane, std::uint32_t node, std::uint64_t end_ns) {
    auto& rising = lanes_[lane].rising;
    rising.erase(std::lower_bound(rising.begin(), rising.end(), node), rising.end());
    rising.push_back(node);
    lanes_[lane].end_ns = end_ns;
  }

  std::uint32_t used() const {
    return static_cast<std::uint32_t>(std::count_if(
        lanes_.begin(), lanes_.end(), [](const LaneTail& lane) { return !lane.rising.empty(); }));
  }

 private:
  struct LaneTail {
    std::uint64_t end_ns = 0;
    // Its nodes but those before one with a lower number: no node comes behind these any more.
    std::vector<std::uint32_t> rising;
  };
  // Behind the kernels' one for each other engine.
  std::uint32_t first_of(Engine engine) const {
    return engine == Engine::kKernels ? 0 : kernels_ - 1 + static_cast<std::uint32_t>(engine);
  }
  std::uint32_t end_of(Engine engine) const {
    return engine == Engine::kKernels ? kernels_ : first_of(engine) + 1;
  }

  const std::uint32_t kernels_;
  std::vector<LaneTail> lanes_;
  const Reachability& before_;
};

class ListScheduler {
 public:
  ListScheduler(std::span<const NodeCost> costs, std::span<const EdgeImage> edges,
                const Reachability& before, std::uint32_t lanes)
      : costs_(costs),
        successors_(costs.size()),
        missing_(costs.size()),
        ranks_(costs.size()),
        lanes_(lanes, before) {
    schedule_.places.resize(costs.size());
    for (const EdgeImage& edge : edges) {
      successors_[edge.from].push_back(edge.to);
      ++missing_[edge.to];
    }
    for (std::size_t node = costs.size(); node-- > 0;) {
      for (const std::uint32_t next : successors_[node]) {
        ranks_[node] = std::max(ranks_[node], ranks_[next]);
      }
      ranks_[node] += costs[node].ns;
    }
  }

  Schedule run() {
    for (std::uint32_t node = 0; node < costs_.size(); ++node) {
      if (missing_[node] == 0) make_ready(node);
    }
    fill_lanes();
    while (!running_.empty()) {
      now_ = running_.top().first;
      while (!running_.empty() && running_.top().first == now_) end_first();
      fill_lanes();
    }
    schedule_.lanes = lanes_.used();
    return std::move(schedule_);
  }

 private:
  using TimeAndNode = std::pair<std::uint64_t, std::uint32_t>;
  using Ready = std::priority_queue<TimeAndNode>;  // the highest rank first, then the lowest number

  void make_ready(std::uint32_t node) {
    const Engine engine = costs_[node].engine;
    if (engine == Engine::kNone) {
      begin(node);
    } else {
      ready_[static_cast<std::size_t>(engine)].push({ranks_[node], ~node});
    }
  }

  void begin(std::uint32_t node) {
    NodePlace& place = schedule_.places[node];
    place.begin_ns = now_;
    place.end_ns = now_ + costs_[node].ns;
    running_.push({place.end_ns, node});
  }

  void fill_lanes() {
    for (std::size_t i = 0; i < kEngines; ++i) fill_lanes(static_cast<Engine>(i), ready_[i]);
  }

  void fill_lanes(Engine engine, Ready& ready) {
    while (!ready.empty()) {
      const std::uint32_t node = ~ready.top().second;
      const std::uint32_t lane = lanes_.find_free(engine, node, now_);
      if (lane == kNone) return;
      ready.pop();
      begin(node);
      NodePlace& place = schedule_.places[node];
      place.lane = lane;
      place.behind = lanes_.behind(lane, node);
      lanes_.place(lane, node, place.end_ns);
    }
  }

  void end_first() {
    const std::uint32_t node = running_.top().second;
    running_.pop();
    for (const std::uint32_t next : successors_[node]) {
      if (--missing_[next] == 0) make_ready(next);
    }
  }

  std::span<const NodeCost> costs_;
  std::vector<std::vector<std::uint32_t>> successors_;
  std::vector<std::uint32_t> missing_;  // predecessors that have not ended
  std::vector<std::uint64_t> ranks_;    // how long it is from a node's begin to the graph's end
  Lanes lanes_;
  std::uint64_t now_ = 0;
  std::array<Ready, kEngines> ready_;
  std::priority_queue<TimeAndNode, std::vector<TimeAndNode>, std::greater<>> running_;
  Schedule schedule_;
};

}  // namespace

Schedule list_schedule(std::span<const NodeCost> costs, std::span<const EdgeImage> edges,
                       const Reachability& before, std::uint32_t lanes) {
  return ListScheduler(costs, edges, before, lanes).run();
}

}  // namespace anabranch::cuda
