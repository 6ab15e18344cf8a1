// SPDX-License-Identifier: Apache-2.0
// What a trace in Chrome's JSON format says, in a few lines: time and busy share of each stream,
// and the steps that took longest.
// Failure:   kFileMalformed for what is no such trace. Unknown events are passed over.
#pragma once

#include <string>
#include <string_view>

#include "anabranch/status.h"

namespace anabranch::tool {

Result<std::string> summarize_trace(const std::string& path, std::string_view json);

}  // namespace anabranch::tool
