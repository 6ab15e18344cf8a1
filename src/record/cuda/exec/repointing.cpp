// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/exec/repointing.h"

#include <algorithm>
#include <utility>

namespace anabranch::cuda {
namespace {

std::vector<NodeMaking> making_of(std::span<const NodeFacts> facts, const RelaxedOrder& order) {
  std::vector<NodeMaking> making;
  for (std::size_t node = 0; node < facts.size(); ++node) {
    making.push_back({order.lane_of[node], !facts[node].host_bytes.empty(),
                      facts[node].work == NodeFacts::kInTurn});
  }
  return making;
}

// Both ways: the sites of each node, and the nodes that name each source.
void index_sites(std::size_t sources, Repointing& to) {
  to.first_site.assign(to.image.nodes.size() + 1, 0);
  std::vector<std::vector<std::uint32_t>> nodes(sources);
  for (const PlacedSite& site : to.sites) {
    ++to.first_site[site.node + 1];
    auto& of_source = nodes[site.source];
    if (of_source.empty() || of_source.back() != site.node) of_source.push_back(site.node);
  }
  for (std::size_t i = 1; i < to.first_site.size(); ++i) to.first_site[i] += to.first_site[i - 1];
  to.first_node.push_back(0);
  for (const auto& of_source : nodes) {
    to.nodes.insert(to.nodes.end(), of_source.begin(), of_source.end());
    to.first_node.push_back(static_cast<std::uint32_t>(to.nodes.size()));
  }
}

}  // namespace

Repointing make_repointing(GraphImage ordered, std::span<const NodeFacts> facts,
                           const RelaxedOrder& order, const Placement& placement) {
  Repointing made;
  made.image = std::move(ordered);
  made.making = making_of(facts, order);
  made.is_reordered = order.lanes > 1;
  made.sites = placement.sites;
  made.with_bytes = placement.with_bytes;
  index_sites(placement.rules.size(), made);
  for (const NodeImage& node : made.image.nodes) {
    const auto fields = static_cast<std::uint32_t>(node.kernel.fields.size());
    made.most_fields = std::max(made.most_fields, fields);
  }
  return made;
}

}  // namespace anabranch::cuda
