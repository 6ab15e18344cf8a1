// SPDX-License-Identifier: Apache-2.0
#include "plan/compare_work.h"

#include <fmt/format.h>

namespace anabranch {

CompareWork::CompareWork(const Program& program) : program_(&program), limit_(kMaxComparisons) {
  for (const Step& step : program.steps()) {
    limit_ += kMaxComparisonsPerAccess * step.accesses.size();
  }
  left_ = limit_;
}

Status CompareWork::refusal(std::string_view act) const {
  const Buffer& buffer = program_->buffer(buffer_);
  return Status(
      StatusCode::kTooManyComparisons,
      fmt::format("{}: the views of buffer {} '{}' lie across each other so often that {} "
                  "comparisons do not tell which of them share bytes. Use fewer strided "
                  "views of one buffer, or buffers of their own.",
                  act, index_of(buffer_), printable_text(buffer.name), limit_));
}

}  // namespace anabranch
