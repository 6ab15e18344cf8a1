// SPDX-License-Identifier: Apache-2.0
// What is known of the parameters of kernels: which of their words hold addresses. Two captures of
// a step tell it. A capture of the step in other sizes then needs no second one, as far as it
// queues kernels of the same families: of the same parameters, and of names that begin alike, up to
// a number. Libraries choose and make kernels by the size, so that whole graphs are seldom alike.
// Where two kernels of a family are laid out differently all the same, what is known is both: a
// number is then taken for an address only if it lies in memory of the step by chance, and the
// first launch, at other addresses, shows it.
// Ownership: values.
// Threads:   one at a time while something is added; else immutable.
// Failure:   kCapturesDiffer names what one capture does not tell: it has to be captured twice.
// Edges:     copies and fills need not be known, but all that they touch must be the step's; what
//            copies from the host's memory, calls the host or is a child graph is captured twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "anabranch/status.h"
#include "device/cuda/driver.h"
#include "record/cuda/image/graph_image.h"
#include "record/cuda/sites/sites.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// By bytes into the parameters. A word may be in several: arrays are used as far as they are long.
struct KernelLayout {
  std::set<std::uint32_t> addresses;
  std::set<std::uint32_t> unsure;  // see FoundSites
  // Words that were the same in both captures and may be addresses: of memory that stays. So many
  // at most; what is not among them needs two captures.
  std::set<std::pair<std::uint32_t, std::uint64_t>> frozen;
  static constexpr std::size_t kMostFrozen = 4096;

  void add(const KernelLayout& other);
  void freeze(std::uint32_t offset, std::uint64_t word) {
    if (frozen.size() < kMostFrozen) frozen.insert({offset, word});
  }
};

class KernelLayouts {
 public:
  // Of an image that two captures have in common, before any node is replaced.
  void add(const GraphImage& image, const FoundSites& found);
  void add(const KernelLayouts& others);
  const KernelLayout* find(const KernelImage& kernel) const;

 private:
  std::map<std::string, KernelLayout> by_family_;
};

// The sites of one capture; `units` are its own. A word is one where it lies in a unit and its
// kernel is known to have an address there. Refused are an address anywhere else, memory that is
// neither the step's nor known to stay, and kernels that are not known. No word is unsure.
Result<FoundSites> find_known_sites(const Driver& driver, const KernelLayouts& known,
                                    const GraphImage& image, const UnitTable& units);

}  // namespace anabranch::cuda
