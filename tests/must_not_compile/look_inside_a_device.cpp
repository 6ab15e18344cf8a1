// SPDX-License-Identifier: Apache-2.0
// What a handle holds is the library's: a device is asked by name, not by what it is made of.
// expect: "is private|private member"
#include "anabranch/anabranch.h"

using namespace anabranch;

bool is_gpu(const Device& device) {
#if ANABRANCH_MUST_FAIL
  return device.cuda_ != nullptr;
#else
  return describe_capture(device).ok();
#endif
}
