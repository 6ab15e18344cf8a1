// SPDX-License-Identifier: Apache-2.0
#include "trace_summary.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace anabranch::tool {
namespace {

using Json = nlohmann::json;
constexpr std::size_t kLongestSteps = 10;

struct Span {
  double begin_us = 0;
  double end_us = 0;
};

// A process of a trace is a graph, a thread of it a stream: only both together are one.
using Thread = std::pair<std::int64_t, std::int64_t>;

struct Stream {
  std::string name;
  std::uint64_t steps = 0;
  std::vector<Span> busy;
  double waiting_us = 0;
};

struct StepTimes {
  std::uint64_t count = 0;
  double total_us = 0;
  double longest_us = 0;
};

struct Summary {
  std::map<Thread, Stream> streams;
  std::map<std::string, StepTimes> steps;
  std::uint64_t launches = 0;
  std::uint64_t flows = 0;
  double begin_us = std::numeric_limits<double>::infinity();
  double end_us = 0;

  double span_us() const { return std::max(0.0, end_us - begin_us); }
};

// A value that is missing, or of another type, counts as zero or as empty.
double number_in(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number() ? found->get<double>() : 0;
}

std::int64_t id_in(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

Thread thread_in(const Json& event) { return {id_in(event, "pid"), id_in(event, "tid")}; }

std::string text_in(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

void add_slice(Summary& summary, const Json& event) {
  const double begin_us = number_in(event, "ts");
  const double took_us = number_in(event, "dur");
  Stream& stream = summary.streams[thread_in(event)];
  const std::string category = text_in(event, "cat");
  summary.begin_us = std::min(summary.begin_us, begin_us);
  summary.end_us = std::max(summary.end_us, begin_us + took_us);
  if (category == "launch") ++summary.launches;
  if (category == "wait") stream.waiting_us += took_us;
  if (category != "step") return;
  ++stream.steps;
  stream.busy.push_back({begin_us, begin_us + took_us});
  StepTimes& times = summary.steps[text_in(event, "name")];
  ++times.count;
  times.total_us += took_us;
  times.longest_us = std::max(times.longest_us, took_us);
}

void add_event(Summary& summary, const Json& event) {
  if (!event.is_object()) return;
  const std::string phase = text_in(event, "ph");
  if (phase == "X") add_slice(summary, event);
  if (phase == "s") ++summary.flows;
  if (phase == "M" && text_in(event, "name") == "thread_name" && event.contains("args")) {
    summary.streams[thread_in(event)].name = text_in(event["args"], "name");
  }
}

// The time in any of the spans; what two have in common counts once.
double length_us(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin_us < b.begin_us; });
  double length = 0;
  double reached = -std::numeric_limits<double>::infinity();
  for (const Span& span : spans) {
    if (span.end_us <= reached) continue;
    length += span.end_us - std::max(span.begin_us, reached);
    reached = span.end_us;
  }
  return length;
}

std::string label_of(const Thread& thread, const Stream& stream, bool with_process) {
  const std::string name =
      stream.name.empty() ? fmt::format("thread {}", thread.second) : printable_text(stream.name);
  return with_process ? fmt::format("{}: {}", thread.first, name) : name;
}

std::string dump_streams(const Summary& summary) {
  const bool with_process = !summary.streams.empty() && summary.streams.begin()->first.first !=
                                                            summary.streams.rbegin()->first.first;
  const double span_us = summary.span_us();
  std::string text = fmt::format("{:<20} {:>8} {:>12} {:>12} {:>7}\n", "stream", "steps", "busy us",
                                 "waiting us", "busy %");
  for (const auto& [thread, stream] : summary.streams) {
    const double busy_us = length_us(stream.busy);
    fmt::format_to(std::back_inserter(text), "{:<20} {:>8} {:>12.3f} {:>12.3f} {:>7.1f}\n",
                   label_of(thread, stream, with_process), stream.steps, busy_us, stream.waiting_us,
                   span_us > 0 ? 100 * busy_us / span_us : 0);
  }
  return text;
}

std::string dump_longest(const Summary& summary) {
  std::vector<std::pair<std::string, StepTimes>> steps(summary.steps.begin(), summary.steps.end());
  std::stable_sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) {
    return a.second.total_us > b.second.total_us;
  });
  if (steps.size() > kLongestSteps) steps.resize(kLongestSteps);
  std::string text = fmt::format("{:<40} {:>8} {:>12} {:>12}\n", "steps that took longest", "times",
                                 "total us", "longest us");
  for (const auto& [name, times] : steps) {
    fmt::format_to(std::back_inserter(text), "{:<40} {:>8} {:>12.3f} {:>12.3f}\n",
                   printable_text(name), times.count, times.total_us, times.longest_us);
  }
  return text;
}

}  // namespace

Result<std::string> summarize_trace(const std::string& path, std::string_view json) {
  const Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  // Chrome's format is an object with this list, or the list alone.
  const bool in_object = parsed.is_object() && parsed.contains("traceEvents");
  const Json& events = in_object ? parsed["traceEvents"] : parsed;
  if (!events.is_array()) {
    return Status(
        StatusCode::kFileMalformed,
        fmt::format("show '{}': {}, where a trace holds a list 'traceEvents'. Give a plan "
                    "file, or what `anabranch trace` wrote.",
                    printable_text(path),
                    parsed.is_discarded() ? "no valid JSON" : "JSON without events"));
  }
  Summary summary;
  for (const Json& event : events) add_event(summary, event);
  return fmt::format("{}: {} launches, {} waits, {:.3f} us\n\n{}\n{}", printable_text(path),
                     summary.launches, summary.flows, summary.span_us(), dump_streams(summary),
                     dump_longest(summary));
}

}  // namespace anabranch::tool
