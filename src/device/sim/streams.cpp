// SPDX-License-Identifier: Apache-2.0
// Streams and events: what waits for what, and when it is asked.
#include <algorithm>

#include "device/sim/machine.h"

namespace anabranch::sim {
namespace {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

bool all_done(const std::vector<After>& work) {
  return std::all_of(work.begin(), work.end(), [](const After& a) { return is_done(a.work); });
}

}  // namespace

CuResult Machine::find_stream(CuStream handle, Stream** stream) {
  *stream = streams_.find(handle);
  if (*stream) return CuResult::kSuccess;
  Device* const device = current_device();
  if (!device) return CuResult::kInvalidContext;
  if (!handle || handle == legacy_stream()) {
    *stream = &legacy_[device->ordinal];
  } else if (handle == per_thread_stream()) {
    *stream = &per_thread_streams_[{std::this_thread::get_id(), device->ordinal}];
    (*stream)->handle = handle;
    (*stream)->device = device;
  }
  return *stream ? CuResult::kSuccess : CuResult::kInvalidHandle;
}

// The legacy stream waits for every blocking stream of its device, and they for it.
std::vector<After> Machine::work_before(Stream& stream) {
  std::vector<After> before = stream.waits;
  before.push_back({stream.tail});
  if (stream.blocking()) before.push_back({legacy_[stream.device->ordinal].tail});
  if (!stream.legacy) return before;
  const auto add = [&](const Stream& other) {
    if (!other.blocking() || other.device != stream.device) return;
    before.insert(before.end(), other.waits.begin(), other.waits.end());
    before.push_back({other.tail});
  };
  for (const auto& [handle, other] : streams_) add(*other);
  for (const auto& [key, other] : per_thread_streams_) add(other);
  return before;
}

WorkRef Machine::enqueue(Stream& stream, Work work, std::vector<After> after) {
  const std::vector<After> before = work_before(stream);
  after.insert(after.end(), before.begin(), before.end());
  work.stream = stream.handle;
  stream.tail = engine_.add(std::move(work), after);
  stream.waits.clear();
  return stream.tail;
}

// The way of all that is queued: into the stream's capture, or behind the stream's work.
CuResult Machine::submit(CuStream handle, Op op) {
  Stream* stream = nullptr;
  CuResult result = find_stream(handle, &stream);
  if (result == CuResult::kSuccess) result = check_legacy(*stream);
  if (result == CuResult::kSuccess) result = check_capturing(*stream);
  if (result != CuResult::kSuccess) return result;
  if (stream->capture) return capture_op(*stream, std::move(op));
  Work work{name_of(op), nullptr, duration_of(op), nullptr};
  const auto shared = std::make_shared<const Op>(std::move(op));
  work.run = [this, shared] { run_op(*shared); };
  enqueue(*stream, std::move(work));
  return CuResult::kSuccess;
}

void Machine::run_op(const Op& op) {
  if (sticky_ != CuResult::kSuccess) return;
  std::visit(Overloaded{[&](const KernelOp& kernel) { run_kernel(kernel); },
                        [&](const CopyOp& copy) { run_copy(copy); },
                        [&](const FillOp& fill) { run_fill(fill); },
                        [&](const HostOp& host) {
                          running_ = true;
                          host.fn(host.user_data);
                          running_ = false;
                        },
                        [](const auto&) {}},
             op);
}

std::uint64_t Machine::duration_of(const Op& op) const {
  if (const auto* kernel = std::get_if<KernelOp>(&op)) return kernel->kernel->duration_ns;
  if (const auto* copy = std::get_if<CopyOp>(&op)) {
    const CuMemcpy3D& c = copy->copy;
    return 1000 + c.width_bytes * c.height * c.depth / 1000;
  }
  return std::holds_alternative<FillOp>(op) || std::holds_alternative<HostOp>(op) ? 1000 : 0;
}

CuResult Machine::finish(const std::vector<After>& work) {
  for (const After& after : work) engine_.run_until(after.work);
  check_damage();
  return sticky_;
}

// What polls gets on, too: an answer of "not ready" lets one more piece of work run.
CuResult Machine::query(const std::vector<After>& work) {
  if (all_done(work)) return finish(work);
  engine_.run_one();
  return CuResult::kNotReady;
}

CuResult Machine::cuStreamCreateWithPriority(CuStream* stream, unsigned flags, int priority) {
  if (!current_device()) return CuResult::kInvalidContext;
  if (flags > kStreamNonBlocking) return CuResult::kInvalidValue;
  Stream& made = streams_.make();
  made.flags = flags;
  made.priority = std::clamp(priority, -5, 0);
  made.device = current_device();
  *stream = made.handle;
  return CuResult::kSuccess;
}

// Its work goes on; a capture in it cannot.
CuResult Machine::cuStreamDestroy(CuStream stream) {
  Stream* const found = streams_.find(stream);
  if (!found) return CuResult::kInvalidHandle;
  if (const std::shared_ptr<Capture> capture = found->capture) {
    invalidate(*capture);
    found->capture.reset();
    if (capture->origin == found) end_capture(*capture);
  }
  streams_.erase(stream);
  return CuResult::kSuccess;
}

CuResult Machine::cuStreamGetPriority(CuStream stream, int* priority) {
  Stream* found = nullptr;
  const CuResult result = find_stream(stream, &found);
  if (result == CuResult::kSuccess) *priority = found->priority;
  return result;
}

CuResult Machine::cuStreamGetFlags(CuStream stream, unsigned* flags) {
  Stream* found = nullptr;
  const CuResult result = find_stream(stream, &found);
  if (result == CuResult::kSuccess) *flags = found->flags;
  return result;
}

// A broken capture answers to being asked as one that lasts does; it is what is queued that finds
// it broken.
CuResult Machine::cuStreamQuery(CuStream stream) {
  Stream* found = nullptr;
  CuResult result = find_stream(stream, &found);
  if (result == CuResult::kSuccess) result = check_legacy(*found);
  if (result != CuResult::kSuccess) return result;
  if (!found->capture) return query(work_before(*found));
  invalidate(*found->capture);
  return CuResult::kStreamCaptureUnsupported;
}

CuResult Machine::cuStreamSynchronize(CuStream stream) {
  Stream* found = nullptr;
  CuResult result = find_stream(stream, &found);
  if (result == CuResult::kSuccess) result = check_legacy(*found);
  if (result != CuResult::kSuccess) return result;
  if (!found->capture) return finish(work_before(*found));
  invalidate(*found->capture);
  return CuResult::kStreamCaptureUnsupported;
}

CuResult Machine::cuLaunchHostFunc(CuStream stream, CuHostFn fn, void* user_data) {
  return fn ? submit(stream, HostOp{fn, user_data}) : CuResult::kInvalidValue;
}

CuResult Machine::cuEventCreate(CuEvent* event, unsigned flags) {
  if (!current_device()) return CuResult::kInvalidContext;
  Event& made = events_.make();
  made.flags = flags;
  *event = made.handle;
  return CuResult::kSuccess;
}

CuResult Machine::cuEventDestroy(CuEvent event) {
  if (!events_.find(event)) return CuResult::kInvalidHandle;
  events_.erase(event);
  return CuResult::kSuccess;
}

CuResult Machine::cuEventRecord(CuEvent event, CuStream stream) {
  return cuEventRecordWithFlags(event, stream, kEventRecordDefault);
}

CuResult Machine::cuEventRecordWithFlags(CuEvent handle, CuStream stream_handle, unsigned flags) {
  Event* const event = events_.find(handle);
  Stream* stream = nullptr;
  CuResult result = event ? find_stream(stream_handle, &stream) : CuResult::kInvalidHandle;
  if (result == CuResult::kSuccess) result = check_legacy(*stream);
  if (result == CuResult::kSuccess) result = check_capturing(*stream);
  if (result != CuResult::kSuccess) return result;
  const bool external = flags == kEventRecordExternal;
  if (external) {
    return stream->capture ? capture_op(*stream, RecordOp{handle}) : CuResult::kIllegalState;
  }
  event->recorded = true;
  event->capture = stream->capture;
  event->capture_after = stream->capture_after;
  event->mark.reset();
  if (!stream->capture) event->mark = enqueue(*stream, {"event record", nullptr, 0, nullptr});
  return CuResult::kSuccess;
}

CuResult Machine::cuStreamWaitEvent(CuStream stream_handle, CuEvent handle, unsigned flags) {
  Event* const event = events_.find(handle);
  Stream* stream = nullptr;
  CuResult result = event ? find_stream(stream_handle, &stream) : CuResult::kInvalidHandle;
  if (result == CuResult::kSuccess) result = check_legacy(*stream);
  if (result == CuResult::kSuccess) result = check_capturing(*stream);
  if (result != CuResult::kSuccess) return result;
  if (flags == kEventWaitExternal) {
    return stream->capture ? capture_op(*stream, WaitOp{handle}) : CuResult::kIllegalState;
  }
  if (event->capture) return wait_captured(*stream, *event);
  if (!event->recorded) return CuResult::kSuccess;
  if (stream->capture) {
    invalidate(*stream->capture);
    return CuResult::kStreamCaptureIsolation;
  }
  stream->waits.push_back({event->mark});
  return CuResult::kSuccess;
}

CuResult Machine::cuEventQuery(CuEvent handle) {
  Event* const event = events_.find(handle);
  if (!event) return CuResult::kInvalidHandle;
  const CuResult result = use_event(*event);
  return result == CuResult::kSuccess ? query({{event->mark}}) : result;
}

CuResult Machine::cuEventSynchronize(CuEvent handle) {
  Event* const event = events_.find(handle);
  if (!event) return CuResult::kInvalidHandle;
  const CuResult result = use_event(*event);
  return result == CuResult::kSuccess ? finish({{event->mark}}) : result;
}

CuResult Machine::cuEventElapsedTime(float* milliseconds, CuEvent start, CuEvent end) {
  Event* const events[] = {events_.find(start), events_.find(end)};
  for (Event* const event : events) {
    if (!event) return CuResult::kInvalidHandle;
    if (const CuResult result = use_event(*event); result != CuResult::kSuccess) return result;
    const bool timed = event->recorded && event->mark && !(event->flags & kEventDisableTiming);
    if (!timed) return CuResult::kInvalidHandle;
  }
  for (Event* const event : events) {
    if (!event->mark->done) return CuResult::kNotReady;
  }
  const double ns =
      static_cast<double>(events[1]->mark->end_ns) - static_cast<double>(events[0]->mark->end_ns);
  *milliseconds = static_cast<float>(ns / 1e6);
  return CuResult::kSuccess;
}

}  // namespace anabranch::sim
