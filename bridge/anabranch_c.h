/* SPDX-License-Identifier: Apache-2.0
 * The C ABI of Anabranch: what python/anabranch/_core loads, by the abi.py that
 * scripts/make_abi.py makes of this.
 *
 * Ownership: a handle belongs to the caller and is given back with its own *_free (NULL is fine).
 *            Texts and arrays that are answered belong to the library: texts live until the next
 *            call of the same thread, arrays of a plan as long as the plan's handle.
 * Threads:   as the C++ headers say of the thing behind the handle.
 * Failure:   functions that can fail answer a code, 0 for success, or a NULL handle; then
 *            anabranch_last_error_* tell the code and the text of this thread's last failure.
 *            No exception crosses: a builder that ran out of memory refuses to build.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ANABRANCH_C __attribute__((visibility("default")))

typedef struct AnabranchBuilder AnabranchBuilder;
typedef struct AnabranchProgram AnabranchProgram;
typedef struct AnabranchPlan AnabranchPlan;
typedef struct AnabranchDevice AnabranchDevice;
typedef struct AnabranchCudaFacts AnabranchCudaFacts;
typedef struct AnabranchStreamTies AnabranchStreamTies;
typedef struct AnabranchRecording AnabranchRecording;
typedef struct AnabranchReports AnabranchReports;
typedef struct AnabranchTrace AnabranchTrace;
typedef struct AnabranchTapeBuilder AnabranchTapeBuilder;
typedef struct AnabranchTape AnabranchTape;
typedef struct AnabranchCaptureDevice AnabranchCaptureDevice;
typedef struct AnabranchCaptureMemory AnabranchCaptureMemory;
typedef struct AnabranchCaptureMarks AnabranchCaptureMarks;
typedef struct AnabranchCaptureSnapshot AnabranchCaptureSnapshot;
typedef struct AnabranchCaptureLayouts AnabranchCaptureLayouts;
typedef struct AnabranchCapturedStep AnabranchCapturedStep;
typedef struct AnabranchCapturedRecording AnabranchCapturedRecording;
typedef struct AnabranchTimedRecording AnabranchTimedRecording;

/* status */
ANABRANCH_C int32_t anabranch_last_error_code(void);
ANABRANCH_C const char* anabranch_last_error_text(void);
ANABRANCH_C const char* anabranch_version(void);

/* program: ids as in program.h; modes 1 read, 2 write, 3 both; roles, kinds and
 * origins by their number */
ANABRANCH_C AnabranchBuilder* anabranch_builder_new(void);
ANABRANCH_C void anabranch_builder_free(AnabranchBuilder*);
ANABRANCH_C uint32_t anabranch_builder_add_stream(AnabranchBuilder*, const char* name,
                                                  int32_t origin, int32_t priority);
ANABRANCH_C uint32_t anabranch_builder_add_event(AnabranchBuilder*, const char* name);
ANABRANCH_C uint32_t anabranch_builder_add_buffer(AnabranchBuilder*, const char* name, int32_t role,
                                                  uint64_t size_bytes, uint64_t alignment);
/* The step takes effect with end_step; accesses are given between. */
ANABRANCH_C void anabranch_builder_begin_step(AnabranchBuilder*, int32_t kind, uint32_t stream,
                                              const char* name, const char* source);
ANABRANCH_C void anabranch_builder_add_access(AnabranchBuilder*, int32_t mode, uint32_t buffer,
                                              uint64_t offset_bytes, uint64_t item_bytes,
                                              uint32_t dims, const uint64_t* sizes,
                                              const int64_t* strides_bytes);
ANABRANCH_C void anabranch_builder_add_whole(AnabranchBuilder*, int32_t mode, uint32_t buffer);
ANABRANCH_C void anabranch_builder_set_event(AnabranchBuilder*, uint32_t event);
ANABRANCH_C void anabranch_builder_set_fill_byte(AnabranchBuilder*, uint8_t byte);
ANABRANCH_C uint32_t anabranch_builder_end_step(AnabranchBuilder*);
ANABRANCH_C AnabranchProgram* anabranch_builder_build(AnabranchBuilder*);
ANABRANCH_C void anabranch_program_free(AnabranchProgram*);

