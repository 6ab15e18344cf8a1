// SPDX-License-Identifier: Apache-2.0
// What the command answers to the shell; README.md and --help say the same.
#pragma once

namespace anabranch::tool {

enum class Exit : int {
  kDone = 0,   // compare: the plans are equal; check: the plan is right
  kNo = 1,     // compare: they differ; check: the plan is refused, or has a report that is an error
  kUsage = 2,  // the command line is wrong
  kUnusable = 3,  // a file cannot be read or is no plan or trace; output cannot be written
  kRefused = 4,   // other commands: a plan is refused, or asks for what is not there
};

}  // namespace anabranch::tool
