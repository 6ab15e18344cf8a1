// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/address_mentions.h"

#include <algorithm>
#include <cstring>

#include "record/cuda/image/copy_box.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kWord = sizeof(std::uint64_t);

class MentionFinder {
 public:
  explicit MentionFinder(std::span<const CaptureRange> ranges)
      : ranges_(ranges), is_named_(ranges.size()) {}

  void search(const GraphImage& image) {
    for (std::uint32_t node = 0; node < image.nodes.size(); ++node) {
      image_ = &image;
      node_ = node;
      search_node(image.nodes[node]);
    }
  }

  std::vector<CaptureMention> found() && { return std::move(found_); }

 private:
  void search_node(const NodeImage& node) {
    switch (node.type) {
      case CuNodeType::kKernel:
        for (const ParamField& field : node.kernel.fields) {
          search_words({node.kernel.params.data() + field.offset, field.bytes});
        }
        return;
      case CuNodeType::kMemcpy:
        search_words(node.source_bytes);
        if (node.copy.src_memory_type != CuMemoryType::kArray) search_word(source_of(node.copy));
        if (node.copy.dst_memory_type != CuMemoryType::kArray) {
          search_word(destination_of(node.copy));
        }
        return;
      case CuNodeType::kMemset:
        return search_word(node.fill.dst);
      case CuNodeType::kGraph:
        return search(*node.child);
      default:
        return;
    }
  }

  void search_words(std::span<const std::byte> bytes) {
    for (std::size_t at = 0; at + kWord <= bytes.size(); at += kWord) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, kWord);
      search_word(word);
    }
  }

  void search_word(std::uint64_t word) {
    const auto behind = std::upper_bound(
        ranges_.begin(), ranges_.end(), word,
        [](std::uint64_t at, const CaptureRange& range) { return at < range.begin; });
    if (behind == ranges_.begin()) return;
    const auto range = static_cast<std::size_t>(behind - ranges_.begin()) - 1;
    if (word - ranges_[range].begin >= ranges_[range].size_bytes || is_named_[range]) return;
    is_named_[range] = true;
    found_.push_back({static_cast<std::uint32_t>(range), describe_node(*image_, node_)});
  }

  std::span<const CaptureRange> ranges_;
  std::vector<bool> is_named_;
  const GraphImage* image_ = nullptr;
  std::uint32_t node_ = 0;
  std::vector<CaptureMention> found_;
};

}  // namespace

std::vector<CaptureMention> find_mentions(const GraphImage& image,
                                          std::span<const CaptureRange> ranges) {
  MentionFinder finder(ranges);
  finder.search(image);
  return std::move(finder).found();
}

}  // namespace anabranch::cuda
