// SPDX-License-Identifier: Apache-2.0
#include "anabranch/captured_recording.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "anabranch/launch.h"
#include "handles.h"

namespace ab = anabranch;

namespace {

// torch's allocators are functions without a context, so they serve what is open now.
std::mutex open_mutex;
AnabranchCaptureMemory* open_memory = nullptr;
// Whose allocations have memory of their own.
std::vector<AnabranchCaptureMemory*> kept_memories;

std::vector<ab::CaptureBlock> blocks_of(const AnabranchCaptureBlock* blocks, size_t count) {
  std::vector<ab::CaptureBlock> all;
  all.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    all.push_back({blocks[i].first_address, blocks[i].second_address, blocks[i].size_bytes,
                   blocks[i].given != 0, blocks[i].fresh != 0});
  }
  return all;
}

std::vector<ab::CaptureWork> works_of(const AnabranchCaptureNotes& notes) {
  std::vector<ab::CaptureWork> all;
  all.reserve(notes.work_count);
  for (size_t i = 0; i < notes.work_count; ++i) {
    const AnabranchCaptureWork& work = notes.works[i];
    all.push_back(
        {work.mark, work.uses, work.has_scratch != 0, work.independent != 0, work.in_turn != 0});
  }
  return all;
}

std::vector<ab::CaptureUse> uses_of(const AnabranchCaptureNotes& notes) {
  std::vector<ab::CaptureUse> all;
  all.reserve(notes.use_count);
  for (size_t i = 0; i < notes.use_count; ++i) {
    all.push_back({notes.uses[i].address, notes.uses[i].writes != 0});
  }
  return all;
}

// What `act` answers with the notes, or with nullptr.
auto with_notes(const AnabranchCaptureNotes* notes, const auto& act) {
  if (!notes) return act(nullptr);
  const auto works = works_of(*notes);
  const auto uses = uses_of(*notes);
  const ab::CaptureNotes with{&notes->marks->marks, notes->of_second != 0, notes->blocks_before,
                              works, uses};
  return act(&with);
}

std::vector<ab::CaptureRange> ranges_of(const AnabranchCaptureRange* ranges, size_t count) {
  std::vector<ab::CaptureRange> all;
  all.reserve(count);
  for (size_t i = 0; i < count; ++i) all.push_back({ranges[i].begin, ranges[i].size_bytes});
  return all;
}

}  // namespace

AnabranchCaptureDevice* anabranch_capture_device_open(int32_t ordinal) {
  return ab::bridge::guard([&]() -> AnabranchCaptureDevice* {
    auto device = ab::Device::cuda({ordinal});
    if (!device.ok()) return ab::bridge::refuse<AnabranchCaptureDevice>(device.error());
    auto support = ab::describe_capture(*device);
    if (!support.ok()) return ab::bridge::refuse<AnabranchCaptureDevice>(support.error());
    return new AnabranchCaptureDevice{*std::move(device), *std::move(support)};
  });
}

void anabranch_capture_device_free(AnabranchCaptureDevice* device) { delete device; }

const char* anabranch_capture_device_why_no_device_code(const AnabranchCaptureDevice* device) {
  return device->support.why_no_device_code.c_str();
}

const char* anabranch_capture_device_why_tensor_maps_are_opaque(
    const AnabranchCaptureDevice* device) {
  return device->support.why_tensor_maps_are_opaque.c_str();
}

int32_t anabranch_capture_clear(const AnabranchCaptureDevice* device, void* graph) {
  return ab::bridge::guard([&] {
    const ab::Status cleared = ab::clear_graph(device->device, ab::CudaGraph(graph));
    return cleared.ok() ? 0 : ab::bridge::fail(cleared);
  });
}

int32_t anabranch_capture_checksums(const AnabranchCaptureDevice* device,
                                    const AnabranchCaptureRange* ranges, size_t count, void* stream,
                                    AnabranchCaptureChecksum* out) {
  return ab::bridge::guard([&] {
    const auto sums =
        ab::make_checksums(device->device, ranges_of(ranges, count), ab::CudaStream(stream));
    if (!sums.ok()) return ab::bridge::fail(sums.error());
    for (size_t i = 0; i < sums->size(); ++i) out[i] = {(*sums)[i].first, (*sums)[i].second};
    return 0;
  });
}

AnabranchCaptureMemory* anabranch_capture_memory_new(const AnabranchCaptureDevice* device,
                                                     int32_t is_kept) {
  const std::lock_guard lock(open_mutex);
  return ab::bridge::guard([&] {
    auto* const made = ab::bridge::handle_of<AnabranchCaptureMemory>(
        ab::CaptureMemory::make(device->device, is_kept != 0));
    if (made && is_kept) kept_memories.push_back(made);
    return made;
  });
}

void anabranch_capture_memory_free(AnabranchCaptureMemory* memory) {
  const std::lock_guard lock(open_mutex);
  if (open_memory == memory) open_memory = nullptr;
  std::erase(kept_memories, memory);
  delete memory;
}

