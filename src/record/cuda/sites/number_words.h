// SPDX-License-Identifier: Apache-2.0
// Which words of a step follow numbers that may change between launches: those in which a third
// capture, made with other numbers, differs from two that agree.
// Ownership: values.
// Threads:   pure.
// Failure:   kCapturesDiffer where the third capture differs in more than words of parameters.
// Edges:     of a word that differs between the first two as well, the half in which they agree may
//            follow a number: what compilers leave beside a float is no part of it. An address of
//            the step's memory that stands in two captures alone is left over, and no number.
#pragma once

#include <vector>

#include "anabranch/status.h"
#include "record/cuda/sites/sites.h"

namespace anabranch::cuda {

// `found` of the first capture and the second, `other` of the first and the third. Answers words
// with what they are in the first and in the third, sorted by node and then by offset.
Result<std::vector<ParamWord>> find_numbers(const FoundSites& found, const FoundSites& other);

}  // namespace anabranch::cuda
