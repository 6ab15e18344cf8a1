// SPDX-License-Identifier: Apache-2.0
// A plan under stream capture: its steps as a graph with the plan's edges and no others.
// Ownership: owns the graph; streams and events are gone when capture_plan() answers.
// Threads:   for the current context. Regions run on the calling thread, in plan order.
// Failure:   a Status that names the step where one failed; no stream is left capturing.
// Edges:     a plan that queues nothing is an empty graph.
#pragma once

#include <memory>
#include <span>

#include "anabranch/record.h"
#include "device/cuda/driver.h"
#include "record/cuda/plan/plan_numbers.h"
#include "record/cuda/plan/plan_units.h"

namespace anabranch::cuda {

class CapturedGraph {
 public:
  CapturedGraph(const Driver& driver, CuGraph graph) : driver_(driver), graph_(graph) {}
  ~CapturedGraph() { driver_.cuGraphDestroy(graph_); }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  CuGraph get() const { return graph_; }

 private:
  const Driver& driver_;
  const CuGraph graph_;
};

// With unit i at allocations[i]. Regions read numbers and grids at `values`, by buffer of the
// program.
Result<std::unique_ptr<CapturedGraph>> capture_plan(const Driver& driver, const Plan& plan,
                                                    const PlanUnits& units,
                                                    std::span<const CaptureAllocation> allocations,
                                                    std::span<PlanValue> values,
                                                    const RegionTable& regions);

}  // namespace anabranch::cuda
