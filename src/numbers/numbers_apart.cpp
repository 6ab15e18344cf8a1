// SPDX-License-Identifier: Apache-2.0
// Two ways to make a word of a value may give the same word for the numbers of now: two numbers
// that are equal, or the inverse of a double and of a float. They are told apart by a capture with
// numbers for which they differ. What each way would give is known beforehand, from the trace of a
// capture with the numbers of now.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>

#include "anabranch/experimental/number_program.h"
#include "numbers/arithmetic.h"
#include "numbers/encodings.h"

namespace anabranch::numbers {
namespace {

// A number differs by such a part of it at least, so that no bfloat16 is both, and is so much
// smaller at most than what it was before.
constexpr double kLeast = 0x1p-6, kMost = 0.5;
constexpr std::size_t kTries = 48;  // of all numbers at once, and of each that leaves some alike
constexpr std::size_t kMostWork = 300'000;  // entries that are evaluated, beyond the first tries

using Numbers = std::vector<double>;
using WayNumbers = std::vector<std::size_t>;  // sorted; an entry's ways are in a row

struct Tried {
  Numbers numbers{};
  WayNumbers left{};  // ways that are alike, or whose words are as they are now
};

// Evenly between these (splitmix64).
class Random {
 public:
  double between(double least, double most) {
    std::uint64_t x = (state_ += 0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return least + static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53 * (most - least);
  }

 private:
  std::uint64_t state_ = 0;
};

class Search {
 public:
  Search(std::span<const Entry> entries, std::span<const double> now)
      : entries_(entries), now_(now) {
    std::vector<double> values;
    WayNumbers ways;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      values.push_back(entries[i].value);
      for (std::size_t way = 0; way < all_ways().size() && !decides(entries[i]); ++way) {
        ways.push_back(i * all_ways().size() + way);
      }
    }
    find_alike(values, ways, [&](WayNumbers group) { groups_.push_back(std::move(group)); });
    for (const std::size_t way : ways) {
      if (way_of(way).change == Change::kNone) rounded_.emplace_back(way, word_of(values, way));
    }
  }

  // Of some that are drawn for all numbers at once, and then for one after the other of those that
  // need not leave alike what they do. None where no choice is possible.
  std::optional<Numbers> best(std::span<const double> near) {
    std::vector<Tried> found;
    for (std::size_t i = 0; i < kTries; ++i) {
      Numbers drawn;
      for (std::size_t n = 0; n < now_.size(); ++n) drawn.push_back(other(now_[n], near[n]));
      add_tried(std::move(drawn), found);
    }
    if (found.empty()) return std::nullopt;
    const auto has_less = [](const Tried& a, const Tried& b) {
      return a.left.size() < b.left.size();
    };
    Tried best = *std::ranges::min_element(found, has_less);
    const std::vector<std::size_t> to_blame = numbers_of(left_needlessly(best, found));
    const std::size_t each =
        std::min(kTries, kMostWork / (entries_.size() * std::max<std::size_t>(1, to_blame.size())));
    for (const std::size_t number : to_blame) {
      for (std::size_t i = 0; i < each; ++i) {
        Numbers drawn = best.numbers;
        drawn[number] = other(now_[number], near[number]);
        std::vector<Tried> again;
        add_tried(std::move(drawn), again);
        if (!again.empty() && has_less(again.front(), best)) best = std::move(again.front());
      }
    }
    return std::move(best.numbers);
  }

 private:
  static Way way_of(std::size_t way) { return all_ways()[way % all_ways().size()]; }
  static std::optional<std::uint64_t> word_of(std::span<const double> values, std::size_t way) {
    return encoded(values[way / all_ways().size()], way_of(way));
  }

