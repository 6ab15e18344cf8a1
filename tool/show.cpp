// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "input.h"
#include "trace_summary.h"

namespace anabranch::tool {
Result<std::string> show(const std::string& path) {
  const Result<std::string> bytes = read_input(path);
  if (!bytes) return bytes.error();
  if (begins_like_json(*bytes)) return summarize_trace(path, *bytes);
  const Result<Plan> plan = read_plan_bytes(path, *bytes);
  if (!plan) return plan.error();
  return dump_plan(*plan);
}

Result<std::string> check(const std::string& path, bool strict) {
  static constexpr std::string_view kSeverities[] = {"note", "warning", "error"};
  const Result<Plan> plan = read_plan_input(path);
  if (!plan) return plan.error();
  const Program& program = plan->program();
  std::string reports;
  bool has_error = false;
  const Result<std::vector<SyncReport>> found = find_reports(program, {.strict = strict});
  if (!found) return found.error();
  for (const SyncReport& report : *found) {
    reports += fmt::format("{}: {}\n", kSeverities[static_cast<std::size_t>(report.severity)],
                           report.message);
    has_error |= report.severity == Severity::kError;
  }
  if (has_error) {
    reports.pop_back();  // the code stands behind the last line
    return Status(StatusCode::kUnsynchronised,
                  fmt::format("check '{}':\n{}", printable_text(path), reports));
  }
  return fmt::format("{}: ok, {} steps on {} streams, {} waits, arena of {} bytes, no race\n{}",
                     printable_text(path), program.steps().size(), program.streams().size(),
                     plan->waits().size(), plan->arena().size_bytes, reports);
}

}  // namespace anabranch::tool
