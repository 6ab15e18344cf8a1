// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/timed_step.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <thread>

#include "base/inside.h"
#include "device/cuda/context_scope.h"
#include "device/cuda/handles.h"
#include "record/cuda/image/capture_marks.h"
#include "record/cuda/image/copy_box.h"

namespace anabranch {
namespace {

using detail::Inside;

std::string demangled(const std::string& name) {
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &failed), &std::free);
  return failed == 0 && text ? std::string(text.get()) : name;
}

RecordedNode describe(const cuda::NodeImage& node, const cuda::NodeMaking& making) {
  RecordedNode told;
  told.kind = making.is_host_copy ? "host copy" : cuda::type_text(node.type);
  told.name = demangled(node.kernel.name);
  told.lane = making.lane;
  const bool is_transfer =
      node.type == cuda::CuNodeType::kMemcpy || node.type == cuda::CuNodeType::kMemset;
  if (is_transfer) told.bytes = cuda::extent_of(node);
  return told;
}

Status busy() {
  return Status(
      StatusCode::kBusy,
      "times: no launch through this twin has ended, or one is being queued. Wait for its "
      "stream.");
}

// What `act` answers of a launch that has ended.
template <typename T>
Result<T> read(const cuda::TimedStep& step, const auto& act) {
  const cuda::ContextScope current(*step.step().device(), cuda::Act::kLaunch);
  if (!current.status().ok()) return current.status();
  cuda::TimedExec& timed = step.exec();
  const cuda::TryLease lease(timed.exec());
  return lease && timed.has_run() && timed.is_over() ? act(timed) : Result<T>(busy());
}

}  // namespace

std::vector<RecordedNode> list_nodes(const CapturedRecording& recording) {
  const cuda::Repointing& parts = Inside::step(recording)->graph().repointing();
  std::vector<RecordedNode> nodes;
  for (std::size_t i = 0; i < parts.image.nodes.size(); ++i) {
    nodes.push_back(describe(parts.image.nodes[i], parts.making[i]));
  }
  for (const cuda::EdgeImage& edge : parts.image.edges) nodes[edge.to].after.push_back(edge.from);
  return nodes;
}

std::vector<std::uint32_t> list_marks(const CapturedRecording& recording,
                                      const CaptureMarks& marks) {
  std::vector<std::uint32_t> numbers;
  for (const cuda::NodeImage& node : Inside::step(recording)->graph().image().nodes) {
    numbers.push_back(Inside::marks(marks).mark_of(node.captured()));
  }
  return numbers;
}

Result<TimedRecording> TimedRecording::make(const CapturedRecording& recording,
                                            std::span<const std::uint64_t> addresses) {
  const auto& step = Inside::step(recording);
  const cuda::ContextScope current(*step->device());
  if (!current.status().ok()) return current.status();
  auto timed = cuda::TimedStep::make(step, addresses);
  if (!timed.ok()) return timed.error();
  return TimedRecording(*std::move(timed));
}

bool TimedRecording::is_over() const {
  const cuda::ContextScope current(*timed_->step().device(), cuda::Act::kLaunch);
  return timed_->exec().is_over();
}

Status TimedRecording::mark_plain(bool is_end, CudaStream stream) const {
  const cuda::ContextScope current(*timed_->step().device(), cuda::Act::kLaunch);
  if (!current.status().ok()) return current.status();
  cuda::TimedExec& timed = timed_->exec();
  const cuda::TryLease lease(timed.exec());
  return lease ? timed.mark_plain(is_end, cuda::stream_of(stream)) : busy();
}

Result<std::vector<NodeTime>> TimedRecording::times() const {
  return read<std::vector<NodeTime>>(*timed_, [](cuda::TimedExec& timed) { return timed.times(); });
}

Result<PlainTimes> TimedRecording::plain_times() const {
  return read<PlainTimes>(*timed_, [](cuda::TimedExec& timed) { return timed.plain_times(); });
}

namespace cuda {

Result<std::shared_ptr<TimedStep>> TimedStep::make(std::shared_ptr<StepRecording> step,
                                                   std::span<const std::uint64_t> addresses) {
  CudaRecording& graph = step->graph();
  if (addresses.size() != graph.source_rules().size()) {
    return Status(StatusCode::kBadBinding,
                  fmt::format("time: {} addresses were given, and the recording takes {}. Pass "
                              "those of a launch.",
                              addresses.size(), graph.source_rules().size()));
  }
  for (;; std::this_thread::yield()) {
    CudaExec& of = *graph.executables().front();
    const TryLease lease(of);
    if (!lease) continue;
    auto exec = TimedExec::make(step->device()->driver(), of, graph.image(), addresses);
    if (!exec.ok()) return exec.error();
    return std::shared_ptr<TimedStep>(new TimedStep(std::move(step), *std::move(exec)));
  }
}

TimedStep::~TimedStep() {
  const ContextScope current(*step_->device());
  exec_.reset();
}

}  // namespace cuda
}  // namespace anabranch