  // Calls found(ways) for those that make the same word of these values, more than one each time.
  template <typename Found>
  static void find_alike(std::span<const double> values, std::span<const std::size_t> ways,
                         Found found) {
    std::vector<std::tuple<std::uint32_t, std::optional<std::uint64_t>, std::size_t>> words;
    for (const std::size_t way : ways) {
      words.emplace_back(bytes_of(way_of(way).encoding), word_of(values, way), way);
    }
    std::ranges::sort(words);
    for (auto begin = words.begin(); begin != words.end();) {
      const auto end = std::find_if(begin, words.end(), [&](const auto& word) {
        return std::get<0>(word) != std::get<0>(*begin) || std::get<1>(word) != std::get<1>(*begin);
      });
      WayNumbers group;
      for (auto at = begin; end - begin > 1 && at != end; ++at) group.push_back(std::get<2>(*at));
      if (!group.empty()) found(std::move(group));
      begin = end;
    }
  }

  // Adds nothing where the step goes another way, or where a number is nearly what it is now.
  void add_tried(Numbers numbers, std::vector<Tried>& to) const {
    if (!std::ranges::equal(numbers, now_, are_apart)) return;
    std::vector<double> values;
    if (evaluate(entries_, numbers, values) != Outcome::kDone) return;
    WayNumbers left;
    for (const WayNumbers& group : groups_) {
      find_alike(values, group, [&](const WayNumbers& alike) {
        left.insert(left.end(), alike.begin(), alike.end());
      });
    }
    for (const auto& [way, word] : rounded_) {
      if (word_of(values, way) == word) left.push_back(way);
    }
    std::ranges::sort(left);
    left.erase(std::unique(left.begin(), left.end()), left.end());
    to.push_back({std::move(numbers), std::move(left)});
  }

  // What the best leaves and another one does not.
  static WayNumbers left_needlessly(const Tried& best, std::span<const Tried> found) {
    WayNumbers in_all = best.left;
    for (const Tried& one : found) {
      WayNumbers both;
      std::ranges::set_intersection(in_all, one.left, std::back_inserter(both));
      in_all = std::move(both);
    }
    WayNumbers needless;
    std::ranges::set_difference(best.left, in_all, std::back_inserter(needless));
    return needless;
  }

  // From which these are made, of the step's.
  std::vector<std::size_t> numbers_of(std::span<const std::size_t> ways) const {
    std::set<std::size_t> waiting, found;
    for (const std::size_t way : ways) waiting.insert(way / all_ways().size());
    while (!waiting.empty()) {
      const std::size_t entry = *waiting.rbegin();  // operands come before it
      waiting.erase(entry);
      if (entry < now_.size()) found.insert(entry);
      for (const Operand& operand : entries_[entry].operands) {
        if (operand.entry >= 0) waiting.insert(static_cast<std::size_t>(operand.entry));
      }
    }
    return {found.begin(), found.end()};
  }

  static bool are_apart(double a, double b) {
    return std::fabs(a - b) >= kLeast * std::max(std::fabs(a), std::fabs(b));
  }

  // A little less than `near`, or than the value where that is no size to go by.
  double other(double value, double near) {
    constexpr int kDraws = 8;
    double drawn = value;
    for (int i = 0; i < kDraws && (i == 0 || !are_apart(value, drawn)); ++i) {
      drawn =
          (near != 0 && std::isfinite(near) ? near : value) * (1 - random_.between(kLeast, kMost));
    }
    return drawn;
  }

  std::span<const Entry> entries_;
  std::span<const double> now_;
  std::vector<WayNumbers> groups_;  // ways that make the same word now
  std::vector<std::pair<std::size_t, std::optional<std::uint64_t>>> rounded_;  // to be others
  Random random_;
};

}  // namespace

Result<std::vector<double>> find_numbers_apart(std::span<const Entry> entries,
                                               std::span<const double> now,
                                               std::span<const double> before) {
  if (Status valid = check_entries(entries); !valid.ok()) return valid;
  const Distinct distinct = distinct_of(entries);
  Search search(distinct.entries, now);
  for (const auto near : {before, now}) {
    if (auto best = search.best(near)) return *std::move(best);
  }
  return Status(StatusCode::kNotRecordable,
                "with a slightly different value the step goes another way");
}

}  // namespace anabranch::numbers