/* Texts live as long as the program's handle. */
typedef struct AnabranchStep {
  int32_t kind;
  uint32_t stream;
  const char* name;
  const char* source;
  uint32_t event;
  uint32_t access_count;
} AnabranchStep;
typedef struct AnabranchBuffer {
  const char* name;
  int32_t role;
  uint64_t size_bytes;
  uint64_t alignment;
} AnabranchBuffer;
ANABRANCH_C uint32_t anabranch_program_step_count(const AnabranchProgram*);
ANABRANCH_C uint32_t anabranch_program_buffer_count(const AnabranchProgram*);
ANABRANCH_C uint32_t anabranch_program_stream_count(const AnabranchProgram*);
/* Numbers below the counts. */
ANABRANCH_C void anabranch_program_step(const AnabranchProgram*, uint32_t step, AnabranchStep* out);
ANABRANCH_C void anabranch_program_buffer(const AnabranchProgram*, uint32_t buffer,
                                          AnabranchBuffer* out);
ANABRANCH_C const char* anabranch_program_stream_name(const AnabranchProgram*, uint32_t stream);
ANABRANCH_C int32_t anabranch_program_stream_origin(const AnabranchProgram*, uint32_t stream);
ANABRANCH_C int32_t anabranch_program_stream_priority(const AnabranchProgram*, uint32_t stream);

/* plan */
ANABRANCH_C int32_t anabranch_program_find_regions(const AnabranchProgram*, uint32_t* groups);
/* What the syncs of the user's streams leave open; see find_reports in plan.h. Kinds and severities
 * by their number; `first`, `second` and `buffer` are the largest number where there is none. Texts
 * live as long as the handle of the reports. */
typedef struct AnabranchReport {
  int32_t kind;
  int32_t severity;
  uint32_t first;
  uint32_t second;
  uint32_t buffer;
  uint64_t begin_byte;
  uint64_t end_byte;
  const char* message;
} AnabranchReport;
ANABRANCH_C AnabranchReports* anabranch_program_find_reports(const AnabranchProgram*,
                                                             int32_t strict);
ANABRANCH_C void anabranch_reports_free(AnabranchReports*);
ANABRANCH_C size_t anabranch_reports_count(const AnabranchReports*);
/* A number below the count. */
ANABRANCH_C void anabranch_reports_report(const AnabranchReports*, uint32_t number,
                                          AnabranchReport* out);
ANABRANCH_C AnabranchPlan* anabranch_plan_make(const AnabranchProgram*, int32_t strict);
ANABRANCH_C void anabranch_plan_free(AnabranchPlan*);
ANABRANCH_C uint64_t anabranch_plan_arena_bytes(const AnabranchPlan*);
ANABRANCH_C uint64_t anabranch_plan_arena_lower_bound_bytes(const AnabranchPlan*);
ANABRANCH_C uint64_t anabranch_plan_arena_naive_bytes(const AnabranchPlan*);
ANABRANCH_C uint64_t anabranch_plan_offset(const AnabranchPlan*, uint32_t buffer);
/* Another handle of the program that was planned, also of one that came from a file. */
ANABRANCH_C AnabranchProgram* anabranch_plan_program(const AnabranchPlan*);
/* Each answers how many there are; `out` may be NULL. Waits are pairs: step, on. Slots are
 * buffers; the others are steps. */
ANABRANCH_C size_t anabranch_plan_order(const AnabranchPlan*, uint32_t* out);
ANABRANCH_C size_t anabranch_plan_waits(const AnabranchPlan*, uint32_t* out);
ANABRANCH_C size_t anabranch_plan_slots(const AnabranchPlan*, uint32_t* out);
ANABRANCH_C size_t anabranch_plan_exits(const AnabranchPlan*, uint32_t* out);
ANABRANCH_C size_t anabranch_plan_redundant_waits(const AnabranchPlan*, uint32_t* out);
ANABRANCH_C const char* anabranch_plan_dump(const AnabranchPlan*);
ANABRANCH_C int32_t anabranch_plan_write(const AnabranchPlan*, const char* path);
ANABRANCH_C AnabranchPlan* anabranch_plan_read(const char* path);
/* The bytes of a plan file. They are kept as texts are; NULL is a failure. */
ANABRANCH_C const void* anabranch_plan_bytes(const AnabranchPlan*, size_t* size);
ANABRANCH_C AnabranchPlan* anabranch_plan_from_bytes(const void* bytes, size_t size);

