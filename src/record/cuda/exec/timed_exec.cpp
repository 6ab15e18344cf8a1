// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/exec/timed_exec.h"

#include <algorithm>
#include <cmath>

#include "device/cuda/relaxed_mode.h"

namespace anabranch::cuda {

Result<std::unique_ptr<CudaExec>> CudaExec::make_stamped(const CudaExec& of,
                                                         std::span<const std::uint64_t> addresses,
                                                         const Stamps& stamps) {
  std::unique_ptr<CudaExec> made(new CudaExec(of.driver_, of.repointing_));
  made->nodes_ = of.nodes_;
  if (Status cloned = made->clone_stamped(of.graph_, addresses, stamps); !cloned.ok()) {
    return cloned;
  }
  made->list_residents();
  if (Status instantiated = made->instantiate(false); !instantiated.ok()) return instantiated;
  if (Status uploaded = made->upload(); !uploaded.ok()) return uploaded;
  return made;
}

Status CudaExec::clone_stamped(CuGraph of, std::span<const std::uint64_t> addresses,
                               const Stamps& stamps) {
  if (Status cloned = recorded("cuGraphClone", driver_.cuGraphClone(&graph_, of)); !cloned.ok()) {
    return cloned;
  }
  for (NodeImage& node : nodes_) {
    const auto there = find_in_clone(node.handle);
    if (!there.ok()) return there.error();
    node.handle = *there;
  }
  if (Status moved = move_transfers(addresses); !moved.ok()) return moved;
  return put_stamps(stamps);
}

// What they were at may be gone, and no graph with such a copy can be instantiated.
Status CudaExec::move_transfers(std::span<const std::uint64_t> addresses) {
  std::copy(addresses.begin(), addresses.end(), addresses_.begin());
  for (std::uint32_t number = 0; number < nodes_.size(); ++number) {
    const NodeImage& node = nodes_[number];
    const bool is_fill = node.type == CuNodeType::kMemset;
    if (!is_fill && node.type != CuNodeType::kMemcpy) continue;
    write_sites(number);
    Status set = is_fill ? recorded("cuGraphMemsetNodeSetParams",
                                    driver_.cuGraphMemsetNodeSetParams(node.handle, &node.fill))
                         : recorded("cuGraphMemcpyNodeSetParams",
                                    driver_.cuGraphMemcpyNodeSetParams(node.handle, &node.copy));
    if (!set.ok()) return set;
  }
  return {};
}

Status CudaExec::put_stamps(const Stamps& stamps) {
  CuGraphNode first = nullptr;
  if (Status added =
          recorded("cuGraphAddEventRecordNode",
                   driver_.cuGraphAddEventRecordNode(&first, graph_, nullptr, 0, stamps.before));
      !added.ok()) {
    return added;
  }
  if (Status ahead = put_before_roots(first); !ahead.ok()) return ahead;
  std::vector<CuGraphNode> behind(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (Status added = recorded("cuGraphAddEventRecordNode",
                                driver_.cuGraphAddEventRecordNode(
                                    &behind[i], graph_, &nodes_[i].handle, 1, stamps.behind[i]));
        !added.ok()) {
      return added;
    }
  }
  return wait_for_stamps(behind);
}

Status CudaExec::wait_for_stamps(std::span<const CuGraphNode> behind) {
  for (const EdgeImage& edge : repointing_.image.edges) {
    if (is_early(edge)) continue;
    const CuGraphNode from = nodes_[edge.from].handle, to = nodes_[edge.to].handle;
    if (Status gone = recorded("cuGraphRemoveDependencies", driver_.cuGraphRemoveDependencies(
                                                                graph_, &from, &to, &edge.data, 1));
        !gone.ok()) {
      return gone;
    }
    if (Status added =
            recorded("cuGraphAddDependencies",
                     driver_.cuGraphAddDependencies(graph_, &behind[edge.from], &to, nullptr, 1));
        !added.ok()) {
      return added;
    }
  }
  return {};
}

Result<std::unique_ptr<TimedExec>> TimedExec::make(const Driver& driver, const CudaExec& of,
                                                   const GraphImage& image,
                                                   std::span<const std::uint64_t> addresses) {
  const RelaxedMode relaxed(driver);  // other threads may capture meanwhile
  std::unique_ptr<TimedExec> made(new TimedExec(driver, image));
  made->stamps_.behind.resize(image.nodes.size());
  std::vector<CuEvent*> events{&made->stamps_.before, &made->begin_, &made->end_, &made->plain_[0],
                               &made->plain_[1]};
  for (CuEvent& event : made->stamps_.behind) events.push_back(&event);
  for (CuEvent* const event : events) {
    if (Status ready = recorded("cuEventCreate", driver.cuEventCreate(event, kEventDefault));
        !ready.ok()) {
      return ready;
    }
  }
  auto exec = CudaExec::make_stamped(of, addresses, made->stamps_);
  if (!exec.ok()) return exec.error();
  made->exec_ = *std::move(exec);
  return made;
}

TimedExec::~TimedExec() {
  exec_.reset();
  for (const CuEvent event : stamps_.behind) {
    if (event) driver_.cuEventDestroy(event);
  }
  for (const CuEvent event : {stamps_.before, begin_, end_, plain_[0], plain_[1]}) {
    if (event) driver_.cuEventDestroy(event);
  }
}

// An event of its own: when those in a graph count as recorded anew, drivers do not say.
Status TimedExec::mark_end(CuStream stream) {
  const Status placed = launched("cuEventRecord", driver_.cuEventRecord(end_, stream));
  has_run_ = placed.ok();
  return placed;
}

bool TimedExec::is_over() const {
  const RelaxedMode relaxed(driver_);
  return !has_run_ || driver_.cuEventQuery(end_) != CuResult::kNotReady;
}

Status TimedExec::mark_begin(CuStream stream) {
  const RelaxedMode relaxed(driver_);
  was_idle_ = has_plain_ && driver_.cuEventQuery(plain_[1]) == CuResult::kSuccess;
  return launched("cuEventRecord", driver_.cuEventRecord(begin_, stream));
}

Status TimedExec::mark_plain(bool is_end, CuStream stream) {
  const Status placed =
      launched("cuEventRecord", driver_.cuEventRecord(plain_[is_end ? 1 : 0], stream));
  has_plain_ = is_end && placed.ok();
  return placed;
}

Result<std::uint64_t> TimedExec::between(CuEvent from, CuEvent to) const {
  float milliseconds = 0;
  Status told = launched("cuEventElapsedTime", driver_.cuEventElapsedTime(&milliseconds, from, to));
  if (!told.ok()) return told;
  return static_cast<std::uint64_t>(std::llround(std::max(milliseconds, 0.0f) * 1e6));
}

Result<PlainTimes> TimedExec::plain_times() const {
  PlainTimes times;
  if (!has_plain_) return times;
  const RelaxedMode relaxed(driver_);
  const auto launch = between(plain_[0], plain_[1]);
  if (!launch.ok()) return launch.error();
  const auto idle = between(plain_[1], begin_);
  if (!idle.ok()) return idle.error();
  times.launch_ns = *launch;
  times.idle_ns = was_idle_ ? *idle : 0;
  return times;
}

Result<std::vector<NodeTime>> TimedExec::times() const {
  const RelaxedMode relaxed(driver_);
  std::vector<NodeTime> times(stamps_.behind.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto end = between(stamps_.before, stamps_.behind[i]);
    if (!end.ok()) return end.error();
    times[i].end_ns = *end;
  }
  // Sorted by the second, so that what is before a node has its own begin by then.
  for (const EdgeImage& edge : image_.edges) {
    const NodeTime& before = times[edge.from];
    NodeTime& node = times[edge.to];
    node.begin_ns = std::max(node.begin_ns, is_early(edge) ? before.begin_ns : before.end_ns);
  }
  for (NodeTime& node : times) node.begin_ns = std::min(node.begin_ns, node.end_ns);
  return times;
}

}  // namespace anabranch::cuda
