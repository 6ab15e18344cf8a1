// SPDX-License-Identifier: Apache-2.0
// Events as Chrome's JSON trace format: one process, a thread a stream, slices, and for each wait
// of the plan a flow from the step waited for to the step that waited.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "anabranch/trace.h"
#include "base/write_file.h"
#include "trace/json_text.h"
#include "trace/sorted_events.h"
#include "trace/step_label.h"

namespace anabranch {
namespace {

constexpr int kProcess = 1;

// Perfetto takes thread 0 for the idle thread, so stream 0 is thread 1.
std::uint32_t thread_of(const Program& program, std::uint32_t step) {
  if (step >= program.steps().size()) return index_of(kAmbient) + 1;
  return index_of(program.steps()[step].stream) + 1;
}

class Writer {
 public:
  Writer(const Plan& plan, std::vector<TraceEvent> events)
      : plan_(plan), program_(plan.program()), events_(std::move(events)) {
    for (const TraceEvent& event : events_) origin_ns_ = std::min(origin_ns_, event.begin_ns);
  }

  std::string write();

 private:
  void write_names();
  void write_slice(const TraceEvent& event);
  void write_flow(const TraceEvent& from, const TraceEvent& to);

  // Opens an object with what every event has.
  void open(const char* phase, std::uint32_t thread);
  void text(const char* key, std::string_view value);
  template <typename... Values>
  void append(fmt::format_string<const Values&...> format, const Values&... values) {
    fmt::vformat_to(std::back_inserter(out_), fmt::string_view(format),
                    fmt::make_format_args(values...));
  }
  // Chrome counts in microseconds; whole nanoseconds are kept as three digits behind the point.
  void time(const char* key, std::uint64_t ns) {
    append(",\"{}\":{}.{:03}", key, ns / 1000, ns % 1000);
  }

  const Plan& plan_;
  const Program& program_;
  std::vector<TraceEvent> events_;
  std::uint64_t origin_ns_ = ~std::uint64_t{0};
  std::uint64_t flow_count_ = 0;
  std::string out_;
};

void Writer::open(const char* phase, std::uint32_t thread) {
  append("{}{{\"ph\":\"{}\",\"pid\":{},\"tid\":{}", out_.empty() ? "" : ",\n", phase, kProcess,
         thread);
}

void Writer::text(const char* key, std::string_view value) {
  append(",\"{}\":", key);
  append_json_text(out_, value);
}

void Writer::write_names() {
  open("M", 0);
  append(",\"name\":\"process_name\",\"args\":{{\"name\":\"anabranch program\"}}}}");
  for (std::uint32_t stream = 0; stream < program_.streams().size(); ++stream) {
    open("M", stream + 1);
    append(",\"name\":\"thread_name\",\"args\":{{\"name\":");
    append_json_text(out_, program_.streams()[stream]);
    append("}}}}");
    open("M", stream + 1);
    append(",\"name\":\"thread_sort_index\",\"args\":{{\"sort_index\":{}}}}}", stream);
  }
}

void Writer::write_slice(const TraceEvent& event) {
  const bool is_launch = event.kind == EventKind::kLaunch;
  open("X", is_launch ? index_of(kAmbient) + 1 : thread_of(program_, event.step));
  time("ts", event.begin_ns - origin_ns_);
  time("dur", event.end_ns - std::min(event.begin_ns, event.end_ns));
  if (is_launch) {
    append(",\"cat\":\"launch\",\"name\":\"launch\",\"args\":{{\"lane\":{}}}}}", event.lane);
    return;
  }
  if (event.kind == EventKind::kWait) {
    text("cat", "wait");
    text("name", "wait for " + step_label(program_, event.other));
    append(",\"args\":{{\"lane\":{},\"on\":{}}}}}", event.lane, event.other);
    return;
  }
  text("cat", "step");
  text("name", step_label(program_, event.step));
  append(",\"args\":{{\"step\":{},\"lane\":{}", event.step, event.lane);
  text("kind", kind_text(program_.steps()[event.step].kind));
  text("source", program_.steps()[event.step].source);
  append("}}}}");
}

// Both ends lie at the begin of their slice, where no neighbour can be meant; "bp" makes the end
// bind to the slice around it and not to the next one.
void Writer::write_flow(const TraceEvent& from, const TraceEvent& to) {
  const std::uint64_t id = ++flow_count_;
  open("s", thread_of(program_, from.step));
  time("ts", from.begin_ns - origin_ns_);
  append(",\"cat\":\"wait\",\"name\":\"wait\",\"id\":{}}}", id);
  open("f", thread_of(program_, to.step));
  time("ts", to.begin_ns - origin_ns_);
  append(",\"cat\":\"wait\",\"name\":\"wait\",\"id\":{},\"bp\":\"e\"}}", id);
}

std::string Writer::write() {
  write_names();
  for (const TraceEvent& event : events_) write_slice(event);
  for (const WaitPair& pair : find_wait_pairs(plan_, events_)) {
    write_flow(events_[pair.on], events_[pair.step]);
  }
  return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + out_ + "\n]}\n";
}

}  // namespace

std::string dump_chrome_json(const Plan& plan, const std::vector<TraceEvent>& events) {
  return Writer(plan, sort_events(plan, events)).write();
}

Status write_chrome_json(const Plan& plan, const std::vector<TraceEvent>& events,
                         const std::string& path) {
  const std::string text = dump_chrome_json(plan, events);
  return write_file("write trace", path,
                    {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

}  // namespace anabranch
