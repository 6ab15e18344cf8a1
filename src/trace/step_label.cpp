// SPDX-License-Identifier: Apache-2.0
#include "trace/step_label.h"

#include <fmt/format.h>

namespace anabranch {

std::string_view kind_text(StepKind kind) {
  switch (kind) {
    case StepKind::kCompute:
      return "compute";
    case StepKind::kCopy:
      return "copy";
    case StepKind::kFill:
      return "fill";
    case StepKind::kHost:
      return "host";
    case StepKind::kRecordEvent:
      return "record event";
    case StepKind::kWaitEvent:
      return "wait for event";
    case StepKind::kSynchronize:
      return "synchronize";
  }
  return "step";
}

std::string step_label(const Program& program, std::uint32_t number) {
  if (number >= program.steps().size()) return fmt::format("step {}", number);
  const Step& step = program.steps()[number];
  const std::string_view name = step.name.empty() ? kind_text(step.kind) : step.name;
  switch (step.kind) {
    case StepKind::kCopy:
    case StepKind::kFill:
      return fmt::format("{} {}", name, program.buffer(step.accesses[0].view.buffer).name);
    case StepKind::kRecordEvent:
    case StepKind::kWaitEvent:
      return fmt::format("{} {}", name, program.events()[index_of(step.event)]);
    default:
      return std::string(name);
  }
}

}  // namespace anabranch
