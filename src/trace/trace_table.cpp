// SPDX-License-Identifier: Apache-2.0
// Events as a table for people.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "anabranch/trace.h"
#include "trace/sorted_events.h"
#include "trace/step_label.h"

namespace anabranch {
namespace {

double microseconds(std::uint64_t ns) { return static_cast<double>(ns) / 1000; }

std::string printable_label(const Program& program, std::uint32_t step) {
  return printable_text(step_label(program, step));
}

// For each event the labels of the steps it waited for.
std::vector<std::string> find_waited_for(const Plan& plan, const std::vector<TraceEvent>& sorted) {
  std::vector<std::string> texts(sorted.size());
  for (const WaitPair& pair : find_wait_pairs(plan, sorted)) {
    std::string& text = texts[pair.step];
    if (!text.empty()) text += ", ";
    text += printable_label(plan.program(), sorted[pair.on].step);
  }
  return texts;
}

std::size_t width_of(const char* title, std::size_t least, std::size_t most,
                     const std::vector<std::string>& texts) {
  std::size_t width = std::max(least, std::string(title).size());
  for (const std::string& text : texts) width = std::max(width, text.size());
  return std::min(width, most);
}

std::string event_label(const Program& program, const TraceEvent& event) {
  switch (event.kind) {
    case EventKind::kLaunch:
      return "launch";
    case EventKind::kWait:
      return "  wait for " + printable_label(program, event.other);
    case EventKind::kStep:
      return "  " + printable_label(program, event.step);
  }
  return {};
}

std::string stream_label(const Program& program, const TraceEvent& event) {
  const bool in_stream = event.kind != EventKind::kLaunch && event.step < program.steps().size();
  const StreamId stream = in_stream ? program.steps()[event.step].stream : kAmbient;
  return printable_text(program.streams()[index_of(stream)]);
}

}  // namespace

std::string dump_trace(const Plan& plan, const std::vector<TraceEvent>& events) {
  const std::vector<TraceEvent> sorted = sort_events(plan, events);
  const std::vector<std::string> waited_for = find_waited_for(plan, sorted);
  std::vector<std::string> labels, streams;
  for (const TraceEvent& event : sorted) {
    labels.push_back(event_label(plan.program(), event));
    streams.push_back(stream_label(plan.program(), event));
  }
  const std::size_t label_width = width_of("what", 12, 48, labels);
  const std::size_t stream_width = width_of("stream", 8, 24, streams);

  std::string out = fmt::format("{:>12} {:>12} {:>5}  {:<{}}  {:<{}}  waited for\n", "begin us",
                                "took us", "lane", "stream", stream_width, "what", label_width);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const TraceEvent& event = sorted[i];
    fmt::format_to(std::back_inserter(out), "{:>12.3f} {:>12.3f} {:>5}  {:<{}}  {:<{}}  {}",
                   microseconds(event.begin_ns - sorted.front().begin_ns),
                   microseconds(event.end_ns - std::min(event.begin_ns, event.end_ns)), event.lane,
                   streams[i], stream_width, labels[i], label_width, waited_for[i]);
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

}  // namespace anabranch
