// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/address_mentions.h"

#include <algorithm>
#include <cstring>

#include "record/cuda/image/copy_box.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kWord = sizeof(std::uint64_t);

void add_words(std::span<const std::byte> bytes, std::vector<std::uint64_t>& to) {
  for (std::size_t at = 0; at + kWord <= bytes.size(); at += kWord) {
    std::memcpy(&to.emplace_back(), bytes.data() + at, kWord);
  }
}

// All but those of a child graph, in an order that the node's structure decides.
std::vector<std::uint64_t> words_of(const NodeImage& node) {
  std::vector<std::uint64_t> words;
  if (node.type == CuNodeType::kKernel) {
    for (const ParamField& field : node.kernel.fields) {
      add_words({node.kernel.params.data() + field.offset, field.bytes}, words);
    }
  } else if (node.type == CuNodeType::kMemcpy) {
    add_words(node.source_bytes, words);
    const CuMemcpy3D& copy = node.copy;
    if (copy.src_memory_type != CuMemoryType::kArray) words.push_back(source_of(copy));
    if (copy.dst_memory_type != CuMemoryType::kArray) words.push_back(destination_of(copy));
  } else if (node.type == CuNodeType::kMemset) {
    words.push_back(node.fill.dst);
  }
  return words;
}

class MentionFinder {
 public:
  explicit MentionFinder(std::span<const CaptureRange> ranges)
      : ranges_(ranges), is_named_(ranges.size()) {}

  void search(const GraphImage& image, const GraphImage* other) {
    if (other && other->nodes.size() != image.nodes.size()) other = nullptr;
    for (std::uint32_t node = 0; node < image.nodes.size(); ++node) {
      search_node(image.nodes[node], other ? &other->nodes[node] : nullptr, image, node);
    }
  }

  std::vector<CaptureMention> found() && { return std::move(found_); }

 private:
  void search_node(const NodeImage& node, const NodeImage* other, const GraphImage& image,
                   std::uint32_t number) {
    if (node.type == CuNodeType::kGraph) {
      return search(*node.child, other && other->child ? other->child.get() : nullptr);
    }
    const std::vector<std::uint64_t> words = words_of(node);
    const auto others = other ? words_of(*other) : words;
    const bool is_like = others.size() == words.size();
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (!is_like || others[i] == words[i]) search_word(words[i], image, number);
    }
  }

  void search_word(std::uint64_t word, const GraphImage& image, std::uint32_t node) {
    const auto behind = std::upper_bound(
        ranges_.begin(), ranges_.end(), word,
        [](std::uint64_t at, const CaptureRange& range) { return at < range.begin; });
    if (behind == ranges_.begin()) return;
    const auto range = static_cast<std::size_t>(behind - ranges_.begin()) - 1;
    if (word - ranges_[range].begin >= ranges_[range].size_bytes || is_named_[range]) return;
    is_named_[range] = true;
    found_.push_back({static_cast<std::uint32_t>(range), describe_node(image, node)});
  }

  std::span<const CaptureRange> ranges_;
  std::vector<bool> is_named_;
  std::vector<CaptureMention> found_;
};

}  // namespace

std::vector<CaptureMention> find_mentions(const GraphImage& image,
                                          std::span<const CaptureRange> ranges,
                                          const GraphImage* other) {
  MentionFinder finder(ranges);
  finder.search(image, other);
  return std::move(finder).found();
}

}  // namespace anabranch::cuda
