// SPDX-License-Identifier: Apache-2.0
// What a report says to the user, in the words of their program: operations, lines, streams.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "plan/reports.h"
#include "plan/user_order.h"

namespace anabranch {
namespace {

class Text {
 public:
  Text(const Program& program, const SyncReport& report) : program_(program), report_(report) {}

  std::string flow() const;
  std::string mutation() const;
  std::string inexact() const;
  std::string unjoined() const;
  std::string unrecorded() const;

 private:
  const Step& step(StepId id) const { return program_.step(id); }
  bool is_host(StepId id) const { return is_callers(program_, step(id)); }
  std::string stream(StepId id) const;
  std::string name(StepId id) const;
  std::string operation(StepId id) const;
  std::string place(StepId id) const;
  std::string sync(StepId first, StepId second) const;
  std::string_view verb(StepId id, bool may) const;
  std::string bytes() const;

  const Program& program_;
  const SyncReport& report_;
};

// Work of placed streams is the ambient stream's to the user, who can wait for no other.
std::string Text::stream(StepId id) const {
  const bool placed =
      id == kNoStep || program_.origins()[index_of(step(id).stream)] == StreamOrigin::kPlaced;
  return printable_text(program_.streams()[index_of(placed ? kAmbient : step(id).stream)]);
}

std::string Text::name(StepId id) const {
  static constexpr std::string_view kKinds[] = {"compute",      "copy",       "fill",       "host",
                                                "record_event", "wait_event", "synchronize"};
  if (!step(id).name.empty()) return fmt::format("`{}`", printable_text(step(id).name));
  return fmt::format("`{}`", kKinds[static_cast<std::size_t>(step(id).kind)]);
}

std::string Text::operation(StepId id) const {
  if (id == kNoStep) return fmt::format("the caller's work on stream {}", stream(id));
  const std::string source = step(id).source.empty() ? fmt::format("step {}", index_of(id))
                                                     : printable_text(step(id).source);
  return fmt::format("{} ({}, {}{})", name(id), source, is_host(id) ? "" : "stream ",
                     is_host(id) ? "the host" : stream(id));
}

// "line 41", where the source says so.
std::string Text::place(StepId id) const {
  const std::string& source = step(id).source;
  const std::size_t colon = source.rfind(':');
  const std::string line = colon == std::string::npos ? "" : source.substr(colon + 1);
  const bool is_number = !line.empty() && std::all_of(line.begin(), line.end(),
                                                      [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? "line " + line : name(id);
}

// What has `second` come after `first`; nothing has the caller's thread run before `first`.
std::string Text::sync(StepId first, StepId second) const {
  if (is_host(second)) return fmt::format("{}.synchronize()", stream(first));
  return fmt::format("{}.wait_stream({})", stream(second), stream(first));
}

std::string_view Text::verb(StepId id, bool may) const {
  static constexpr std::string_view kDoes[] = {"uses", "reads", "writes", "changes"};
  static constexpr std::string_view kMayDo[] = {"use", "read", "write", "change"};
  unsigned modes = id == kNoStep ? static_cast<unsigned>(AccessMode::kWrite) : 0;
  if (id != kNoStep) {
    for (const Access& access : step(id).accesses) {
      if (access.view.buffer == report_.buffer) modes |= static_cast<unsigned>(access.mode);
    }
  }
  return may ? kMayDo[modes] : kDoes[modes];
}

std::string Text::bytes() const {
  return fmt::format("`{}` bytes {}..{}", printable_text(program_.buffer(report_.buffer).name),
                     report_.begin_byte, report_.end_byte);
}

std::string Text::flow() const {
  const StepId first = report_.first;
  const StepId second = report_.second;
  return fmt::format(
      "race-flow: {} {} {} while {} may still {} them; nothing orders the two and eager would race "
      "as well. {}Remedy: {} before {}.",
      operation(second), verb(second, false), bytes(), operation(first), verb(first, true),
      report_.severity == Severity::kError ? "" : "Edge added. ", sync(first, second),
      place(second));
}

std::string Text::mutation() const {
  const StepId first = report_.first;
  const StepId second = report_.second;
  const bool is_free = is_host(second);  // what is launched later comes after the host
  return fmt::format(
      "race-mutation: {} {} {} while {} may still {} them; nothing orders the two, and their order "
      "decides the result. For {} first: {} before {}. For {} first: move it before {}{}.",
      operation(second), verb(second, false), bytes(), operation(first), verb(first, true),
      name(first), sync(first, second), place(second), name(second), place(first),
      is_free ? "" : fmt::format(", with {} between them", sync(second, first)));
}

std::string Text::inexact() const {
  const StepId first = report_.first;
  const StepId second = report_.second;
  return fmt::format(
      "inexact: {} {} {} while {} may still {} there; nothing orders the two, and whether they "
      "share "
      "a byte is not decidable. Edge added. Remedy, if they do: {} before {}.",
      operation(second), verb(second, false), bytes(), operation(first), verb(first, true),
      sync(first, second), place(second));
}

std::string Text::unjoined() const {
  const StepId last = report_.first;
  return fmt::format(
      "unjoined: {} ends the work of a stream that is never joined to {}. Join added. Remedy: "
      "{}.wait_stream({}) after {}.",
      operation(last), stream(kNoStep), stream(kNoStep), stream(last), place(last));
}

std::string Text::unrecorded() const {
  const StepId wait = report_.second;
  return fmt::format(
      "unrecorded: {} waits for event `{}`, which nothing before it records: a wait for nothing. "
      "Remedy: record the event before {}.",
      operation(wait), printable_text(program_.events()[index_of(step(wait).event)]), place(wait));
}

}  // namespace

std::string describe_report(const Program& program, const SyncReport& report) {
  const Text text(program, report);
  switch (report.kind) {
    case ReportKind::kRaceFlow:
      return text.flow();
    case ReportKind::kRaceMutation:
      return text.mutation();
    case ReportKind::kInexact:
      return text.inexact();
    case ReportKind::kUnjoined:
      return text.unjoined();
    default:
      return text.unrecorded();
  }
}

}  // namespace anabranch
