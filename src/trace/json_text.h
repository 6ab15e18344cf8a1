// SPDX-License-Identifier: Apache-2.0
// Text as a JSON string.
// Edges:     bytes that are no UTF-8 become U+FFFD, since JSON readers refuse the whole file for
// one.
#pragma once

#include <string>
#include <string_view>

namespace anabranch {

// Appends `text` with quotes around it.
void append_json_text(std::string& out, std::string_view text);

}  // namespace anabranch
