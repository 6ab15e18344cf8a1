// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/sites/sites.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "record/cuda/image/copy_box.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kWord = sizeof(std::uint64_t);

std::uint64_t word_at(const std::vector<std::byte>& bytes, std::uint32_t offset,
                      std::uint32_t size = kWord) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + offset, size);
  return word;
}

class SiteFinder {
 public:
  SiteFinder(const GraphImage& first, const GraphImage& second, const UnitTable& units,
             const std::string& why_opaque_maps)
      : first_(first), second_(second), units_(units), why_opaque_maps_(why_opaque_maps) {}

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
        return search_params(a.kernel, b.kernel);
      case CuNodeType::kMemcpy:
        if (Status source = search_source(a, b); !source.ok()) return source;
        if (a.copy.dst_memory_type == CuMemoryType::kArray) return {};
        return search_word(Operand::kDestination, 0, destination_of(a.copy),
                           destination_of(b.copy));
      case CuNodeType::kMemset:
        return search_word(Operand::kDestination, 0, a.fill.dst, b.fill.dst);
      default:
        return {};  // and child graphs in which something moves have been opened
    }
  }

  Status search_params(const KernelImage& a, const KernelImage& b) {
    for (const ParamField& field : a.fields) {
      const std::size_t before = found_.sites.size();
      std::uint32_t at = 0;
      for (; at + kWord <= field.bytes; at += kWord) {
        const ParamWord word = param_word(a, b, field.offset + at, kWord);
        if (Status hit = search_word(Operand::kParam, word.offset, word.first, word.second);
            !hit.ok()) {
          doubt(word, std::move(hit));
        }
      }
      const ParamWord rest = param_word(a, b, field.offset + at, field.bytes - at);
      if (rest.first != rest.second) {
        doubt(rest, refuse(Operand::kParam, rest.offset, "bytes too few for an address"));
      }
      if (found_.sites.size() != before && field.bytes >= sizeof(CuTensorMap) &&
          !why_opaque_maps_.empty()) {
        return refuse_map();
      }
    }
    return {};
  }

  Status refuse_map() const {
    return Status(
        StatusCode::kNotRecordable,
        fmt::format("record: {} may take a tensor map that names memory of the step, whose "
                    "address cannot be changed there, since {}. The step runs unrecorded; "
                    "strict=True raises.",
                    describe_node(first_, node_), why_opaque_maps_));
  }

  ParamWord param_word(const KernelImage& a, const KernelImage& b, std::uint32_t offset,
                       std::uint32_t bytes) const {
    return {node_, offset, bytes, word_at(a.params, offset, bytes),
            word_at(b.params, offset, bytes)};
  }

  void doubt(const ParamWord& word, Status what) {
    if (found_.unsure.empty()) found_.first_unsure = std::move(what);
    found_.unsure.push_back(word);
  }

  // Memory that is the same and holds the same is read at each launch, as a graph would.
  Status search_source(const NodeImage& a, const NodeImage& b) {
    if (a.copy.src_memory_type == CuMemoryType::kArray) return {};
    const std::uint64_t at = source_of(a.copy), other = source_of(b.copy);
    const bool is_known = !a.source_bytes.empty() && !b.source_bytes.empty();
    if (at == other ? !is_known || a.source_bytes == b.source_bytes : !!find_unit(at, other)) {
      return search_word(Operand::kSource, 0, at, other);
    }
    if (is_known) return search_table(a.source_bytes, b.source_bytes);
    if (a.copy.src_memory_type != CuMemoryType::kHost) {
      return search_word(Operand::kSource, 0, at, other);
    }
    return refuse(Operand::kSource, 0,
                  fmt::format("it reads the host's memory at {:#x} and {:#x}, and what is there "
                              "can be kept only if it is pinned, in one piece and at most {} MiB",
                              at, other, kMostSourceBytes >> 20));
  }

  Status search_table(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    found_.tables.push_back(node_);
    const auto size = static_cast<std::uint32_t>(a.size());
    std::uint32_t at = 0;
    for (; at + kWord <= size; at += kWord) {
      if (Status word = search_word(Operand::kTable, at, word_at(a, at), word_at(b, at));
          !word.ok()) {
        return word;
      }
    }
    const bool same = std::memcmp(a.data() + at, b.data() + at, size - at) == 0;
    return same ? Status() : refuse(Operand::kTable, at, "bytes too few for an address");
  }

  Status search_word(Operand operand, std::uint32_t offset, std::uint64_t a, std::uint64_t b) {
    if (a == b) return {};
    const auto hit = find_unit(a, b);
    if (!hit) {
      return refuse(operand, offset, fmt::format("({:#x}, {:#x}), which is no address", a, b));
    }
    found_.sites.push_back({node_, operand, offset, hit->unit, hit->offset});
    return {};
  }

  // The place that both addresses mean.
  std::optional<UnitTable::Hit> find_unit(std::uint64_t a, std::uint64_t b) const {
    const UnitTable::Hit hit = units_.find(a, b);
    return hit.unit != UnitTable::kNone ? std::optional(hit) : std::nullopt;
  }

  Status refuse(Operand operand, std::uint32_t offset, const std::string& what) const {
    const char* const where =
        operand == Operand::kTable ? "what it copies from the host" : "its operands";
    return Status(StatusCode::kCapturesDiffer,
                  fmt::format("record: {} differs between two captures at byte {} of {}: {}. The "
                              "step does not repeat, so it runs unrecorded; strict=True raises.",
                              describe_node(first_, node_), offset, where, what));
  }

  const GraphImage& first_;
  const GraphImage& second_;
  const UnitTable& units_;
  const std::string& why_opaque_maps_;
  std::uint32_t node_ = 0;
  FoundSites found_;
};

}  // namespace

Result<FoundSites> find_sites(const GraphImage& first, const GraphImage& second,
                              const UnitTable& units, const std::string& why_opaque_maps) {
  return SiteFinder(first, second, units, why_opaque_maps).run();
}

}  // namespace anabranch::cuda
