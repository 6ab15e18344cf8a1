// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/plan/plan_capture.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "record/region_table.h"

namespace anabranch::cuda {
namespace {

constexpr std::size_t kErrorBytes = 512;

// Calls piece(to, from, bytes), offsets both, until one fails.
template <typename Piece>
CuResult for_each_piece(const TransferLoops& transfer, std::size_t loop, std::uint64_t to,
                        std::uint64_t from, Piece piece) {
  if (loop == transfer.loops.size()) return piece(to, from, transfer.item_bytes);
  const TransferLoops::Loop& here = transfer.loops[loop];
  for (std::uint64_t i = 0; i < here.count; ++i) {
    const CuResult result = for_each_piece<Piece&>(transfer, loop + 1, to, from, piece);
    if (result != CuResult::kSuccess) return result;
    to += static_cast<std::uint64_t>(here.to_stride);
    from += static_cast<std::uint64_t>(here.from_stride);
  }
  return CuResult::kSuccess;
}

template <typename Piece>
CuResult for_each_piece(const TransferLoops& transfer, Piece piece) {
  if (count_items(transfer) == 0) return CuResult::kSuccess;
  return for_each_piece<Piece&>(transfer, 0, transfer.to_offset, transfer.from_offset, piece);
}

class PlanCapture {
 public:
  PlanCapture(const Driver& driver, const Plan& plan, const PlanUnits& units,
              std::span<const CaptureAllocation> allocations, std::span<PlanValue> values,
              const RegionTable& regions)
      : driver_(driver),
        plan_(plan),
        units_(units),
        allocations_(allocations),
        values_(values),
        regions_(regions),
        streams_(plan.program().streams().size()),
        ended_(plan.program().steps().size()) {}
  ~PlanCapture();
  PlanCapture(const PlanCapture&) = delete;
  PlanCapture& operator=(const PlanCapture&) = delete;

  Result<std::unique_ptr<CapturedGraph>> run();

 private:
  const Program& program() const { return plan_.program(); }
  CuStream& origin() { return streams_[index_of(kAmbient)]; }
  std::uint64_t address_of(std::uint32_t unit) const {
    return unit == UnitTable::kNone ? 0 : allocations_[unit].address;
  }
  std::uint64_t address_of(const View& view) const {
    return address_of(units_.of_buffer[index_of(view.buffer)]);
  }

  Status begin();
  Status queue_all();
  Status queue(StepId id);
  Status queue_work(StepId id, CuStream stream);
  Status join_streams();
  Result<std::unique_ptr<CapturedGraph>> end();

  Status make_stream(CuStream& stream);
  Status enter(StreamId id);
  Result<CuEvent> mark(CuStream stream);
  Status wait(CuStream stream, CuEvent event) {
    return recorded("cuStreamWaitEvent", driver_.cuStreamWaitEvent(stream, event, 0));
  }

  Status run_region(StepId id, CuStream stream);
  Status region_failed(StepId id, const std::string& how) const;
  CuResult copy(const Transfer& transfer, std::uint64_t to, std::uint64_t from, CuStream stream);
  Status check_capture(StepId id);

