// SPDX-License-Identifier: Apache-2.0
// Nor may a Result be dropped: the launch may have been refused.
// expect: "ignoring (returned value|return value|temporary)[^\n]*nodiscard"
#include "anabranch/launch.h"

using namespace anabranch;

void run(const Recording& recording) {
#if ANABRANCH_MUST_FAIL
  launch(recording, {});
#else
  if (Result<Ticket> ticket = launch(recording, {}); !ticket) return;
#endif
}
