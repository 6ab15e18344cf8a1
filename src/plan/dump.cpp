// SPDX-License-Identifier: Apache-2.0
// A plan as text: a line a step with a column a stream, then what is bound and what lives where.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "anabranch/plan.h"

namespace anabranch {
namespace {

// More streams than a line can show stand in one column, their names before the steps.
constexpr std::size_t kMostColumns = 6;
constexpr std::size_t kWidestColumn = 28;

constexpr std::string_view kRoles[] = {"input",  "output", "constant", "temporary",
                                       "number", "table",  "grid"};

// At most so many bytes from the start, and no part of a character.
std::string cut(const std::string& text, std::size_t most) {
  std::size_t size = std::min(text.size(), most);
  while (size > 0 && size < text.size() && (text[size] & 0xc0) == 0x80) --size;
  return text.substr(0, size);
}

class Dump {
 public:
  explicit Dump(const Plan& plan) : plan_(plan), program_(plan.program()) {}

  std::string text() {
    line("plan: {} steps, {} streams, {} waits", plan_.order().size(), program_.streams().size(),
         plan_.waits().size());
    add_steps();
    add_user_streams();
    add_priorities();
    add_list("end waits for", plan_.exits());
    add_list("waits that order nothing new", plan_.redundant_waits());
    add_slots();
    add_memory();
    return std::move(text_);
  }

 private:
  template <typename... Values>
  void line(fmt::format_string<Values...> text, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), text, std::forward<Values>(values)...);
    text_.erase(text_.find_last_not_of(' ') + 1);
    text_ += '\n';
  }
  void add_steps();
  void add_user_streams();
  void add_priorities();
  void add_list(std::string_view title, std::span<const StepId> steps);
  void add_slots();
  void add_memory();
  std::string label(const Step& step) const;
  std::string cells(const Step& step, const std::vector<std::size_t>& widths) const;
  std::vector<std::size_t> column_widths() const;

  const Plan& plan_;
  const Program& program_;
  std::string text_;
};

std::string Dump::label(const Step& step) const {
  std::string text = printable_text(step.name);
  if (step.kind == StepKind::kRecordEvent || step.kind == StepKind::kWaitEvent) {
    text += " " + printable_text(program_.events()[index_of(step.event)]);
  }
  if (program_.streams().size() > kMostColumns) {
    return printable_text(program_.streams()[index_of(step.stream)]) + ": " + text;
  }
  if (text.size() > kWidestColumn) text = cut(text, kWidestColumn - 2) + "..";
  return text;
}

std::vector<std::size_t> Dump::column_widths() const {
  if (program_.streams().size() > kMostColumns) return {kWidestColumn};
  std::vector<std::size_t> widths;
  for (const std::string& name : program_.streams()) {
    widths.push_back(std::min(printable_text(name).size(), kWidestColumn));
  }
  for (const Step& step : program_.steps()) {
    std::size_t& width = widths[index_of(step.stream)];
    width = std::max(width, label(step).size());
  }
  return widths;
}

std::string Dump::cells(const Step& step, const std::vector<std::size_t>& widths) const {
  const std::size_t own = widths.size() == 1 ? 0 : index_of(step.stream);
  std::string text;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    text += fmt::format("  {:<{}}", i == own ? label(step) : "", widths[i]);
  }
  return text;
}

void Dump::add_steps() {
  const std::vector<std::size_t> widths = column_widths();
  std::string heads;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const std::string name = printable_text(program_.streams()[i]);
    heads += fmt::format("  {:<{}}", cut(name, widths[i]), widths[i]);
  }
  line("  step{}  waits for", widths.size() == program_.streams().size() ? heads : "");
  std::size_t next = 0;
  for (const StepId id : plan_.order()) {
    std::string waits;
    for (; next < plan_.waits().size() && plan_.waits()[next].step == id; ++next) {
      waits += fmt::format("{}{}", waits.empty() ? "" : ", ", index_of(plan_.waits()[next].on));
    }
    line("  {:>4}{}  {}", index_of(id), cells(program_.step(id), widths), waits);
  }
}

void Dump::add_user_streams() {
  std::string names;
  for (std::size_t i = 0; i < program_.streams().size(); ++i) {
    if (program_.origins()[i] == StreamOrigin::kPlaced) continue;
    names += fmt::format(" {}", printable_text(program_.streams()[i]));
  }
  if (!names.empty()) line("synchronised by the user:{}", names);
}

void Dump::add_priorities() {
  std::string names;
  for (std::size_t i = 0; i < program_.streams().size(); ++i) {
    if (program_.priorities()[i] == 0) continue;
    names += fmt::format(" {} {}", printable_text(program_.streams()[i]), program_.priorities()[i]);
  }
  if (!names.empty()) line("priorities, the lower the more urgent:{}", names);
}

void Dump::add_list(std::string_view title, std::span<const StepId> steps) {
  if (steps.empty()) return;
  std::string numbers;
  for (const StepId step : steps) numbers += fmt::format(" {}", index_of(step));
  line("{}:{}", title, numbers);
}

void Dump::add_slots() {
  line("slots: {}", plan_.slots().size());
  for (std::size_t i = 0; i < plan_.slots().size(); ++i) {
    const Buffer& buffer = program_.buffer(plan_.slots()[i].buffer);
    line("  {:>4}  {:<8}  {:>12} bytes  {}", i, kRoles[static_cast<std::size_t>(buffer.role)],
         buffer.size_bytes, printable_text(buffer.name));
  }
}

void Dump::add_memory() {
  const ArenaLayout& arena = plan_.arena();
  line("arena: {} bytes (live at once {}, without sharing {})", arena.size_bytes,
       arena.lower_bound_bytes, arena.naive_bytes);
  std::vector<std::size_t> placed;
  for (std::size_t i = 0; i < arena.offsets.size(); ++i) {
    if (arena.offsets[i] != kNotInArena) placed.push_back(i);
  }
  std::stable_sort(placed.begin(), placed.end(), [&](std::size_t a, std::size_t b) {
    return arena.offsets[a] < arena.offsets[b];
  });
  for (const std::size_t i : placed) {
    const Buffer& buffer = program_.buffers()[i];
    line("  at {:>12}  {:>12} bytes  {}", arena.offsets[i], buffer.size_bytes,
         printable_text(buffer.name));
  }
}

}  // namespace

std::string dump_plan(const Plan& plan) { return Dump(plan).text(); }

}  // namespace anabranch
