// SPDX-License-Identifier: Apache-2.0
#include "anabranch/status.h"

#include <fmt/format.h>

namespace anabranch {

std::string code_text(Code code) { return fmt::format("E{:04}", static_cast<unsigned>(code)); }

std::string_view code_meaning(Code code) {
  switch (code) {
    case Code::kOk:
      return "";
#define ANABRANCH_CODE(name, number, meaning) \
  case Code::name:                            \
    return meaning;
#include "anabranch/codes.inc"
#undef ANABRANCH_CODE
  }
  return "";
}

Status::Status(Code code, std::string message) : code_(code) {
  if (code != Code::kOk) message_ = fmt::format("{} [{}]", message, code_text(code));
}

}  // namespace anabranch
