// SPDX-License-Identifier: Apache-2.0
#include "anabranch/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace anabranch {

std::string code_text(StatusCode code) {
  return fmt::format("E{:04}", static_cast<unsigned>(code));
}

std::string_view code_meaning(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "";
#define ANABRANCH_CODE(name, number, meaning) \
  case StatusCode::name:                      \
    return meaning;
#include "anabranch/codes.inc"
#undef ANABRANCH_CODE
  }
  return "";
}

Status::Status(StatusCode code, std::string message) : code_(code) {
  if (code == StatusCode::kOk) return;
  const std::string_view text = message;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    message_ += printable_text(text.substr(begin, end - begin));
    if (end < text.size()) message_ += '\n';
    begin = end + 1;
  }
  message_ += fmt::format(" [{}]", code_text(code));
}

std::ostream& operator<<(std::ostream& out, const Status& status) {
  return out << (status.ok() ? "ok" : status.message());
}

}  // namespace anabranch
