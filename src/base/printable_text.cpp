// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <iterator>

#include <fmt/format.h>

#include "anabranch/status.h"
#include "base/utf8.h"

namespace anabranch {
namespace {

// Of the two-byte controls and the three-byte marks below, all that is asked.
std::uint32_t code_point_of(std::string_view sequence) {
  std::uint32_t point = static_cast<unsigned char>(sequence[0]) & (0xffu >> (sequence.size() + 1));
  for (const char byte : sequence.substr(1)) {
    point = point << 6 | (static_cast<unsigned char>(byte) & 0x3fu);
  }
  return point;
}

// What moves a terminal's cursor, ends a line or turns the direction of what follows.
bool steers_terminal(std::uint32_t point) {
  const bool control = point < 0x20 || (point >= 0x7f && point < 0xa0);
  const bool line = point == 0x2028 || point == 0x2029;
  const bool direction = point == 0x200e || point == 0x200f || point == 0x061c ||
                         (point >= 0x202a && point <= 0x202e) ||
                         (point >= 0x2066 && point <= 0x2069);
  return control || line || direction;
}

void append_escaped(std::string& out, std::uint32_t point) {
  if (point == '\n') {
    out += "\\n";
  } else if (point == '\t') {
    out += "\\t";
  } else if (point < 0x100) {
    fmt::format_to(std::back_inserter(out), "\\x{:02x}", point);
  } else {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", point);
  }
}

}  // namespace

std::string printable_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view sequence = text.substr(0, length == 0 ? 1 : length);
    text.remove_prefix(sequence.size());
    if (length == 0) {
      append_escaped(out, static_cast<unsigned char>(sequence[0]));
      continue;
    }
    const std::uint32_t point =
        length == 1 ? static_cast<unsigned char>(sequence[0]) : code_point_of(sequence);
    if (steers_terminal(point)) {
      append_escaped(out, point);
    } else {
      out += sequence;
    }
  }
  return out;
}

}  // namespace anabranch
