// SPDX-License-Identifier: Apache-2.0
// Grids of a plan on CUDA: which kernels' grids follow them.
// Ownership: values; nodes are those of the first capture.
// Threads:   pure.
// Failure:   kNotRecordable names the kernel whose grid follows none, or cannot.
// Edges:     a grid that no kernel has is followed by none.
//
// A dimension of a kernel's grid is that of a grid of the plan if it has its blocks in all
// captures, each of which has others. What is the same in all of them stays.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/plan/plan_numbers.h"
#include "record/cuda/sites/step_graph.h"

namespace anabranch::cuda {

struct FollowedGrid {
  CuGraphNode node = nullptr;  // a kernel
  std::uint32_t dimension = 0;
  std::uint32_t number = 0;  // of those that were chosen
};

// `third` and `fourth` were captured with other numbers than `first`. They get its grids, so that
// all else of them can be compared. What has no like in the first is left to that comparison.
Result<std::vector<FollowedGrid>> follow_grids(std::span<const PlanNumber> chosen,
                                               const GraphImage& first, GraphImage& third,
                                               GraphImage& fourth);

// To the words of the step, of the first capture and the third.
void add_grids(std::span<const PlanNumber> chosen, std::span<const FollowedGrid> grids,
               StepGraph& step);

}  // namespace anabranch::cuda
