// SPDX-License-Identifier: Apache-2.0
// An error needs a code and a sentence: neither can be left out.
// expect: "(could not|cannot) convert|no viable conversion|no matching function"
#include "anabranch/status.h"

using namespace anabranch;

#if ANABRANCH_MUST_FAIL
Status refuse() { return StatusCode::kBusy; }
#else
Status refuse() { return Status(StatusCode::kBusy, "launch: the recording is running"); }
#endif
