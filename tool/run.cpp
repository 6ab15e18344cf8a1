// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "null_run.h"

namespace anabranch::tool {
namespace {

// Of a sorted list that is not empty; `share` from 0 to 1.
double quantile_us(const std::vector<std::uint64_t>& sorted, double share) {
  const auto at = static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5);
  return static_cast<double>(sorted[at]) / 1000;
}

std::string dump_times(const std::string& path, const Recording& recording,
                       const LaunchTimes& times) {
  if (times.count() == 0) return fmt::format("{}: recorded, not launched\n", printable_text(path));
  const std::vector<std::uint64_t> sorted = times.sorted_ns();
  return fmt::format(
      "{}: {} steps on {} lanes, {} launches\n"
      "median {:.3f} us   10 % {:.3f} us   90 % {:.3f} us   least {:.3f} us\n",
      printable_text(path), recording.plan().order().size(), recording.lane_count(), times.count(),
      quantile_us(sorted, 0.5), quantile_us(sorted, 0.1), quantile_us(sorted, 0.9),
      static_cast<double>(times.least_ns()) / 1000);
}

// Launch, each step, each of its waits: an event each.
std::size_t events_of(const Plan& plan, std::uint32_t launches) {
  return launches * (1 + plan.order().size() + plan.waits().size() + plan.exits().size());
}

}  // namespace

Result<std::string> run(const std::string& path, const RunOptions& options) {
  Result<NullRun> run = NullRun::make(path, options);
  if (!run) return run.error();
  const Result<LaunchTimes> times = run->launch_all(options.launches);
  if (!times) return times.error();
  return dump_times(path, run->recording(), *times);
}

Result<std::string> trace(const std::string& path, const RunOptions& options,
                          const std::string& out_path) {
  constexpr std::size_t kMostEvents = std::size_t{1} << 22;
  Result<NullRun> run = NullRun::make(path, options);
  if (!run) return run.error();
  const Plan& plan = run->recording().plan();
  Trace trace(std::min(kMostEvents, events_of(plan, options.launches)));
  attach_trace(run->recording(), &trace);
  const Result<LaunchTimes> times = run->launch_all(options.launches);
  attach_trace(run->recording(), nullptr);
  if (!times) return times.error();

  const std::vector<TraceEvent> events = trace.collect();
  if (Status status = write_chrome_json(plan, events, out_path); !status) return status;
  return fmt::format("{}{}: {} events, {} dropped; open it in ui.perfetto.dev\n",
                     dump_times(path, run->recording(), *times), printable_text(out_path),
                     events.size(), trace.dropped());
}

}  // namespace anabranch::tool