  const Driver& driver_;
  const Plan& plan_;
  const PlanUnits& units_;
  const std::span<const CaptureAllocation> allocations_;
  const std::span<PlanValue> values_;
  const RegionTable& regions_;
  std::vector<CuStream> streams_;  // by stream of the plan; null until a step needs it
  std::vector<CuEvent> ended_;     // by step; null unless another stream waits for it
  std::vector<CuEvent> events_;    // all of them
  CuEvent begun_ = nullptr;
  bool capturing_ = false;
};

PlanCapture::~PlanCapture() {
  if (capturing_) (void)end();
  for (const CuEvent event : events_) driver_.cuEventDestroy(event);
  for (const CuStream stream : streams_) {
    if (stream) driver_.cuStreamDestroy(stream);
  }
}

Result<std::unique_ptr<CapturedGraph>> PlanCapture::run() {
  if (Status begun = begin(); !begun.ok()) return begun;
  if (Status queued = queue_all(); !queued.ok()) return queued;
  if (Status joined = join_streams(); !joined.ok()) return joined;
  return end();
}

// Only this thread is kept from calls that no capture can hold: others may load and allocate.
Status PlanCapture::begin() {
  if (Status made = make_stream(origin()); !made.ok()) return made;
  if (Status begun = recorded("cuStreamBeginCapture",
                              driver_.cuStreamBeginCapture(origin(), CuCaptureMode::kThreadLocal));
      !begun.ok()) {
    return begun;
  }
  capturing_ = true;
  const auto marked = mark(origin());
  if (!marked.ok()) return marked.error();
  begun_ = *marked;
  return {};
}

Status PlanCapture::queue_all() {
  std::vector<bool> is_awaited(ended_.size());
  for (const Wait& wait : plan_.waits()) is_awaited[index_of(wait.on)] = true;
  auto next = plan_.waits().begin();
  for (const StepId id : plan_.order()) {
    const StreamId on = program().step(id).stream;
    if (Status entered = enter(on); !entered.ok()) return entered;
    const CuStream stream = streams_[index_of(on)];
    for (; next != plan_.waits().end() && next->step == id; ++next) {
      if (Status waits = wait(stream, ended_[index_of(next->on)]); !waits.ok()) return waits;
    }
    if (Status queued = queue(id); !queued.ok()) return queued;
    if (!is_awaited[index_of(id)]) continue;
    const auto marked = mark(stream);
    if (!marked.ok()) return marked.error();
    ended_[index_of(id)] = *marked;
  }
  return {};
}

Status PlanCapture::queue(StepId id) {
  const CuStream stream = streams_[index_of(program().step(id).stream)];
  const Status queued = queue_work(id, stream);
  return queued.ok() ? check_capture(id) : queued;
}

Status PlanCapture::queue_work(StepId id, CuStream stream) {
  const Step& step = program().step(id);
  const Transfer& transfer = units_.transfers[index_of(id)];
  switch (step.kind) {
    case StepKind::kCompute:
      return run_region(id, stream);
    case StepKind::kCopy:
      return recorded("cuMemcpyDtoDAsync", copy(transfer, address_of(step.accesses[0].view),
                                                address_of(step.accesses[1].view), stream));
    case StepKind::kFill: {
      const std::uint64_t base = address_of(step.accesses[0].view);
      return recorded("cuMemsetD8Async",
                      for_each_piece(transfer.loops, [&](auto to, auto, std::uint64_t bytes) {
                        return driver_.cuMemsetD8Async(base + to, step.fill_byte, bytes, stream);
                      }));
    }
    default:
      return {};  // it only orders, and the plan's waits say what
  }
}

CuResult PlanCapture::copy(const Transfer& transfer, std::uint64_t to, std::uint64_t from,
                           CuStream stream) {
  const auto run = [&](const TransferLoops& loops, std::uint64_t into, std::uint64_t out_of) {
    return for_each_piece(loops, [&](std::uint64_t a, std::uint64_t b, std::uint64_t bytes) {
      return driver_.cuMemcpyDtoDAsync(into + a, out_of + b, bytes, stream);
    });
  };
  if (transfer.scratch == UnitTable::kNone) return run(transfer.loops, to, from);
  const std::uint64_t scratch = address_of(transfer.scratch);
  const CuResult staged = run(transfer.loops, scratch, from);
  return staged == CuResult::kSuccess ? run(transfer.unstage, to, scratch) : staged;
}

Status PlanCapture::run_region(StepId id, CuStream stream) {
  const Step& step = program().step(id);
  const Region& region = regions_.find(step.name)->second;
  std::vector<void*> buffers;
  for (const Access& access : step.accesses) {
    const std::uint32_t buffer = index_of(access.view.buffer);
    buffers.push_back(is_value(program().buffers()[buffer].role)
                          ? static_cast<void*>(&values_[buffer])
                          : reinterpret_cast<void*>(address_of(access.view)));
  }
  std::array<char, kErrorBytes> text{};
  const RegionCall call{buffers.data(), static_cast<std::uint32_t>(buffers.size()), text.data(),
                        static_cast<std::uint32_t>(text.size()), CudaStream(stream)};
  std::string how;
  try {
    const std::int32_t code = region.function(region.context, &call);
    if (code == 0) return {};
    const std::string_view said(text.data(), strnlen(text.data(), text.size()));
    how = fmt::format("answered {}{}{}", code, said.empty() ? "" : ": ", said);
  } catch (const std::exception& exception) {
    how = fmt::format("threw: {}", exception.what());
  } catch (...) {
    how = "threw: an exception that is no std::exception";
  }
  return region_failed(id, how);
}

Status PlanCapture::region_failed(StepId id, const std::string& how) const {
  return Status(StatusCode::kRegionFailed,
                fmt::format("record: {} {}, while it was captured. Nothing has been recorded.",
                            describe_step(program(), id), how));
}

// A region may have made a call that a capture cannot hold and not have looked at the answer.
Status PlanCapture::check_capture(StepId id) {
  CuCaptureStatus status = CuCaptureStatus::kNone;
  if (Status asked =
          recorded("cuStreamIsCapturing", driver_.cuStreamIsCapturing(origin(), &status));
      !asked.ok()) {
    return asked;
  }
  if (status == CuCaptureStatus::kActive) return {};
  return region_failed(id, fmt::format("broke the capture ({}): it made a call that is not queued "
                                       "on a stream, as an allocation or a wait is",
                                       result_text(CuResult::kStreamCaptureInvalidated)));
}

Status PlanCapture::join_streams() {
  for (const CuStream stream : streams_) {
    if (!stream || stream == origin()) continue;
    const auto marked = mark(stream);
    if (!marked.ok()) return marked.error();
    if (Status joined = wait(origin(), *marked); !joined.ok()) return joined;
  }
  return {};
}

Result<std::unique_ptr<CapturedGraph>> PlanCapture::end() {
  capturing_ = false;
  CuGraph graph = nullptr;
  const CuResult result = driver_.cuStreamEndCapture(origin(), &graph);
  std::unique_ptr<CapturedGraph> captured;
  if (graph) captured = std::make_unique<CapturedGraph>(driver_, graph);
  if (Status ended = recorded("cuStreamEndCapture", result); !ended.ok()) return ended;
  return captured;
}

Status PlanCapture::make_stream(CuStream& stream) {
  return recorded("cuStreamCreateWithPriority",
                  driver_.cuStreamCreateWithPriority(&stream, kStreamNonBlocking, 0));
}

// A stream joins the capture by waiting for its beginning, where there is nothing to wait for.
Status PlanCapture::enter(StreamId id) {
  CuStream& stream = streams_[index_of(id)];
  if (stream) return {};
  if (Status made = make_stream(stream); !made.ok()) return made;
  return wait(stream, begun_);
}

Result<CuEvent> PlanCapture::mark(CuStream stream) {
  CuEvent event = nullptr;
  if (Status made = recorded("cuEventCreate", driver_.cuEventCreate(&event, kEventDisableTiming));
      !made.ok()) {
    return made;
  }
  events_.push_back(event);
  if (Status marked = recorded("cuEventRecord", driver_.cuEventRecord(event, stream));
      !marked.ok()) {
    return marked;
  }
  return event;
}

}  // namespace

Result<std::unique_ptr<CapturedGraph>> capture_plan(const Driver& driver, const Plan& plan,
                                                    const PlanUnits& units,
                                                    std::span<const CaptureAllocation> allocations,
                                                    std::span<PlanValue> values,
                                                    const RegionTable& regions) {
  return PlanCapture(driver, plan, units, allocations, values, regions).run();
}

}  // namespace anabranch::cuda
