// SPDX-License-Identifier: Apache-2.0
#include "anabranch/timed_recording.h"

#include <algorithm>
#include <string>

#include "anabranch/launch.h"
#include "handles.h"

namespace ab = anabranch;

namespace {

std::string line_of(const ab::RecordedNode& node) {
  std::string line =
      node.kind + '\t' + std::to_string(node.bytes) + '\t' + std::to_string(node.lane) + '\t';
  for (std::size_t i = 0; i < node.after.size(); ++i) {
    line += (i > 0 ? "," : "") + std::to_string(node.after[i]);
  }
  return line + '\t' + node.name + '\n';
}

}  // namespace

const char* anabranch_captured_nodes(const AnabranchCapturedRecording* recording) {
  return ab::bridge::guard([&] {
    std::string lines;
    for (const ab::RecordedNode& node : ab::list_nodes(recording->recording)) {
      lines += line_of(node);
    }
    return ab::bridge::keep(std::move(lines));
  });
}

size_t anabranch_captured_marks(const AnabranchCapturedRecording* recording,
                                const AnabranchCaptureMarks* marks, uint32_t* out) {
  return ab::bridge::guard([&]() -> size_t {
    const auto numbers = ab::list_marks(recording->recording, marks->marks);
    if (out) std::copy(numbers.begin(), numbers.end(), out);
    return numbers.size();
  });
}

AnabranchTimedRecording* anabranch_timed_new(const AnabranchCapturedRecording* recording,
                                             const uint64_t* addresses, uint32_t count) {
  return ab::bridge::guard([&] {
    return ab::bridge::handle_of<AnabranchTimedRecording>(
        ab::TimedRecording::make(recording->recording, {addresses, count}));
  });
}

void anabranch_timed_free(AnabranchTimedRecording* timed) { delete timed; }

int32_t anabranch_timed_is_over(const AnabranchTimedRecording* timed, uint32_t* is_over) {
  return ab::bridge::guard([&] {
    *is_over = timed->timed.is_over();
    return 0;
  });
}

int32_t anabranch_timed_launch(const AnabranchTimedRecording* timed, const uint64_t* addresses,
                               uint32_t count, void* stream) {
  return ab::bridge::guard([&] {
    const ab::Status queued =
        ab::queue_timed_launch(timed->timed, {addresses, count}, ab::CudaStream(stream));
    return queued.ok() ? 0 : ab::bridge::fail(queued);
  });
}

int32_t anabranch_timed_times(const AnabranchTimedRecording* timed, AnabranchNodeTime* out,
                              size_t count) {
  return ab::bridge::guard([&] {
    const auto times = timed->timed.times();
    if (!times.ok()) return ab::bridge::fail(times.error());
    const size_t told = std::min(count, times->size());
    for (size_t i = 0; i < told; ++i) out[i] = {(*times)[i].begin_ns, (*times)[i].end_ns};
    return 0;
  });
}

int32_t anabranch_timed_mark_plain(const AnabranchTimedRecording* timed, uint32_t is_end,
                                   void* stream) {
  return ab::bridge::guard([&] {
    const ab::Status marked = timed->timed.mark_plain(is_end != 0, ab::CudaStream(stream));
    return marked.ok() ? 0 : ab::bridge::fail(marked);
  });
}

int32_t anabranch_timed_plain_times(const AnabranchTimedRecording* timed, uint64_t* launch_ns,
                                    uint64_t* idle_ns) {
  return ab::bridge::guard([&] {
    const auto times = timed->timed.plain_times();
    if (!times.ok()) return ab::bridge::fail(times.error());
    *launch_ns = times->launch_ns;
    *idle_ns = times->idle_ns;
    return 0;
  });
}