/* offload: as experimental/offload.h; choices by their number, the largest number for kNever */
typedef struct AnabranchOffloadTensor {
  uint64_t size_bytes;
  uint32_t made_after;
  uint32_t last_forward_use;
  uint32_t first_backward_use;
  uint32_t last_backward_use;
  int64_t recompute_ns;
  int32_t may_offload;
  int32_t must;
  const uint32_t* needs;
  size_t need_count;
} AnabranchOffloadTensor;
typedef struct AnabranchOffloadLink {
  double out_bytes_per_s;
  double in_bytes_per_s;
  uint64_t latency_ns;
  double both_ways;
} AnabranchOffloadLink;
typedef struct AnabranchOffloadProblem {
  const uint64_t* step_ns;
  const uint64_t* base_bytes; /* NULL: 0 */
  size_t step_count;
  size_t forward_steps;
  const AnabranchOffloadTensor* tensors;
  size_t tensor_count;
  AnabranchOffloadLink link;
  double link_margin;
  uint64_t budget_bytes;
  uint64_t pinned_bytes;
} AnabranchOffloadProblem;
typedef struct AnabranchOffloadDecision {
  int32_t choice;
  uint32_t back_before;
  uint32_t freed_before;
  uint32_t out_order;
  uint32_t out_after;
  uint32_t in_order;
  uint32_t in_before;
  uint64_t pinned_offset;
} AnabranchOffloadDecision;
typedef struct AnabranchOffloadPrediction {
  uint64_t peak_bytes;
  uint64_t peak_step;
  uint64_t total_ns;
  uint64_t added_ns;
  uint64_t recompute_ns;
  uint64_t out_bytes;
  uint64_t in_bytes;
  uint64_t pinned_bytes;
} AnabranchOffloadPrediction;
/* `decisions` has room for one a tensor. `reason` is kept as texts are; empty: the budget is met.
 */
ANABRANCH_C int32_t anabranch_offload_plan(const AnabranchOffloadProblem*,
                                           AnabranchOffloadDecision* decisions,
                                           AnabranchOffloadPrediction* predicted,
                                           uint64_t* least_bytes, const char** reason);
/* Refuses what anabranch_offload_check refuses, but for the peak. */
ANABRANCH_C int32_t anabranch_offload_simulate(const AnabranchOffloadProblem*,
                                               const AnabranchOffloadDecision* decisions,
                                               AnabranchOffloadPrediction* predicted);
ANABRANCH_C int32_t anabranch_offload_check(const AnabranchOffloadProblem*,
                                            const AnabranchOffloadDecision* decisions,
                                            uint64_t peak_bytes);
ANABRANCH_C size_t anabranch_offload_link_count(void);
/* A number below the count; answers its name. */
ANABRANCH_C const char* anabranch_offload_link(size_t number, AnabranchOffloadLink* out);

/* device */
typedef struct AnabranchHostOptions {
  uint32_t max_lanes;
  uint64_t spin_ns;
  int32_t has_delays;
  uint64_t delays_seed;
  void* prepare_threads; /* see ThreadControl in device.h */
  void* get_openmp;
  void* set_openmp;
  void* set_mkl_local;
  void* team_run;
  void* team_index;
  void* team_size;
} AnabranchHostOptions;
ANABRANCH_C AnabranchDevice* anabranch_device_host(const AnabranchHostOptions*);
ANABRANCH_C void anabranch_device_free(AnabranchDevice*);
/* What the machine has for CUDA; NULL where there is no driver. Its texts live as long as it. */
ANABRANCH_C AnabranchCudaFacts* anabranch_cuda_facts_new(void);
ANABRANCH_C void anabranch_cuda_facts_free(AnabranchCudaFacts*);
ANABRANCH_C int32_t anabranch_cuda_facts_driver_version(const AnabranchCudaFacts*);
ANABRANCH_C size_t anabranch_cuda_facts_feature_count(const AnabranchCudaFacts*);
ANABRANCH_C const char* anabranch_cuda_facts_feature_name(const AnabranchCudaFacts*, size_t);
/* Empty: it is on. */
ANABRANCH_C const char* anabranch_cuda_facts_feature_why_off(const AnabranchCudaFacts*, size_t);
ANABRANCH_C size_t anabranch_cuda_facts_gpu_count(const AnabranchCudaFacts*);
ANABRANCH_C const char* anabranch_cuda_facts_gpu(const AnabranchCudaFacts*, size_t ordinal);
/* Empty where there is one. */
ANABRANCH_C const char* anabranch_cuda_facts_why_no_gpus(const AnabranchCudaFacts*);
/* Streams of the device tied to one another; see StreamTies in device.h. */
ANABRANCH_C AnabranchStreamTies* anabranch_stream_ties_new(const AnabranchCaptureDevice*);
ANABRANCH_C void anabranch_stream_ties_free(AnabranchStreamTies*);
ANABRANCH_C int32_t anabranch_stream_ties_join(const AnabranchStreamTies*, void* stream,
                                               void* const* others, uint32_t count);
