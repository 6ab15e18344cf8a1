// SPDX-License-Identifier: Apache-2.0
// The order in which a plan names its steps: a stable topological order, ties by the given order.
// Program order is itself topological, so that every tie falls to it: the order is program order.
// Streams run side by side whatever this order says, and a stream keeps the order its user gave it.
#pragma once

#include <vector>

#include "anabranch/program.h"

namespace anabranch {

std::vector<StepId> make_order(const Program& program);

}  // namespace anabranch
