// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "input.h"

namespace anabranch::tool {
namespace {

constexpr std::size_t kShownDifferences = 10;

bool equal(const Buffer& a, const Buffer& b) {
  return std::tie(a.name, a.role, a.size_bytes, a.alignment, a.number, a.least, a.most,
                  a.most_blocks) == std::tie(b.name, b.role, b.size_bytes, b.alignment, b.number,
                                             b.least, b.most, b.most_blocks);
}

bool equal(const Step& a, const Step& b) {
  return std::tie(a.kind, a.stream, a.name, a.source, a.event, a.fill_byte) ==
             std::tie(b.kind, b.stream, b.name, b.source, b.event, b.fill_byte) &&
         std::equal(
             a.accesses.begin(), a.accesses.end(), b.accesses.begin(), b.accesses.end(),
             [](const Access& x, const Access& y) { return x.mode == y.mode && x.view == y.view; });
}

std::string label(const Program& program, StepId id) {
  const std::string& name = program.step(id).name;
  return name.empty() ? fmt::format("{}", index_of(id))
                      : fmt::format("{} '{}'", index_of(id), printable_text(name));
}

// Differences of one part: a line with their number, then the first few.
class Part {
 public:
  explicit Part(std::string name) : name_(std::move(name)) {}
  void add(std::string line) {
    if (count_++ < kShownDifferences) lines_ += "  " + std::move(line) + "\n";
  }
  bool empty() const { return count_ == 0; }
  std::string dump() const {
    if (empty()) return fmt::format("{:<8} equal\n", name_);
    const bool more = count_ > kShownDifferences;
    return fmt::format("{:<8} {} differences\n{}{}", name_, count_, lines_, more ? "  ...\n" : "");
  }

 private:
  std::string name_;
  std::string lines_;
  std::size_t count_ = 0;
};

Part compare_programs(const Program& a, const Program& b) {
  Part part("program");
  const auto compare_lists = [&](const char* what, const auto& ours, const auto& theirs,
                                 auto same) {
    if (ours.size() != theirs.size()) {
      part.add(fmt::format("{} {}, {}", what, ours.size(), theirs.size()));
    }
    for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
      if (!same(ours[i], theirs[i])) part.add(fmt::format("{} {} differs", what, i));
    }
  };
  const auto same = [](const auto& x, const auto& y) { return equal(x, y); };
  const auto same_value = [](const auto& x, const auto& y) { return x == y; };
  compare_lists("streams", a.streams(), b.streams(), same_value);
  compare_lists("origins", a.origins(), b.origins(), same_value);
  compare_lists("priorities", a.priorities(), b.priorities(), same_value);
  compare_lists("events", a.events(), b.events(), same_value);
  compare_lists("buffers", a.buffers(), b.buffers(), same);
  compare_lists("steps", a.steps(), b.steps(), same);
  return part;
}

Part compare_orders(const Plan& a, const Plan& b) {
  Part part("order");
  for (std::size_t i = 0; i < std::max(a.order().size(), b.order().size()); ++i) {
    const auto at = [i](const Plan& plan) {
      return i < plan.order().size() ? label(plan.program(), plan.order()[i]) : "nothing";
    };
    if (at(a) != at(b)) part.add(fmt::format("place {}: step {}, step {}", i, at(a), at(b)));
  }
  return part;
}

Part compare_waits(const Plan& a, const Plan& b) {
  Part part("waits");
  const auto sorted = [](const Plan& plan) {
    std::vector<Wait> waits(plan.waits().begin(), plan.waits().end());
    std::sort(waits.begin(), waits.end());
    return waits;
  };
  const std::vector<Wait> ours = sorted(a), theirs = sorted(b);
  const auto add_missing = [&](const std::vector<Wait>& from, const std::vector<Wait>& in,
                               const Program& program, const char* side) {
    std::vector<Wait> missing;
    std::set_difference(from.begin(), from.end(), in.begin(), in.end(),
                        std::back_inserter(missing));
    for (const Wait& wait : missing) {
      part.add(fmt::format("only in the {}: step {} waits for step {}", side,
                           label(program, wait.step), label(program, wait.on)));
    }
  };
  add_missing(ours, theirs, a.program(), "first");
  add_missing(theirs, ours, b.program(), "second");
  return part;
}

Part compare_arenas(const Plan& a, const Plan& b) {
  Part part("arena");
  const auto add = [&](const std::string& what, std::uint64_t ours, std::uint64_t theirs) {
    const auto text = [](std::uint64_t bytes) {
      return bytes == kNotInArena ? "none" : fmt::format("{}", bytes);
    };
    if (ours != theirs) part.add(fmt::format("{}: {}, {}", what, text(ours), text(theirs)));
  };
  const ArenaLayout &ours = a.arena(), &theirs = b.arena();
  add("bytes", ours.size_bytes, theirs.size_bytes);
  add("lower bound", ours.lower_bound_bytes, theirs.lower_bound_bytes);
  add("naive", ours.naive_bytes, theirs.naive_bytes);
  for (std::size_t i = 0; i < std::min(ours.offsets.size(), theirs.offsets.size()); ++i) {
    const std::string& name = a.program().buffers()[i].name;
    add(fmt::format("offset of buffer {} '{}'", i, printable_text(name)), ours.offsets[i],
        theirs.offsets[i]);
  }
  return part;
}

}  // namespace

Comparison compare_plans(const Plan& plan, const Plan& other) {
  const Part parts[] = {compare_programs(plan.program(), other.program()),
                        compare_orders(plan, other), compare_waits(plan, other),
                        compare_arenas(plan, other)};
  Comparison comparison{.equal = true, .text = {}};
  for (const Part& part : parts) {
    comparison.equal = comparison.equal && part.empty();
    comparison.text += part.dump();
  }
  return comparison;
}

Result<Comparison> compare(const std::string& path, const std::string& other_path) {
  Result<Plan> plan = read_plan_input(path);
  if (!plan) return plan.error();
  Result<Plan> other = read_plan_input(other_path);
  if (!other) return other.error();
  Comparison comparison = compare_plans(*plan, *other);
  comparison.text =
      fmt::format("first  {}\nsecond {}\n", printable_text(path), printable_text(other_path)) +
      comparison.text;
  return comparison;
}

}  // namespace anabranch::tool
