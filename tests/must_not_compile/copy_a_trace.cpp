// SPDX-License-Identifier: Apache-2.0
// Recordings write into the ring of a trace, so a trace stays where it is.
// expect: "deleted (function|constructor)"
#include "anabranch/trace.h"

using namespace anabranch;

#if ANABRANCH_MUST_FAIL
std::size_t count(const Trace& trace) {
  Trace copy = trace;
  return copy.collect().size();
}
#else
std::size_t count(const Trace& trace) { return trace.collect().size(); }
#endif
