// SPDX-License-Identifier: Apache-2.0
// What a step is called in a trace: its name, or its kind where it has none; and for a copy, a
// fill or an event what it is done to.
// Edges:     a number that is no step of the program has the label "step <number>".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "anabranch/program.h"

namespace anabranch {

std::string_view kind_text(StepKind kind);
std::string step_label(const Program& program, std::uint32_t step);

}  // namespace anabranch