ANABRANCH_C int32_t anabranch_stream_ties_fork(const AnabranchStreamTies*, void* stream,
                                               void* const* others, uint32_t count);

/* record: region i is names[i] -> functions[i](contexts[i], RegionCall*) */
ANABRANCH_C AnabranchRecording* anabranch_recording_make(const AnabranchPlan*,
                                                         const AnabranchDevice*, size_t regions,
                                                         const char* const* names,
                                                         void* const* functions,
                                                         void* const* contexts);
/* Not while another thread launches through the handle. */
ANABRANCH_C void anabranch_recording_free(AnabranchRecording*);
ANABRANCH_C uint32_t anabranch_recording_lane_count(const AnabranchRecording*);

/* launch: addresses[i] serves slot i, and the caller vouches for its size */
ANABRANCH_C int32_t anabranch_recording_launch(const AnabranchRecording*, const uint64_t* addresses,
                                               uint32_t count);
/* The same where nobody vouches: a buffer that is too small refuses the launch. */
ANABRANCH_C int32_t anabranch_recording_launch_sized(const AnabranchRecording*,
                                                     const uint64_t* addresses,
                                                     const uint64_t* sizes_bytes, uint32_t count);

/* trace */
ANABRANCH_C AnabranchTrace* anabranch_trace_new(size_t capacity);
ANABRANCH_C void anabranch_trace_free(AnabranchTrace*);
ANABRANCH_C void anabranch_trace_attach(AnabranchRecording*, AnabranchTrace*);
ANABRANCH_C void anabranch_trace_clear(AnabranchTrace*);
ANABRANCH_C uint64_t anabranch_trace_dropped(const AnabranchTrace*);
ANABRANCH_C size_t anabranch_trace_count(const AnabranchTrace*);
/* kind 0 a launch, 1 a step, 2 a wait; see trace_event.h */
typedef struct AnabranchTraceEvent {
  int32_t kind;
  uint32_t lane;
  uint32_t step;
  uint32_t other;
  uint64_t begin_ns;
  uint64_t end_ns;
} AnabranchTraceEvent;
/* At most `room` events; answers how many there were written. */
ANABRANCH_C size_t anabranch_trace_events(const AnabranchTrace*, AnabranchTraceEvent* out,
                                          size_t room);
ANABRANCH_C const char* anabranch_trace_chrome_json(const AnabranchTrace*, const AnabranchPlan*);
ANABRANCH_C const char* anabranch_trace_dump(const AnabranchTrace*, const AnabranchPlan*);
ANABRANCH_C const char* anabranch_plan_json(const AnabranchPlan*);

/* tape */
typedef struct AnabranchTensorLibrary {
  void* create_view;
  void* delete_tensor;
  void* new_handle;
  void* data_pointer;
  void* strides;
  void* copy;
  void* dispatch;
  void* new_list;
  void* list_push;
  void* delete_list;
  void* last_error; /* may always be NULL; others where no call of the tape needs them */
  uint64_t version;
  int32_t device_type;
  int32_t layout;
} AnabranchTensorLibrary;
ANABRANCH_C AnabranchTapeBuilder* anabranch_tape_builder_new(const AnabranchTensorLibrary*);
ANABRANCH_C void anabranch_tape_builder_free(AnabranchTapeBuilder*);
ANABRANCH_C uint32_t anabranch_tape_view(AnabranchTapeBuilder*, uint32_t access,
                                         uint64_t offset_bytes, int32_t dtype, size_t dims,
                                         const int64_t* sizes, const int64_t* strides);