int32_t anabranch_capture_memory_give_own(AnabranchCaptureMemory* memory) {
  const std::lock_guard lock(open_mutex);
  return ab::bridge::guard([&] {
    const ab::Status given = memory->memory.give_own();
    return given.ok() ? 0 : ab::bridge::fail(given);
  });
}

void anabranch_capture_memory_take_own(AnabranchCaptureMemory* memory, const uint64_t* addresses,
                                       size_t count) {
  const std::lock_guard lock(open_mutex);
  memory->memory.take_own({addresses, count});
}

void anabranch_capture_memory_begin_capture(AnabranchCaptureMemory* memory) {
  memory->memory.begin_capture();
}

uint64_t anabranch_capture_memory_allocate(AnabranchCaptureMemory* memory, uint64_t bytes) {
  const std::lock_guard lock(open_mutex);
  return ab::bridge::guard([&]() -> uint64_t {
    const auto address = memory->memory.allocate(bytes);
    if (address.ok()) return *address;
    ab::bridge::fail(address.error());
    return 0;
  });
}

void anabranch_capture_memory_open(AnabranchCaptureMemory* memory) {
  const std::lock_guard lock(open_mutex);
  open_memory = memory;
}

void* anabranch_capture_allocate(ptrdiff_t bytes, int, void*) {
  const std::lock_guard lock(open_mutex);
  if (!open_memory || bytes < 0) return nullptr;
  try {
    const auto address = open_memory->memory.allocate(static_cast<uint64_t>(bytes));
    if (address.ok()) return reinterpret_cast<void*>(*address);
    ab::bridge::fail(address.error());
  } catch (...) {  // out of host memory: the caller asks the same way
  }
  return nullptr;
}

void anabranch_capture_release(void* address, ptrdiff_t, int, void*) {
  const std::lock_guard lock(open_mutex);
  const auto released = reinterpret_cast<uint64_t>(address);
  for (AnabranchCaptureMemory* memory : kept_memories) memory->memory.release(released);
}

AnabranchCaptureSnapshot* anabranch_capture_snapshot_new(const AnabranchCaptureDevice* device,
                                                         void* graph,
                                                         const AnabranchCaptureRange* staying,
                                                         size_t count) {
  return ab::bridge::guard([&] {
    return ab::bridge::handle_of<AnabranchCaptureSnapshot>(
        ab::CaptureSnapshot::make(device->device, ab::CudaGraph(graph), ranges_of(staying, count)));
  });
}

void anabranch_capture_snapshot_free(AnabranchCaptureSnapshot* snapshot) { delete snapshot; }

const char* anabranch_capture_snapshot_mentions(const AnabranchCaptureSnapshot* snapshot,
                                                const AnabranchCaptureRange* ranges, size_t count,
                                                const AnabranchCaptureSnapshot* other) {
  return ab::bridge::guard([&] {
    std::string lines;
    for (const ab::CaptureMention& mention : snapshot->snapshot.mentions(
             ranges_of(ranges, count), other ? &other->snapshot : nullptr)) {
      lines += std::to_string(mention.range) + ' ' + mention.node + '\n';
    }
    return ab::bridge::keep(std::move(lines));
  });
}

AnabranchCaptureMarks* anabranch_capture_marks_new(const AnabranchCaptureDevice* device) {
  return ab::bridge::guard([&] {
    return ab::bridge::handle_of<AnabranchCaptureMarks>(ab::CaptureMarks::make(device->device));
  });
}

void anabranch_capture_marks_free(AnabranchCaptureMarks* marks) { delete marks; }

int32_t anabranch_capture_mark(AnabranchCaptureMarks* marks, void* stream, uint64_t allocations,
                               uint32_t* number) {
  return ab::bridge::guard([&] {
    const auto marked = marks->marks.mark(ab::CudaStream(stream), allocations);
    if (!marked.ok()) return ab::bridge::fail(marked.error());
    *number = *marked;
    return 0;
  });
}

int32_t anabranch_capture_has_new(const AnabranchCaptureMarks* marks, void* stream) {
  return ab::bridge::guard([&] {
    const auto has_new = marks->marks.has_new(ab::CudaStream(stream));
    return has_new.ok() && *has_new ? 1 : 0;
  });
}

AnabranchCapturedStep* anabranch_captured_step_discover(
    const AnabranchCaptureDevice* device, const AnabranchCaptureSnapshot* first,
    const AnabranchCaptureSnapshot* second, const AnabranchCaptureBlock* blocks, size_t count,
    const AnabranchCaptureNotes* notes, const AnabranchCaptureNumbers* numbers) {
  return ab::bridge::guard([&] {
    ab::CaptureNumbers others;
    if (numbers) others = {&numbers->capture->snapshot, {numbers->addresses, count}};
    return with_notes(notes, [&](const ab::CaptureNotes* with) {
      return ab::bridge::handle_of<AnabranchCapturedStep>(
          ab::CapturedStep::discover(device->device, first->snapshot, second->snapshot,
                                     blocks_of(blocks, count), with, numbers ? &others : nullptr));
    });
  });
}

