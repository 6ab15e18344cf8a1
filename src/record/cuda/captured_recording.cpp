// SPDX-License-Identifier: Apache-2.0
#include "anabranch/captured_recording.h"

#include <fmt/format.h>

#include <optional>

#include "base/inside.h"
#include "device/cuda/checksums.h"
#include "device/cuda/context_scope.h"
#include "device/cuda/handles.h"
#include "record/cuda/discover.h"
#include "record/cuda/exec/cuda_recording.h"
#include "record/cuda/image/address_mentions.h"
#include "record/cuda/image/capture_marks.h"
#include "record/cuda/image/capture_memory.h"
#include "record/cuda/image/driver_graph.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/step_recording.h"
#include "record/cuda/stretches.h"

namespace anabranch {
namespace {

using cuda::recorded;
using detail::Inside;

// What is given back to the driver needs the context to be current, on whatever thread that is.
template <typename Thing>
std::shared_ptr<Thing> kept_with(std::shared_ptr<cuda::CudaDevice> device,
                                 std::shared_ptr<Thing> thing) {
  Thing* const there = thing.get();
  return {there, [device = std::move(device), thing = std::move(thing)](Thing*) mutable {
            const cuda::ContextScope current(*device);
            thing.reset();
          }};
}

cuda::UnitKind kind_of(const CaptureBlock& block) {
  if (!block.given) return cuda::UnitKind::kTemporary;
  return block.fresh ? cuda::UnitKind::kFresh : cuda::UnitKind::kGiven;
}

Result<std::shared_ptr<cuda::CudaDevice>> gpu_of(const Device& device) {
  if (const auto& gpu = Inside::cuda(device)) return gpu;
  return Status(StatusCode::kRecordFailed,
                "capture: the host device captures no graphs. Open a GPU: Device::cuda().");
}

Status no_graph(const char* act) {
  return Status(StatusCode::kNotRecordable,
                fmt::format("{}: no graph was given, its handle is null. Pass the one that "
                            "cuStreamEndCapture answers.",
                            act));
}

std::optional<cuda::Notes> notes_of(const CaptureNotes* notes) {
  if (!notes) return std::nullopt;
  return cuda::Notes{&Inside::marks(*notes->marks), notes->blocks_before, notes->works,
                     notes->uses};
}

}  // namespace

Result<CaptureSupport> describe_capture(const Device& device) {
  const auto gpu = gpu_of(device);
  if (!gpu.ok()) return gpu.error();
  return CaptureSupport{(*gpu)->why_no_device_code(), (*gpu)->why_tensor_maps_are_opaque()};
}

Status clear_graph(const Device& device, CudaGraph graph) {
  const auto gpu = gpu_of(device);
  if (!gpu.ok()) return gpu.error();
  if (!graph) return no_graph("clear");
  const cuda::ContextScope current(**gpu);
  if (!current.status().ok()) return current.status();
  const cuda::Driver& driver = (*gpu)->driver();
  const auto nodes = cuda::list_nodes(driver, cuda::graph_of(graph));
  if (!nodes.ok()) return nodes.error();
  for (const cuda::CuGraphNode node : *nodes) {
    if (Status gone = recorded("cuGraphDestroyNode", driver.cuGraphDestroyNode(node)); !gone.ok()) {
      return gone;
    }
  }
  return {};
}

Result<std::vector<CaptureChecksum>> make_checksums(const Device& device,
                                                    std::span<const CaptureRange> ranges,
                                                    CudaStream stream) {
  const auto gpu = gpu_of(device);
  if (!gpu.ok()) return gpu.error();
  std::vector<cuda::ByteRange> all;
  all.reserve(ranges.size());
  for (const CaptureRange& range : ranges) all.push_back({range.begin, range.size_bytes});
  const auto sums = cuda::checksums(**gpu, cuda::stream_of(stream), all);
  if (!sums.ok()) return sums.error();
  std::vector<CaptureChecksum> found;
  found.reserve(sums->size());
  for (const cuda::Checksum& sum : *sums) found.push_back({sum.first, sum.second});
  return found;
}

Result<CaptureMemory> CaptureMemory::make(const Device& device, bool is_kept) {
  const auto gpu = gpu_of(device);
  if (!gpu.ok()) return gpu.error();
  const cuda::ContextScope current(**gpu);
  if (!current.status().ok()) return current.status();
  auto memory = cuda::CaptureMemory::make((*gpu)->driver(), is_kept);
  if (!memory.ok()) return memory.error();
  return CaptureMemory(kept_with(*gpu, std::shared_ptr<cuda::CaptureMemory>(*std::move(memory))));
}

void CaptureMemory::begin_capture() { memory_->begin_capture(); }

Result<std::uint64_t> CaptureMemory::allocate(std::uint64_t size_bytes) {
  return memory_->allocate(size_bytes);
}

Status CaptureMemory::give_own() { return memory_->give_own(); }

void CaptureMemory::release(std::uint64_t address) { memory_->release(address); }

void CaptureMemory::take_own(std::span<const std::uint64_t> addresses) {
  memory_->take_own(addresses);
}

Result<CaptureMarks> CaptureMarks::make(const Device& device) {
  const auto gpu = gpu_of(device);
  if (!gpu.ok()) return gpu.error();
  return CaptureMarks(*gpu, std::make_shared<cuda::CaptureMarks>((*gpu)->driver()));
}

Result<std::uint32_t> CaptureMarks::mark(CudaStream stream, std::uint64_t allocations) {
  const cuda::ContextScope current(*device_);
  if (!current.status().ok()) return current.status();
  return marks_->mark(cuda::stream_of(stream), allocations);
}

Result<bool> CaptureMarks::has_new(CudaStream stream) const {
  const cuda::ContextScope current(*device_);
  if (!current.status().ok()) return current.status();
  return marks_->has_new(cuda::stream_of(stream));
}

Result<CaptureSnapshot> CaptureSnapshot::make(const Device& device, CudaGraph graph,
                                              std::span<const CaptureRange> staying) {
  const auto gpu = gpu_of(device);
  if (!gpu.ok()) return gpu.error();
  if (!graph) return no_graph("record");
  const cuda::ContextScope current(**gpu);
  if (!current.status().ok()) return current.status();
  auto image = cuda::read_graph((*gpu)->driver(), cuda::graph_of(graph), staying);
  if (!image.ok()) return image.error();
  return CaptureSnapshot(graph, std::make_shared<const cuda::GraphImage>(*std::move(image)));
}

std::vector<CaptureMention> CaptureSnapshot::mentions(std::span<const CaptureRange> ranges,
                                                      const CaptureSnapshot* other) const {
  return cuda::find_mentions(*image_, ranges, other ? other->image_.get() : nullptr);
}

Result<CapturedStep> CapturedStep::discover(const Device& device, const CaptureSnapshot& first,
                                            const CaptureSnapshot& second,
                                            std::span<const CaptureBlock> blocks,
                                            const CaptureNotes* with,
                                            const CaptureNumbers* numbers) {
  const auto gpu = gpu_of(device);
  if (!gpu.ok()) return gpu.error();
  const auto& on = *gpu;
  const cuda::ContextScope current(*on);
  if (!current.status().ok()) return current.status();
  std::vector<cuda::CaptureAllocation> in_first, in_second;
  std::vector<cuda::UnitKind> kinds;
  for (const CaptureBlock& block : blocks) {
    in_first.push_back({block.first_address, block.size_bytes});
    in_second.push_back({block.second_address, block.size_bytes});
    kinds.push_back(kind_of(block));
  }
  if (numbers && numbers->addresses.size() != blocks.size()) {
    return Status(StatusCode::kCapturesDiffer,
                  fmt::format("record: {} addresses of blocks in the capture with other numbers, "
                              "and {} blocks. Pass one for each.",
                              numbers->addresses.size(), blocks.size()));
  }
  std::vector<cuda::CaptureAllocation> in_third;
  for (std::size_t i = 0; numbers && i < blocks.size(); ++i) {
    in_third.push_back({numbers->addresses[i], blocks[i].size_bytes});
  }
  const auto notes = notes_of(with);
  const auto capture_of = [&](const CaptureSnapshot& of,
                              std::span<const cuda::CaptureAllocation> allocations, bool is_noted) {
    return cuda::Capture{cuda::graph_of(of.graph()), allocations, &Inside::image(of),
                         is_noted ? &*notes : nullptr};
  };
  const auto third =
      numbers ? std::optional(capture_of(*numbers->capture, in_third, false)) : std::nullopt;
  auto found = cuda::discover(on->driver(), capture_of(first, in_first, with && !with->of_second),
                              capture_of(second, in_second, with && with->of_second), kinds,
                              {on->device_code(), on->why_tensor_maps_are_opaque()},
                              third ? &*third : nullptr);
  if (!found.ok()) return found.error();
  auto kept = std::make_shared<const cuda::Discovery>(*std::move(found));
  return CapturedStep(on, kept_with(on, std::move(kept)));
}

CaptureLayouts::CaptureLayouts() : layouts_(std::make_shared<cuda::KernelLayouts>()) {}

void CaptureLayouts::add(const CapturedStep& step) { layouts_->add(step.discovery_->layouts); }

Result<CapturedStep> CapturedStep::discover_known(const Device& device,
                                                  const CaptureSnapshot& capture,
                                                  const CaptureLayouts& known,
                                                  std::span<const CaptureBlock> blocks,
                                                  const CaptureNotes* with) {
  const auto gpu = gpu_of(device);
  if (!gpu.ok()) return gpu.error();
  const auto& on = *gpu;
  const cuda::ContextScope current(*on);
  if (!current.status().ok()) return current.status();
  std::vector<cuda::CaptureAllocation> allocations;
  std::vector<cuda::UnitKind> kinds;
  for (const CaptureBlock& block : blocks) {
    allocations.push_back({block.first_address, block.size_bytes});
    kinds.push_back(kind_of(block));
  }
  const auto notes = notes_of(with);
  auto found = cuda::discover_known(on->driver(),
                                    {cuda::graph_of(capture.graph()), allocations,
                                     &Inside::image(capture), notes ? &*notes : nullptr},
                                    *known.layouts_, kinds,
                                    {on->device_code(), on->why_tensor_maps_are_opaque()});
  if (!found.ok()) return found.error();
  auto kept = std::make_shared<const cuda::Discovery>(*std::move(found));
  return CapturedStep(on, kept_with(on, std::move(kept)));
}

std::uint32_t CapturedStep::unsure() const { return discovery_->unsure; }

std::vector<std::uint32_t> CapturedStep::stretches(std::span<const std::uint32_t> let_go) const {
  return cuda::find_stretches(*discovery_, let_go);
}

CapturedStep CapturedStep::stretch(std::uint32_t begin, std::uint32_t end) const {
  auto taken = std::make_shared<const cuda::Discovery>(cuda::take_stretch(*discovery_, begin, end));
  return CapturedStep(device_, kept_with(device_, std::move(taken)));
}

Result<CapturedRecording> CapturedStep::record(const CaptureOptions& chosen) const {
  const cuda::ContextScope current(*device_);
  if (!current.status().ok()) return current.status();
  cuda::CudaRecordOptions options;
  options.device_code = device_->device_code();
  options.accept_unsure = chosen.accept_unsure;
  options.lanes = chosen.lanes;
  options.ahead_bytes = chosen.ahead_bytes;
  options.parallel_bytes = chosen.parallel_bytes;
  options.mapped_memory = chosen.mapped_memory;
  if (chosen.few_launches) options.updating_executables = 0;
  auto recording = cuda::make_recording(device_->driver(), *discovery_, options);
  if (!recording.ok()) return recording.error();
  return CapturedRecording(std::make_shared<cuda::StepRecording>(device_, *std::move(recording)));
}

CapturedRecording::operator Recording() const { return Inside::make<Recording>(step_); }

std::vector<CaptureSlot> CapturedRecording::slots() const {
  std::vector<CaptureSlot> slots;
  for (const cuda::CudaSlot& slot : step_->graph().slots()) {
    slots.push_back({slot.allocation, slot.bytes, slot.alignment});
  }
  return slots;
}

std::vector<std::uint64_t> CapturedRecording::parts() const { return step_->graph().part_bytes(); }

std::vector<CaptureNumber> CapturedRecording::numbers() const {
  std::vector<CaptureNumber> numbers;
  for (const cuda::CudaNumber& number : step_->graph().numbers()) {
    numbers.push_back({number.bytes, number.first, number.other});
  }
  return numbers;
}

CaptureCounts CapturedRecording::counts() const {
  const auto read = [](const std::atomic<std::uint64_t>& count) {
    return count.load(std::memory_order_relaxed);
  };
  cuda::CudaRecording& graph = step_->graph();
  CaptureCounts counts;
  counts.nodes = graph.node_count();
  counts.sites = static_cast<std::uint32_t>(graph.sites().size());
  const cuda::StepCounts& of_step = graph.step_counts();
  counts.unsure = of_step.unsure;
  counts.known = of_step.known;
  counts.host_copies = of_step.host_copies;
  counts.lanes = of_step.lanes;
  counts.captured_lanes = of_step.captured_lanes;
  for (const std::uint64_t bytes : graph.part_bytes()) counts.arena_bytes += bytes;
  counts.arena_lower_bound_bytes = graph.arena().lower_bound_bytes;
  counts.held_device_bytes = graph.held().device;
  counts.held_host_bytes = graph.held().host;
  counts.held_driver_bytes = graph.held().driver;
  counts.launched_unchanged = read(graph.counts().unchanged);
  counts.launched_from_host = read(graph.counts().from_host);
  counts.launched_from_device = read(graph.counts().from_device);
  return counts;
}

}  // namespace anabranch
