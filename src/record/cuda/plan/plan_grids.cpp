// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/plan/plan_grids.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace anabranch::cuda {
namespace {

std::string text_of(const CuKernelNodeParams& launch) {
  return fmt::format("{}x{}x{}", launch.grid_x, launch.grid_y, launch.grid_z);
}

bool is_in_clusters(const KernelImage& kernel) {
  return std::ranges::any_of(kernel.attributes, [](const CuLaunchAttribute& attribute) {
    const CuDim3& blocks = attribute.value.cluster_dim;
    return attribute.id == CuLaunchAttributeId::kClusterDimension &&
           (blocks.x > 1 || blocks.y > 1 || blocks.z > 1);
  });
}

// The three captures.
using Nodes = std::array<const NodeImage*, 3>;

Status refuse(const GraphImage& image, std::uint32_t node, const Nodes& nodes,
              std::string_view how) {
  return Status(
      StatusCode::kNotRecordable,
      fmt::format("record: {} has grids of {}, {} and {} with other numbers and grids of "
                  "the plan. {}",
                  describe_node(image, node), text_of(nodes[0]->kernel.launch),
                  text_of(nodes[1]->kernel.launch), text_of(nodes[2]->kernel.launch), how));
}

// Where one dimension of the three is found; chosen.size(): nowhere.
std::uint32_t find_number(std::span<const PlanNumber> chosen, const Nodes& nodes,
                          std::uint32_t dimension) {
  const auto found = std::ranges::find_if(chosen, [&](const PlanNumber& number) {
    if (!number.is_of_grid) return false;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (number.words[i] != blocks_of(nodes[i]->kernel.launch, dimension)) return false;
    }
    return true;
  });
  return static_cast<std::uint32_t>(found - chosen.begin());
}

bool differ(const Nodes& nodes, std::uint32_t dimension) {
  const unsigned blocks = blocks_of(nodes[0]->kernel.launch, dimension);
  return std::ranges::any_of(nodes, [&](const NodeImage* node) {
    return blocks_of(node->kernel.launch, dimension) != blocks;
  });
}

Status follow(std::span<const PlanNumber> chosen, const GraphImage& image, std::uint32_t index,
              const Nodes& nodes, std::vector<FollowedGrid>& grids) {
  std::vector<FollowedGrid> followed;
  for (std::uint32_t dimension = 0; dimension < 3; ++dimension) {
    if (!differ(nodes, dimension)) continue;
    const std::uint32_t number = find_number(chosen, nodes, dimension);
    if (number == chosen.size()) {
      return refuse(
          image, index, nodes,
          "No grid of the plan has that many in each. Launch the kernel with a grid's own "
          "blocks (add_grid), or with as many in all launches.");
    }
    followed.push_back({nodes[0]->handle, dimension, number});
  }
  if (followed.empty()) return {};
  if (is_in_clusters(nodes[0]->kernel)) {
    return refuse(image, index, nodes,
                  "It runs in clusters, which not every grid can be cut into. Launch it without, "
                  "or with the same grid in all launches.");
  }
  grids.insert(grids.end(), followed.begin(), followed.end());
  return {};
}

bool are_one_kernel(const Nodes& nodes) {
  return std::ranges::all_of(nodes, [&](const NodeImage* node) {
    return node->type == CuNodeType::kKernel &&
           node->kernel.launch.func == nodes[0]->kernel.launch.func;
  });
}

}  // namespace

Result<std::vector<FollowedGrid>> follow_grids(std::span<const PlanNumber> chosen,
                                               const GraphImage& first, GraphImage& third,
                                               GraphImage& fourth) {
  std::vector<FollowedGrid> grids;
  const std::size_t count = std::min({first.nodes.size(), third.nodes.size(), fourth.nodes.size()});
  for (std::uint32_t i = 0; i < count; ++i) {
    const Nodes nodes{&first.nodes[i], &third.nodes[i], &fourth.nodes[i]};
    if (!are_one_kernel(nodes)) continue;
    if (Status done = follow(chosen, first, i, nodes, grids); !done.ok()) return done;
    for (std::uint32_t dimension = 0; dimension < 3; ++dimension) {
      const unsigned blocks = blocks_of(first.nodes[i].kernel.launch, dimension);
      blocks_of(third.nodes[i].kernel.launch, dimension) = blocks;
      blocks_of(fourth.nodes[i].kernel.launch, dimension) = blocks;
    }
  }
  return grids;
}

void add_grids(std::span<const PlanNumber> chosen, std::span<const FollowedGrid> grids,
               StepGraph& step) {
  std::map<CuGraphNode, std::uint32_t> index_of_node;
  for (std::uint32_t i = 0; i < step.image.nodes.size(); ++i) {
    const NodeImage& node = step.image.nodes[i];
    if (!node.child_of) index_of_node.emplace(node.handle, i);
  }
  for (const FollowedGrid& grid : grids) {
    const auto& words = chosen[grid.number].words;
    step.numbers.push_back({index_of_node.at(grid.node), grid.dimension, sizeof(std::uint32_t),
                            words[0], words[1], Operand::kGrid});
  }
  std::ranges::stable_sort(step.numbers, {}, &ParamWord::node);
}

}  // namespace anabranch::cuda