ANABRANCH_C uint32_t anabranch_tape_view_of(AnabranchTapeBuilder*, uint32_t base,
                                            uint64_t offset_bytes, int32_t dtype, size_t dims,
                                            const int64_t* sizes, const int64_t* strides);
/* Arguments of the next call or dispatch, in order. */
ANABRANCH_C void anabranch_tape_add_int(AnabranchTapeBuilder*, int64_t value);
ANABRANCH_C void anabranch_tape_add_double(AnabranchTapeBuilder*, double value);
ANABRANCH_C void anabranch_tape_add_address(AnabranchTapeBuilder*, uint32_t access,
                                            uint64_t offset_bytes);
ANABRANCH_C void anabranch_tape_add_data(AnabranchTapeBuilder*, uint32_t from);
ANABRANCH_C void anabranch_tape_add_handle(AnabranchTapeBuilder*, uint32_t from);
ANABRANCH_C void anabranch_tape_add_ints(AnabranchTapeBuilder*, const int64_t* values,
                                         size_t count);
ANABRANCH_C void anabranch_tape_call(AnabranchTapeBuilder*, const char* name, void* function,
                                     int32_t fallible);
/* Values of the next dispatch. open_* makes the following values its items until close. */
ANABRANCH_C void anabranch_tape_value_none(AnabranchTapeBuilder*);
ANABRANCH_C void anabranch_tape_value_int(AnabranchTapeBuilder*, int64_t value);
ANABRANCH_C void anabranch_tape_value_double(AnabranchTapeBuilder*, double value);
ANABRANCH_C void anabranch_tape_value_tensor(AnabranchTapeBuilder*, uint32_t reg);
ANABRANCH_C void anabranch_tape_open_list(AnabranchTapeBuilder*);
ANABRANCH_C void anabranch_tape_open_some(AnabranchTapeBuilder*);
ANABRANCH_C void anabranch_tape_close(AnabranchTapeBuilder*);
ANABRANCH_C void anabranch_tape_dispatch(AnabranchTapeBuilder*, const char* op,
                                         const char* overload, uint32_t results, uint32_t* out);
/* The tensor in `reg` must have these strides, or the run fails. */
ANABRANCH_C void anabranch_tape_expect(AnabranchTapeBuilder*, uint32_t reg, size_t dims,
                                       const int64_t* sizes, const int64_t* strides);
ANABRANCH_C void anabranch_tape_copy(AnabranchTapeBuilder*, uint32_t to, uint32_t from);
ANABRANCH_C void anabranch_tape_release(AnabranchTapeBuilder*, uint32_t reg);
ANABRANCH_C AnabranchTape* anabranch_tape_finish(AnabranchTapeBuilder*);
ANABRANCH_C void anabranch_tape_free(AnabranchTape*);
ANABRANCH_C const char* anabranch_tape_dump(const AnabranchTape*);
/* The RegionFunction whose context is an AnabranchTape*. */
ANABRANCH_C void* anabranch_tape_region_function(void);
ANABRANCH_C int32_t anabranch_tape_run(AnabranchTape*, void* const* buffers, uint32_t count,
                                       char* error, uint32_t error_bytes);

/* capture: graphs that the caller captured; see capture.h and captured_recording.h */
ANABRANCH_C AnabranchCaptureDevice* anabranch_capture_device_open(int32_t ordinal);
ANABRANCH_C void anabranch_capture_device_free(AnabranchCaptureDevice*);
/* Empty where the device can set addresses itself. Lives as long as the device. */
ANABRANCH_C const char* anabranch_capture_device_why_no_device_code(const AnabranchCaptureDevice*);
/* Empty where kernels that take tensor maps by value are recorded as others are. Likewise. */
ANABRANCH_C const char* anabranch_capture_device_why_tensor_maps_are_opaque(
    const AnabranchCaptureDevice*);
/* Takes all nodes out of a CUgraph. */
ANABRANCH_C int32_t anabranch_capture_clear(const AnabranchCaptureDevice*, void* graph);
/* `is_kept`: allocations get memory of their own, so that the graph may be launched as it is. */
ANABRANCH_C AnabranchCaptureMemory* anabranch_capture_memory_new(const AnabranchCaptureDevice*,
                                                                 int32_t is_kept);
