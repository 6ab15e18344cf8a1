// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/kernel_layouts.h"

#include <fmt/format.h>

#include <cstring>

#include "record/cuda/image/copy_box.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kWord = sizeof(std::uint64_t);
// No driver gives addresses outside of these.
constexpr std::uint64_t kLeastAddress = std::uint64_t{1} << 32;
constexpr std::uint64_t kMostAddress = std::uint64_t{1} << 49;

bool may_be_address(std::uint64_t word) { return word >= kLeastAddress && word < kMostAddress; }

// Libraries make one kernel in many sizes of tiles and write these into its name, behind what all
// of them are called: nvjet_sm90_tst_64x112_64x9_2x1_v_bz_TNT.
std::string family_of(const KernelImage& kernel) {
  std::string key = kernel.name.substr(0, kernel.name.find_first_of("0123456789"));
  for (const ParamField& field : kernel.fields) {
    key += fmt::format(" {}+{}", field.offset, field.bytes);
  }
  return key;
}

// Calls act(offset, word) for each word that may hold an address, until it refuses.
template <typename Act>
Status for_each_word(const KernelImage& kernel, Act act) {
  for (const ParamField& field : kernel.fields) {
    for (std::uint32_t at = 0; at + kWord <= field.bytes; at += kWord) {
      std::uint64_t word = 0;
      std::memcpy(&word, kernel.params.data() + field.offset + at, kWord);
      if (Status done = act(field.offset + at, word); !done.ok()) return done;
    }
  }
  return {};
}

class KnownSiteFinder {
 public:
  KnownSiteFinder(const Driver& driver, const KernelLayouts& known, const GraphImage& image,
                  const UnitTable& units)
      : driver_(driver), known_(known), image_(image), units_(units) {}

  Result<FoundSites> run() {
    for (node_ = 0; node_ < image_.nodes.size(); ++node_) {
      if (Status searched = search_node(image_.nodes[node_]); !searched.ok()) return searched;
    }
    return std::move(found_);
  }

 private:
  Status search_node(const NodeImage& node) {
    switch (node.type) {
      case CuNodeType::kKernel:
        return search_params(node.kernel);
      case CuNodeType::kMemcpy:
        if (node.copy.src_memory_type != CuMemoryType::kArray) {
          Status added = add_operand(Operand::kSource, source_of(node.copy));
          if (!added.ok()) return added;
        }
        if (node.copy.dst_memory_type == CuMemoryType::kArray) return {};
        return add_operand(Operand::kDestination, destination_of(node.copy));
      case CuNodeType::kMemset:
        return add_operand(Operand::kDestination, node.fill.dst);
      case CuNodeType::kHost:
        return refuse("calls the host");
      case CuNodeType::kGraph:
        return refuse("may name anything");
      default:
        return {};
    }
  }

  Status search_params(const KernelImage& kernel) {
    const KernelLayout* const layout = known_.find(kernel);
    if (!layout) return refuse("has not been captured twice yet");
    return for_each_word(kernel, [&](std::uint32_t offset, std::uint64_t word) {
      return search_word(*layout, offset, word);
    });
  }

  Status search_word(const KernelLayout& layout, std::uint32_t offset, std::uint64_t word) {
    if (!may_be_address(word)) return {};
    const UnitTable::Hit hit = units_.find_in_first(word);
    if (hit.unit != UnitTable::kNone && layout.addresses.contains(offset)) {
      found_.sites.push_back({node_, Operand::kParam, offset, hit.unit, hit.offset});
      return {};
    }
    if (layout.unsure.contains(offset) || layout.frozen.contains({offset, word})) return {};
    if (hit.unit != UnitTable::kNone) return refuse("has an address where none is known");
    const auto is_memory = names_memory(word);
    if (!is_memory.ok()) return is_memory.error();
    return *is_memory ? refuse("names memory that is not the step's") : Status();
  }

  Status add_operand(Operand operand, std::uint64_t address) {
    const UnitTable::Hit hit = units_.find_in_first(address);
    if (hit.unit == UnitTable::kNone) return refuse("names memory that is not the step's");
    found_.sites.push_back({node_, operand, 0, hit.unit, hit.offset});
    return {};
  }

  Result<bool> names_memory(std::uint64_t word) const {
    unsigned long long allocation = 0;
    const CuResult asked =
        driver_.cuPointerGetAttribute(&allocation, CuPointerAttribute::kBufferId, word);
    if (is_refused(asked)) return false;
    if (Status told = recorded("cuPointerGetAttribute", asked); !told.ok()) return told;
    return true;
  }

  Status refuse(const char* what) const {
    return Status(StatusCode::kCapturesDiffer,
                  fmt::format("record: {} {}, so that one capture of the step does not tell all. "
                              "Capture it twice.",
                              describe_node(image_, node_), what));
  }

  const Driver& driver_;
  const KernelLayouts& known_;
  const GraphImage& image_;
  const UnitTable& units_;
  std::uint32_t node_ = 0;
  FoundSites found_;
};

}  // namespace

void KernelLayout::add(const KernelLayout& other) {
  addresses.insert(other.addresses.begin(), other.addresses.end());
  unsure.insert(other.unsure.begin(), other.unsure.end());
  for (const auto& [offset, word] : other.frozen) freeze(offset, word);
}

void KernelLayouts::add(const GraphImage& image, const FoundSites& found) {
  auto site = found.sites.begin();
  auto unsure = found.unsure.begin();
  for (std::uint32_t number = 0; number < image.nodes.size(); ++number) {
    const NodeImage& node = image.nodes[number];
    KernelLayout* const layout =
        node.type == CuNodeType::kKernel ? &by_family_[family_of(node.kernel)] : nullptr;
    std::set<std::uint32_t> moving;  // of this node
    for (; site != found.sites.end() && site->node == number; ++site) {
      if (layout && site->operand == Operand::kParam) layout->addresses.insert(site->offset);
      moving.insert(site->offset);
    }
    for (; unsure != found.unsure.end() && unsure->node == number; ++unsure) {
      if (layout) layout->unsure.insert(unsure->offset);
      moving.insert(unsure->offset);
    }
    if (!layout) continue;
    (void)for_each_word(node.kernel, [&](std::uint32_t offset, std::uint64_t word) {
      if (may_be_address(word) && !moving.contains(offset)) layout->freeze(offset, word);
      return Status();
    });
  }
}

void KernelLayouts::add(const KernelLayouts& others) {
  for (const auto& [key, other] : others.by_family_) {
    by_family_[key].add(other);
  }
}

const KernelLayout* KernelLayouts::find(const KernelImage& kernel) const {
  const auto found = by_family_.find(family_of(kernel));
  return found == by_family_.end() ? nullptr : &found->second;
}

Result<FoundSites> find_known_sites(const Driver& driver, const KernelLayouts& known,
                                    const GraphImage& image, const UnitTable& units) {
  return KnownSiteFinder(driver, known, image, units).run();
}

}  // namespace anabranch::cuda
