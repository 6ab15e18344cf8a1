// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "trace_summary.h"

namespace anabranch::tool {
namespace {

// The first bytes decide what a file is; a plan file never begins like JSON.
bool begins_like_json(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  char first = 0;
  return (in >> std::ws).get(first) && (first == '{' || first == '[');
}

}  // namespace

Result<std::string> show(const std::string& path) {
  if (begins_like_json(path)) {
    std::ifstream in(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    return summarize_trace(path, text);
  }
  Result<Plan> plan = read_plan_file(path);
  if (!plan) return plan.error();
  return dump_plan(*plan);
}

Result<std::string> check(const std::string& path, bool strict) {
  static constexpr std::string_view kSeverities[] = {"note", "warning", "error"};
  Result<Plan> plan = read_plan_file(path);
  if (!plan) return plan.error();
  const Program& program = plan->program();
  std::string reports;
  bool has_error = false;
  const Result<std::vector<Report>> found = find_reports(program, {.strict = strict});
  if (!found) return found.error();
  for (const Report& report : *found) {
    reports += fmt::format("{}: {}\n", kSeverities[static_cast<std::size_t>(report.severity)],
                           report.message);
    has_error |= report.severity == Severity::kError;
  }
  if (has_error) {
    reports.pop_back();  // the code stands behind the last line
    return Status(Code::kUnsynchronised, fmt::format("check '{}':\n{}", path, reports));
  }
  return fmt::format("{}: ok, {} steps on {} streams, {} waits, arena of {} bytes, no race\n{}",
                     path, program.steps().size(), program.streams().size(), plan->waits().size(),
                     plan->arena().size_bytes, reports);
}

}  // namespace anabranch::tool