ANABRANCH_C void anabranch_capture_memory_free(AnabranchCaptureMemory*);
/* What is allocated from now on is of another capture. */
ANABRANCH_C void anabranch_capture_memory_begin_capture(AnabranchCaptureMemory*);
/* 0 is a failure. */
ANABRANCH_C uint64_t anabranch_capture_memory_allocate(AnabranchCaptureMemory*,
                                                       uint64_t size_bytes);
/* What anabranch_capture_allocate() serves from now on; NULL: nothing. */
ANABRANCH_C void anabranch_capture_memory_open(AnabranchCaptureMemory*);
/* An allocator as torch.cuda.memory.CUDAPluggableAllocator wants one. Addresses are given back with
 * the capture memory and not before; an allocation's own memory when it is released. */
ANABRANCH_C void* anabranch_capture_allocate(ptrdiff_t bytes, int device, void* stream);
ANABRANCH_C void anabranch_capture_release(void* address, ptrdiff_t bytes, int device,
                                           void* stream);
typedef struct AnabranchCaptureBlock {
  uint64_t first_address;
  uint64_t second_address;
  uint64_t size_bytes;
  uint64_t given;
  uint64_t fresh;
} AnabranchCaptureBlock;
typedef struct AnabranchCaptureSlot {
  uint64_t block;
  uint64_t size_bytes;
  uint64_t alignment;
} AnabranchCaptureSlot;
typedef struct AnabranchCaptureCounts {
  uint64_t nodes;
  uint64_t sites;
  uint64_t unsure;
  uint64_t known;
  uint64_t host_copies;
  uint64_t lanes;
  uint64_t captured_lanes;
  uint64_t arena_bytes;
  uint64_t arena_lower_bound_bytes;
  uint64_t held_device_bytes;
  uint64_t held_host_bytes;
  uint64_t held_driver_bytes;
  uint64_t launched_unchanged;
  uint64_t launched_from_host;
  uint64_t launched_from_device;
} AnabranchCaptureCounts;
typedef struct AnabranchCaptureRange {
  uint64_t begin;
  uint64_t size_bytes;
} AnabranchCaptureRange;
/* Of a kept one: takes memory away from allocations, behind all that has been queued. */
ANABRANCH_C void anabranch_capture_memory_take_own(AnabranchCaptureMemory*,
                                                   const uint64_t* addresses, size_t count);
/* Gives memory to all from which it was taken. */
ANABRANCH_C int32_t anabranch_capture_memory_give_own(AnabranchCaptureMemory*);
/* Of a CUgraph, as soon as its capture has ended. The graph must be there until the step has been
 * discovered, that of the first capture until the last recording has been made of it. `staying` is
 * pinned memory whose bytes are not noted: see capture.h. */
ANABRANCH_C AnabranchCaptureSnapshot* anabranch_capture_snapshot_new(
    const AnabranchCaptureDevice*, void* graph, const AnabranchCaptureRange* staying, size_t count);
ANABRANCH_C void anabranch_capture_snapshot_free(AnabranchCaptureSnapshot*);
typedef struct AnabranchCaptureChecksum {
  uint64_t first;
  uint64_t second;
} AnabranchCaptureChecksum;
/* Of ranges of the GPU's memory, `out` one a range; waits for `stream`, a CUstream. See capture.h.
 */
ANABRANCH_C int32_t anabranch_capture_checksums(const AnabranchCaptureDevice*,
                                                const AnabranchCaptureRange* ranges, size_t count,
                                                void* stream, AnabranchCaptureChecksum* out);
/* The ranges that the graph names, a line each: its number, a space, and the node. The ranges are
 * sorted and do not overlap. `other`, or NULL: a capture of the same, which names them too, at the
 * same places. */
ANABRANCH_C const char* anabranch_capture_snapshot_mentions(const AnabranchCaptureSnapshot*,
                                                            const AnabranchCaptureRange* ranges,
                                                            size_t count,
                                                            const AnabranchCaptureSnapshot* other);
