// SPDX-License-Identifier: Apache-2.0
// Sites: every place of a captured graph that holds an address which may change between launches.
// Ownership: values.
// Threads:   pure.
// Failure:   kCapturesDiffer names an operand of a copy or fill, or a word that a copy takes from
//            pinned memory, that differs and is no address; kNotRecordable one that cannot move.
// Edges:     words that are equal in both captures are left alone, since the captures share no
//            address of a unit; so is memory that belongs to no unit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "anabranch/status.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

enum class Operand : std::uint8_t {
  kParam,        // `offset` bytes into a kernel's parameters
  kSource,       // of a copy
  kDestination,  // of a copy or fill
  kTable,        // `offset` bytes into what a copy from pinned memory copies
  kGrid,         // of a kernel, in dimension `offset`; a number of four bytes
};

// By the address that it holds.
struct FoundSite {
  std::uint32_t node = 0;
  Operand operand = Operand::kParam;
  std::uint32_t offset = 0;
  std::uint32_t address_unit = 0;  // of the UnitTable: all that ever lay at one address
  std::uint64_t shift = 0;         // the site holds the unit's address and this many bytes
  bool operator==(const FoundSite&) const = default;
};

// Bytes of a kernel's parameters, a word of eight or what is left of a parameter, that differ
// between two captures and are no address. The values are the lowest of their bytes.
struct ParamWord {
  std::uint32_t node = 0;
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint64_t first = 0, second = 0;
  Operand operand = Operand::kParam;  // or a grid, see plan_grids.h
  bool operator==(const ParamWord&) const = default;
};

// What find_sites() found. `unsure`: words that differ and are no address. They are either what
// compilers leave between the members of a struct, and behind the used part of an array in it, or
// numbers that are others in every run. Looking does not tell which.
struct FoundSites {
  std::vector<FoundSite> sites;   // sorted by node, then by offset
  std::vector<ParamWord> unsure;  // likewise
  Status first_unsure;            // kCapturesDiffer, by name
  // Copies that belong to the step with the bytes they copy, such as an array of addresses: each
  // capture had its own, in pinned memory of its own or in the same one after the other.
  std::vector<std::uint32_t> tables;
};

// Both images match (match_captures).
//
// Words of eight bytes are looked at where the ABI puts pointers, at multiples of eight within each
// parameter and from the beginning of a table. A word that lies in one unit at one offset in both
// captures is a site. With `why_opaque_maps`, none may lie in a parameter that is large enough for
// a tensor map, and that is the reason to give.
Result<FoundSites> find_sites(const GraphImage& first, const GraphImage& second,
                              const UnitTable& units, const std::string& why_opaque_maps = {});

}  // namespace anabranch::cuda
