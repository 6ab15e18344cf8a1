// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/inline_children.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "record/cuda/image/match_captures.h"

namespace anabranch::cuda {
namespace {

template <typename T>
bool are_same(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Of graphs that match.
bool hold_the_same(const GraphImage& first, const GraphImage& second) {
  return std::ranges::equal(first.nodes, second.nodes, [](const NodeImage& a, const NodeImage& b) {
    return a.kernel.params == b.kernel.params && are_same(a.copy, b.copy) &&
           a.source_bytes == b.source_bytes && are_same(a.fill, b.fill) &&
           (!a.child || hold_the_same(*a.child, *b.child));
  });
}

// A graph with its children's nodes in their place.
class Opened {
 public:
  // `is_open`: by node of the image, which of its children.
  Opened(const GraphImage& image, const std::vector<bool>& is_open) {
    append(image, nullptr, &is_open);
    std::ranges::sort(made_.edges, {},
                      [](const EdgeImage& edge) { return std::pair(edge.to, edge.from); });
  }
  GraphImage take() { return std::move(made_); }

 private:
  // What nothing of a piece comes before, and what nothing of it comes behind.
  struct Ends {
    std::vector<std::uint32_t> first, last;
  };

  Ends append(const GraphImage& from, CuGraphNode child_of, const std::vector<bool>* is_open) {
    std::vector<Ends> ends;
    for (std::size_t i = 0; i < from.nodes.size(); ++i) {
      const NodeImage& node = from.nodes[i];
      const bool opens = node.child && (!is_open || (*is_open)[i]);
      ends.push_back(opens ? append(*node.child, child_of ? child_of : node.handle, nullptr)
                           : append(node, child_of));
    }
    if (from.nodes.empty() && child_of) return append(NodeImage(), child_of);
    return connect(from, ends);
  }

  Ends append(const NodeImage& node, CuGraphNode child_of) {
    const auto number = static_cast<std::uint32_t>(made_.nodes.size());
    made_.nodes.push_back(node);
    made_.nodes.back().child_of = child_of;
    return {{number}, {number}};
  }

  Ends connect(const GraphImage& from, const std::vector<Ends>& ends) {
    std::vector<bool> has_earlier(ends.size()), has_later(ends.size());
    for (const EdgeImage& edge : from.edges) {
      has_later[edge.from] = has_earlier[edge.to] = true;
      for (const std::uint32_t before : ends[edge.from].last) {
        for (const std::uint32_t behind : ends[edge.to].first) {
          made_.edges.push_back({before, behind, edge.data});
        }
      }
    }
    Ends all;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const auto& [first, last] = ends[i];
      if (!has_earlier[i]) all.first.insert(all.first.end(), first.begin(), first.end());
      if (!has_later[i]) all.last.insert(all.last.end(), last.begin(), last.end());
    }
    return all;
  }

  GraphImage made_;
};

}  // namespace

void inline_children(GraphImage& first, GraphImage& second) {
  if (first.nodes.size() != second.nodes.size()) return;
  std::vector<bool> is_open(first.nodes.size());
  for (std::size_t i = 0; i < is_open.size(); ++i) {
    const auto &a = first.nodes[i].child, &b = second.nodes[i].child;
    is_open[i] = a && b && match_captures(*a, *b).ok() && !hold_the_same(*a, *b);
  }
  if (std::ranges::find(is_open, true) == is_open.end()) return;
  first = Opened(first, is_open).take();
  second = Opened(second, is_open).take();
}

}  // namespace anabranch::cuda
