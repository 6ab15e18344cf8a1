// SPDX-License-Identifier: Apache-2.0
// The parts of a plan file: a header of 32 bytes, then one FlatBuffer (plan.fbs), then nothing.
// The header says version, length and checksum, so that a cut, changed or newer file is told apart
// before anything is parsed. The checksum guards against accidents; against malice stand the
// verifier, the builder and the race checker, which see every payload.
// Failure:   kFileMalformed or kFileVersion; what builder and checker refuse keeps its own code.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "anabranch/plan.h"
#include "anabranch/status.h"

namespace anabranch {

//   0  8 bytes  "ANBRPLAN"
//   8  u32      format version
//  12  u32      zero
//  16  u64      bytes of the payload
//  24  u64      FNV-1a of the payload
inline constexpr std::array<std::uint8_t, 8> kPlanFileMagic{'A', 'N', 'B', 'R', 'P', 'L', 'A', 'N'};
// What has tables or grids is of version 3, what has numbers of version 2; all else is of version
// 1, which older libraries read too.
inline constexpr std::uint32_t kPlanFileVersion = 1, kPlanFileWithNumbers = 2,
                               kPlanFileWithSlots = 3;
inline constexpr std::size_t kPlanHeaderBytes = 32;

// FlatBuffers ends at 2 GiB.
inline constexpr std::uint64_t kMaxPlanPayloadBytes = 0x7fff'0000;
// Caps of the reader where the builder has none.
inline constexpr std::uint32_t kMaxFileBuffers = 1u << 24;
inline constexpr std::uint32_t kMaxFileEvents = 1u << 24;
inline constexpr std::uint32_t kMaxFileTextBytes = 1u << 16;  // of one name or source

std::uint64_t checksum_of(std::span<const std::uint8_t> bytes);
// For messages: every byte outside printable ASCII as a dot.
std::string printable(std::span<const std::uint8_t> bytes);

// Puts a right header before any payload.
std::vector<std::uint8_t> seal_plan_payload(std::span<const std::uint8_t> payload,
                                            std::uint32_t version = kPlanFileVersion);
// Checks the header and answers the payload within `file`.
Result<std::span<const std::uint8_t>> open_plan_file(std::span<const std::uint8_t> file);

// Empty where the plan does not keep the limits above.
std::vector<std::uint8_t> write_plan_payload(const Plan& plan);
Result<Plan> read_plan_payload(std::span<const std::uint8_t> payload);

}  // namespace anabranch
