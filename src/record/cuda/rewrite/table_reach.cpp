// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/rewrite/table_reach.h"

#include <algorithm>
#include <map>

namespace anabranch::cuda {
namespace {

// Where one table may be read: at nodes that are not before it and not behind one that has written
// over all its addresses. Memory is used again and again, by tables of other layers above all; as
// if all of them were there for ever, all their units would live for ever.
class Reach {
 public:
  Reach(const GraphImage& image, std::span<const TableWrite> tables, const TableWrite& table)
      : may_read_(image.nodes.size(), true) {
    drop_before(image, table.node);
    drop_behind_others(image, tables, table);
  }

  bool contains(std::uint32_t node) const { return may_read_[node]; }

 private:
  // Whoever has ended when this node begins.
  void drop_before(const GraphImage& image, std::uint32_t node) {
    std::vector<bool> has_begun(image.nodes.size());
    has_begun[node] = true;
    for (auto edge = image.edges.rbegin(); edge != image.edges.rend(); ++edge) {
      if (!has_begun[edge->to]) continue;
      has_begun[edge->from] = true;
      if (!is_early(*edge)) may_read_[edge->from] = false;
    }
  }

  void drop_behind_others(const GraphImage& image, std::span<const TableWrite> tables,
                          const TableWrite& table) {
    std::vector<bool> ends(image.nodes.size()), is_behind(image.nodes.size());
    for (const TableWrite& other : tables) ends[other.node] = writes_over(other, table);
    is_behind[table.node] = true;
    for (const EdgeImage& edge : image.edges) {
      if (!is_behind[edge.from] || (edge.from == table.node && is_early(edge))) continue;
      is_behind[edge.to] = true;
      const bool is_over = ends[edge.from] && !is_early(edge);
      if (is_over || !may_read_[edge.from]) may_read_[edge.to] = false;
    }
  }

  static bool writes_over(const TableWrite& other, const TableWrite& table) {
    return other.node != table.node && other.unit == table.unit &&
           table.unit != TableWrite::kNowhere && other.begin <= table.first &&
           other.end >= table.last;
  }

  std::vector<bool> may_read_;
};

}  // namespace

void add_units_of_tables(const GraphImage& image, std::span<const TableWrite> tables,
                         std::vector<std::vector<std::uint32_t>>& units) {
  std::multimap<std::uint32_t, std::size_t> tables_in;  // by unit
  std::vector<Reach> reaches;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    tables_in.emplace(tables[i].unit, i);
    reaches.emplace_back(image, tables, tables[i]);
  }
  std::vector<bool> only_writes(image.nodes.size());
  for (const TableWrite& table : tables) only_writes[table.node] = true;
  for (std::uint32_t node = 0; !tables.empty() && node < image.nodes.size(); ++node) {
    if (only_writes[node]) continue;
    std::vector<std::uint32_t>& named = units[node];
    std::vector<bool> is_read(tables.size());
    const auto read_in = [&](std::uint32_t unit) {
      const auto [begin, end] = tables_in.equal_range(unit);
      for (auto found = begin; found != end; ++found) {
        const std::size_t i = found->second;
        if (is_read[i] || !reaches[i].contains(node)) continue;
        is_read[i] = true;
        named.insert(named.end(), tables[i].names.begin(), tables[i].names.end());
      }
    };
    read_in(TableWrite::kNowhere);
    for (std::size_t i = 0; i < named.size(); ++i) read_in(named[i]);
  }
}

}  // namespace anabranch::cuda
