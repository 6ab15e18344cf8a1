// SPDX-License-Identifier: Apache-2.0
// Races of a step as it was captured: nodes that use the same bytes, one of them writing, and that
// no path of the captured graph orders. Its own streams lack a wait there, and eager has the race
// as well.
// Ownership: borrows everything.
// Threads:   pure.
// Failure:   kRace names both nodes, and the edge that is missing.
// Edges:     only what is certain is refused. Copies and fills say which bytes they touch, notes
//            which memory a kernel reads and may write; of a kernel without a note nothing is
//            certain. A graph with branches and more than 16,384 nodes is not looked at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "plan/overlap.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/sites/node_accesses.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

inline constexpr std::size_t kMostRaceNodes = 16384;

// What a node does with a unit.
struct CapturedUse {
  enum class Extent : std::uint8_t {
    kBytes,    // with these bytes, all of them
    kSome,     // with some bytes of it, unknown which
    kMaybe,    // a note says that it may write there
    kUnknown,  // nothing is said: it may read and write
  };
  std::uint32_t node = 0;
  std::uint32_t unit = 0;
  bool writes = false;
  Extent extent = Extent::kUnknown;
  Bytes bytes{};
};

struct CapturedUnit {
  std::uint64_t bytes = 0;
  // Allocated in the capture and named by no table, so that it holds what nodes write that name it.
  bool is_fresh = false;
};

struct CapturedUses {
  std::vector<CapturedUse> uses;  // of each unit sorted by node
  std::vector<CapturedUnit> units;
};

// Whether a capture has anything to race: most are chains.
bool has_branches(const GraphImage& image);

// Of the capture that the notes are of, before anything in its image is replaced. The host's memory
// is one unit more, that begins at address 0: copies say where in it they read and write, but for
// `tables`, which are of the recording.
CapturedUses find_captured_uses(const GraphImage& image, std::span<const std::uint32_t> tables,
                                const NodeAccesses& accesses, const UnitTable& units,
                                bool of_second, const Notes* notes);

// Refused are two nodes without a path between them
//   * that touch one byte for certain, of the host's memory too, one of them writing: two copies or
//     fills; or one of them that goes over a whole unit, and a kernel that reads it, or that writes
//     it and nothing else;
//   * of which the second reads fresh memory into which no node that it comes behind can have
//     written, while the first, captured before it, is known to write there.
Status check_captured(const GraphImage& image, const CapturedUses& uses);

}  // namespace anabranch::cuda
