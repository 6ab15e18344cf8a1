// SPDX-License-Identifier: Apache-2.0
// The rules of a program, which ProgramBuilder::build() enforces.
// Ownership: values.
// Threads:   pure.
// Failure:   one Status with all errors, a line each, under the code of the first.
// Edges:     an empty program is valid. Streams need names of their own; buffers, events and
//            copies need none.
//
// Reading what nothing wrote is judged by the bounds of views: a read is refused if no earlier
// step writes between its bounds. So a read of columns that are never written may pass; what was
// written somewhere between is never refused.
#pragma once

#include "anabranch/program.h"
#include "anabranch/status.h"

namespace anabranch {

Status check_program(const Program& program);

}  // namespace anabranch
