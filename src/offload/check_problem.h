// SPDX-License-Identifier: Apache-2.0
// The rules of a problem.
// Ownership: values.
// Threads:   pure.
// Failure:   one Status (kProgramInvalid) for the first rule that is broken.
// Edges:     a problem without tensors is valid.
#pragma once

#include "anabranch/experimental/offload.h"

namespace anabranch::offload {

// Bytes and nanoseconds above these are refused, so that no sum of them overflows.
inline constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 46;
inline constexpr std::uint64_t kMaxNs = std::uint64_t{1} << 40;
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 14;
inline constexpr std::size_t kMaxSteps = std::size_t{1} << 20;

Status check_problem(const Problem& problem);

}  // namespace anabranch::offload