/* Notes of a capture, taken while it runs: see capture.h. */
ANABRANCH_C AnabranchCaptureMarks* anabranch_capture_marks_new(const AnabranchCaptureDevice*);
ANABRANCH_C void anabranch_capture_marks_free(AnabranchCaptureMarks*);
ANABRANCH_C int32_t anabranch_capture_mark(AnabranchCaptureMarks*, void* stream,
                                           uint64_t allocations, uint32_t* number);
/* Whether nodes have come since the last mark; also 0 where that cannot be told. */
ANABRANCH_C int32_t anabranch_capture_has_new(const AnabranchCaptureMarks*, void* stream);
typedef struct AnabranchCaptureWork {
  uint32_t mark;
  uint32_t uses;
  uint32_t has_scratch;
  uint32_t independent;
  uint32_t in_turn;
} AnabranchCaptureWork;
typedef struct AnabranchCaptureUse {
  uint64_t address;
  uint64_t writes;
} AnabranchCaptureUse;
typedef struct AnabranchCaptureNotes {
  const AnabranchCaptureMarks* marks;
  uint32_t of_second;
  uint32_t blocks_before;
  const AnabranchCaptureWork* works;
  size_t work_count;
  const AnabranchCaptureUse* uses;
  size_t use_count;
} AnabranchCaptureNotes;
typedef struct AnabranchCaptureOptions {
  uint32_t accept_unsure;
  uint32_t lanes;
  uint64_t ahead_bytes;
  uint64_t parallel_bytes; /* the largest number for no bound */
  uint64_t mapped_memory;  /* launches give memory of cuMemMap, not of cuMemAlloc */
  uint64_t few_launches;   /* see CaptureOptions in captured_recording.h */
} AnabranchCaptureOptions;
/* A third capture, made with other numbers; `addresses` of the blocks there, one each. */
typedef struct AnabranchCaptureNumbers {
  const AnabranchCaptureSnapshot* capture;
  const uint64_t* addresses;
} AnabranchCaptureNumbers;
/* What two captures have in common, to be recorded once or several times; `notes` and `numbers` may
 * be NULL. */
ANABRANCH_C AnabranchCapturedStep* anabranch_captured_step_discover(
    const AnabranchCaptureDevice*, const AnabranchCaptureSnapshot* first,
    const AnabranchCaptureSnapshot* second, const AnabranchCaptureBlock* blocks, size_t count,
    const AnabranchCaptureNotes* notes, const AnabranchCaptureNumbers* numbers);
/* Of one capture, whose kernels are known; `notes` may be NULL. */
ANABRANCH_C AnabranchCapturedStep* anabranch_captured_step_discover_known(
    const AnabranchCaptureDevice*, const AnabranchCaptureSnapshot* capture,
    const AnabranchCaptureLayouts* known, const AnabranchCaptureBlock* blocks, size_t count,
    const AnabranchCaptureNotes* notes);
ANABRANCH_C void anabranch_captured_step_free(AnabranchCapturedStep*);
/* Where parameters of kernels hold addresses; see CaptureLayouts in captured_recording.h. */
ANABRANCH_C AnabranchCaptureLayouts* anabranch_capture_layouts_new(void);
ANABRANCH_C int32_t anabranch_capture_layouts_add(AnabranchCaptureLayouts*,
                                                  const AnabranchCapturedStep*);
ANABRANCH_C void anabranch_capture_layouts_free(AnabranchCaptureLayouts*);
/* Words that differ between the captures and are no address. */
ANABRANCH_C uint32_t anabranch_captured_step_unsure(const AnabranchCapturedStep*);
/* Where a launch may be cut; answers how many stretches there are, and `out`, where each of them
 * ends, may be NULL. `let_go` are numbers of blocks; see captured_recording.h. */
ANABRANCH_C size_t anabranch_captured_step_stretches(const AnabranchCapturedStep*,
                                                     const uint32_t* let_go, size_t count,
                                                     uint32_t* out);
ANABRANCH_C AnabranchCapturedStep* anabranch_captured_step_stretch(const AnabranchCapturedStep*,
                                                                   uint32_t begin, uint32_t end);
ANABRANCH_C AnabranchCapturedRecording* anabranch_captured_step_record(
    const AnabranchCapturedStep*, const AnabranchCaptureOptions* options);
ANABRANCH_C void anabranch_captured_free(AnabranchCapturedRecording*);
/* Answers how many there are; `out` may be NULL. */
ANABRANCH_C size_t anabranch_captured_slots(const AnabranchCapturedRecording*,
                                            AnabranchCaptureSlot* out);