AnabranchCapturedStep* anabranch_captured_step_discover_known(
    const AnabranchCaptureDevice* device, const AnabranchCaptureSnapshot* capture,
    const AnabranchCaptureLayouts* known, const AnabranchCaptureBlock* blocks, size_t count,
    const AnabranchCaptureNotes* notes) {
  return ab::bridge::guard([&] {
    return with_notes(notes, [&](const ab::CaptureNotes* with) {
      return ab::bridge::handle_of<AnabranchCapturedStep>(ab::CapturedStep::discover_known(
          device->device, capture->snapshot, known->layouts, blocks_of(blocks, count), with));
    });
  });
}

AnabranchCaptureLayouts* anabranch_capture_layouts_new() {
  return ab::bridge::guard([&] { return new AnabranchCaptureLayouts; });
}

int32_t anabranch_capture_layouts_add(AnabranchCaptureLayouts* layouts,
                                      const AnabranchCapturedStep* step) {
  return ab::bridge::guard([&] {
    layouts->layouts.add(step->step);
    return 0;
  });
}

void anabranch_capture_layouts_free(AnabranchCaptureLayouts* layouts) { delete layouts; }

void anabranch_captured_step_free(AnabranchCapturedStep* step) { delete step; }

uint32_t anabranch_captured_step_unsure(const AnabranchCapturedStep* step) {
  return step->step.unsure();
}

size_t anabranch_captured_step_stretches(const AnabranchCapturedStep* step, const uint32_t* let_go,
                                         size_t count, uint32_t* out) {
  return ab::bridge::guard([&]() -> size_t {
    const auto ends = step->step.stretches({let_go, count});
    if (out) std::copy(ends.begin(), ends.end(), out);
    return ends.size();
  });
}

AnabranchCapturedStep* anabranch_captured_step_stretch(const AnabranchCapturedStep* step,
                                                       uint32_t begin, uint32_t end) {
  return ab::bridge::guard(
      [&] { return new AnabranchCapturedStep{step->step.stretch(begin, end)}; });
}

AnabranchCapturedRecording* anabranch_captured_step_record(const AnabranchCapturedStep* step,
                                                           const AnabranchCaptureOptions* options) {
  return ab::bridge::guard([&] {
    ab::CaptureOptions chosen;
    chosen.accept_unsure = options->accept_unsure != 0;
    chosen.lanes = options->lanes;
    chosen.ahead_bytes = options->ahead_bytes;
    chosen.parallel_bytes = options->parallel_bytes;
    chosen.mapped_memory = options->mapped_memory != 0;
    chosen.few_launches = options->few_launches != 0;
    return ab::bridge::handle_of<AnabranchCapturedRecording>(step->step.record(chosen));
  });
}

void anabranch_captured_free(AnabranchCapturedRecording* recording) { delete recording; }

size_t anabranch_captured_slots(const AnabranchCapturedRecording* recording,
                                AnabranchCaptureSlot* out) {
  return ab::bridge::guard([&]() -> size_t {
    const auto slots = recording->recording.slots();
    for (size_t i = 0; out && i < slots.size(); ++i) {
      out[i] = {slots[i].block, slots[i].size_bytes, slots[i].alignment};
    }
    return slots.size();
  });
}

size_t anabranch_captured_parts(const AnabranchCapturedRecording* recording, uint64_t* out) {
  return ab::bridge::guard([&]() -> size_t {
    const auto parts = recording->recording.parts();
    if (out) std::copy(parts.begin(), parts.end(), out);
    return parts.size();
  });
}

size_t anabranch_captured_numbers(const AnabranchCapturedRecording* recording,
                                  AnabranchCaptureNumber* out) {
  return ab::bridge::guard([&]() -> size_t {
    const auto numbers = recording->recording.numbers();
    for (size_t i = 0; out && i < numbers.size(); ++i) {
      out[i] = {numbers[i].size_bytes, numbers[i].first, numbers[i].other};
    }
    return numbers.size();
  });
}

void anabranch_captured_counts(const AnabranchCapturedRecording* recording,
                               AnabranchCaptureCounts* out) {
  const ab::CaptureCounts counts = recording->recording.counts();
  *out = {counts.nodes,
          counts.sites,
          counts.unsure,
          counts.known,
          counts.host_copies,
          counts.lanes,
          counts.captured_lanes,
          counts.arena_bytes,
          counts.arena_lower_bound_bytes,
          counts.held_device_bytes,
          counts.held_host_bytes,
          counts.held_driver_bytes,
          counts.launched_unchanged,
          counts.launched_from_host,
          counts.launched_from_device};
}

int32_t anabranch_captured_launch(const AnabranchCapturedRecording* recording,
                                  const uint64_t* addresses, uint32_t count, void* stream) {
  return ab::bridge::guard([&] {
    const ab::Status queued =
        ab::queue_launch(recording->recording, {addresses, count}, ab::CudaStream(stream));
    return queued.ok() ? 0 : ab::bridge::fail(queued);
  });
}
