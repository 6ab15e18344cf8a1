// SPDX-License-Identifier: Apache-2.0
#include "record/graph_sites.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kWord = sizeof(std::uint64_t);

std::uint64_t word_at(const std::vector<std::byte>& bytes, std::uint32_t offset) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + offset, kWord);
  return word;
}

class SiteFinder {
 public:
  SiteFinder(const GraphImage& first, const GraphImage& second, const UnitTable& units)
      : first_(first), second_(second), units_(units) {}

  Result<FoundSites> run() {
    for (node_ = 0; node_ < first_.nodes.size(); ++node_) {
      if (Status searched = search_node(); !searched.ok()) return searched;
    }
    return std::move(found_);
  }

 private:
  Status search_node() {
    const NodeImage &a = first_.nodes[node_], &b = second_.nodes[node_];
    switch (a.type) {
      case CuNodeType::kKernel:
        search_params(a.kernel, b.kernel);
        return {};
      case CuNodeType::kMemcpy:
        if (Status source = search_copy(Operand::kSource, a.copy.src_memory_type, source_of(a.copy),
                                        source_of(b.copy));
            !source.ok()) {
          return source;
        }
        return search_copy(Operand::kDestination, a.copy.dst_memory_type, destination_of(a.copy),
                           destination_of(b.copy));
      case CuNodeType::kMemset:
        return search_word(Operand::kDestination, 0, a.fill.dst, b.fill.dst);
      default:
        return {};
    }
  }

  void search_params(const KernelImage& a, const KernelImage& b) {
    for (const ParamField& field : a.fields) {
      std::uint32_t at = 0;
      for (; at + kWord <= field.bytes; at += kWord) {
        const std::uint32_t offset = field.offset + at;
        if (Status word = search_word(Operand::kParam, offset, word_at(a.params, offset),
                                      word_at(b.params, offset));
            !word.ok()) {
          doubt(std::move(word));
        }
      }
      const std::uint32_t rest = field.offset + at;
      if (std::memcmp(a.params.data() + rest, b.params.data() + rest, field.bytes - at) != 0) {
        doubt(refuse(rest, "bytes too few for an address"));
      }
    }
  }

  void doubt(Status what) {
    if (found_.unsure++ == 0) found_.first_unsure = std::move(what);
  }

  // The addresses of operands, whatever kind of memory they name; arrays have none.
  static std::uint64_t source_of(const CuMemcpy3D& copy) {
    return copy.src_memory_type == CuMemoryType::kHost
               ? reinterpret_cast<std::uint64_t>(copy.src_host)
               : copy.src_device;
  }
  static std::uint64_t destination_of(const CuMemcpy3D& copy) {
    return copy.dst_memory_type == CuMemoryType::kHost
               ? reinterpret_cast<std::uint64_t>(copy.dst_host)
               : copy.dst_device;
  }
  Status search_copy(Operand operand, CuMemoryType type, std::uint64_t a, std::uint64_t b) {
    if (type == CuMemoryType::kArray) return {};
    return search_word(operand, 0, a, b);
  }

  Status search_word(Operand operand, std::uint32_t offset, std::uint64_t a, std::uint64_t b) {
    if (a == b) return {};
    const UnitTable::Hit hit = units_.find_in_first(a), other = units_.find_in_second(b);
    if (hit.unit == UnitTable::kNone || hit.unit != other.unit || hit.offset != other.offset) {
      return refuse(offset, fmt::format("({:#x}, {:#x}), which is no address", a, b));
    }
    found_.sites.push_back({node_, operand, offset, hit.unit, hit.offset});
    return {};
  }

  Status refuse(std::uint32_t offset, const std::string& what) const {
    return Status(Code::kCapturesDiffer,
                  fmt::format("record: {} differs between two captures at byte {} of its operands: "
                              "{}. The step does not repeat, so it runs unrecorded; strict=True "
                              "raises.",
                              describe_node(first_, node_), offset, what));
  }

  const GraphImage& first_;
  const GraphImage& second_;
  const UnitTable& units_;
  std::uint32_t node_ = 0;
  FoundSites found_;
};

}  // namespace

Result<FoundSites> find_sites(const GraphImage& first, const GraphImage& second,
                              const UnitTable& units) {
  return SiteFinder(first, second, units).run();
}

}  // namespace anabranch::cuda