ANABRANCH_C void anabranch_captured_counts(const AnabranchCapturedRecording*,
                                           AnabranchCaptureCounts* out);
/* Answers how many there are; `out`, their bytes, may be NULL. */
ANABRANCH_C size_t anabranch_captured_parts(const AnabranchCapturedRecording*, uint64_t* out);
/* See CaptureNumber in captured_recording.h. */
typedef struct AnabranchCaptureNumber {
  uint64_t size_bytes;
  uint64_t first;
  uint64_t other;
} AnabranchCaptureNumber;
/* Answers how many there are; `out` may be NULL. */
ANABRANCH_C size_t anabranch_captured_numbers(const AnabranchCapturedRecording*,
                                              AnabranchCaptureNumber* out);
/* Addresses of the slots, then of the parts, then the words of the numbers; `stream` is a CUstream.
 */
ANABRANCH_C int32_t anabranch_captured_launch(const AnabranchCapturedRecording*,
                                              const uint64_t* addresses, uint32_t count,
                                              void* stream);

/* experimental/number_program: words of kernels that follow numbers */
/* See numbers::Entry; an operand whose entry is below 0 is a constant. */
typedef struct AnabranchNumberEntry {
  uint32_t made_by;
  uint32_t is_looked_at;
  int32_t entries[2];
  double constants[2];
  double value;
} AnabranchNumberEntry;
typedef struct AnabranchNumberProgram AnabranchNumberProgram;
/* Both traces have `count` entries. */
ANABRANCH_C AnabranchNumberProgram* anabranch_number_program_make(
    const AnabranchNumberEntry* first, const AnabranchNumberEntry* other, size_t count,
    const AnabranchCaptureNumber* words, size_t word_count);
ANABRANCH_C void anabranch_number_program_free(AnabranchNumberProgram*);
/* Answers a numbers::Outcome. `words` has place for all. */
ANABRANCH_C int32_t anabranch_number_program_run(const AnabranchNumberProgram*,
                                                 const double* numbers, uint64_t* words);
/* `now`, `before` and `out` have `number_count` numbers. */
ANABRANCH_C int32_t anabranch_numbers_apart(const AnabranchNumberEntry* entries, size_t count,
                                            const double* now, const double* before,
                                            size_t number_count, double* out);

/* timed_recording: times inside recordings; see timed_recording.h */
/* A line a node: kind, bytes, lane, numbers of the nodes before it with commas between them, name;
 * with tabs between them. */
ANABRANCH_C const char* anabranch_captured_nodes(const AnabranchCapturedRecording*);
/* A mark a node; answers how many there are. `out` may be NULL. */
ANABRANCH_C size_t anabranch_captured_marks(const AnabranchCapturedRecording*,
                                            const AnabranchCaptureMarks*, uint32_t* out);
typedef struct AnabranchNodeTime {
  uint64_t begin_ns;
  uint64_t end_ns;
} AnabranchNodeTime;
/* `addresses` as a launch takes them. */
ANABRANCH_C AnabranchTimedRecording* anabranch_timed_new(const AnabranchCapturedRecording*,
                                                         const uint64_t* addresses, uint32_t count);
ANABRANCH_C void anabranch_timed_free(AnabranchTimedRecording*);
/* Ahead of a launch of the recording itself on `stream`, and behind it. */
ANABRANCH_C int32_t anabranch_timed_mark_plain(const AnabranchTimedRecording*, uint32_t is_end,
                                               void* stream);
ANABRANCH_C int32_t anabranch_timed_is_over(const AnabranchTimedRecording*, uint32_t* is_over);
ANABRANCH_C int32_t anabranch_timed_launch(const AnabranchTimedRecording*,
                                           const uint64_t* addresses, uint32_t count, void* stream);
/* Of the last launch; `out` has room for `count`, the recording's nodes. */
ANABRANCH_C int32_t anabranch_timed_times(const AnabranchTimedRecording*, AnabranchNodeTime* out,
                                          size_t count);
ANABRANCH_C int32_t anabranch_timed_plain_times(const AnabranchTimedRecording*, uint64_t* launch_ns,
                                                uint64_t* idle_ns);

#ifdef __cplusplus
}
#endif
