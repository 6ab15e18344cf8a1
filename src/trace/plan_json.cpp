// SPDX-License-Identifier: Apache-2.0
// A plan as JSON, for pages and scripts. docs/trace.md has its keys.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "anabranch/trace.h"
#include "trace/json_text.h"
#include "trace/step_label.h"

namespace anabranch {
namespace {

std::string_view role_text(Role role) {
  switch (role) {
    case Role::kInput:
      return "input";
    case Role::kOutput:
      return "output";
    case Role::kConstant:
      return "constant";
    case Role::kTemporary:
      return "temporary";
    case Role::kNumber:
      return "number";
    case Role::kTable:
      return "table";
    case Role::kGrid:
      return "grid";
  }
  return "buffer";
}

class Writer {
 public:
  explicit Writer(const Plan& plan) : plan_(plan), program_(plan.program()) {}
  std::string write();

 private:
  template <typename... Values>
  void append(fmt::format_string<const Values&...> format, const Values&... values) {
    fmt::vformat_to(std::back_inserter(out_), fmt::string_view(format),
                    fmt::make_format_args(values...));
  }
  void text(std::string_view key, std::string_view value) {
    append("\"{}\":", key);
    append_json_text(out_, value);
  }
  // A list, of which `write_item` writes each item.
  template <typename Items, typename WriteItem>
  void list(std::string_view key, const Items& items, WriteItem write_item) {
    append("\"{}\":[", key);
    bool is_first = true;
    for (const auto& item : items) {
      if (!is_first) out_ += ',';
      is_first = false;
      write_item(item);
    }
    out_ += ']';
  }
  template <typename Ids>
  void ids(std::string_view key, const Ids& of) {
    list(key, of, [this](auto id) { this->append("{}", index_of(id)); });
  }
  void write_stream(std::uint32_t stream);
  void write_step(std::uint32_t number);
  void write_buffer(std::uint32_t number);
  void write_arena();

  const Plan& plan_;
  const Program& program_;
  std::string out_;
};

std::vector<std::uint32_t> count_up(std::size_t size) {
  std::vector<std::uint32_t> numbers(size);
  for (std::uint32_t i = 0; i < size; ++i) numbers[i] = i;
  return numbers;
}

// Each buffer once, in the order of the accesses.
std::vector<BufferId> buffers_of(const Step& step, AccessMode mode) {
  std::vector<BufferId> found;
  for (const Access& access : step.accesses) {
    const auto has = static_cast<unsigned>(access.mode) & static_cast<unsigned>(mode);
    if (has != 0 && std::ranges::find(found, access.view.buffer) == found.end()) {
      found.push_back(access.view.buffer);
    }
  }
  return found;
}

void Writer::write_stream(std::uint32_t stream) {
  out_ += '{';
  text("name", program_.streams()[stream]);
  append(",\"priority\":{},\"is_users\":{}}}", program_.priorities()[stream],
         program_.origins()[stream] == StreamOrigin::kUserSynchronised);
}

void Writer::write_step(std::uint32_t number) {
  const Step& step = program_.steps()[number];
  out_ += '{';
  text("name", step_label(program_, number));
  append(",\"kind\":\"{}\",\"stream\":{},", kind_text(step.kind), index_of(step.stream));
  text("source", step.source);
  out_ += ',';
  ids("reads", buffers_of(step, AccessMode::kRead));
  out_ += ',';
  ids("writes", buffers_of(step, AccessMode::kWrite));
  out_ += '}';
}

void Writer::write_buffer(std::uint32_t number) {
  const Buffer& buffer = program_.buffers()[number];
  const std::uint64_t offset = plan_.arena().offsets[number];
  out_ += '{';
  text("name", buffer.name);
  append(",\"role\":\"{}\",\"size_bytes\":{},\"offset_bytes\":{}}}", role_text(buffer.role),
         buffer.size_bytes, offset == kNotInArena ? "null" : fmt::format("{}", offset));
}

void Writer::write_arena() {
  const ArenaLayout& arena = plan_.arena();
  append(",\"arena\":{{\"size_bytes\":{},\"lower_bound_bytes\":{},\"naive_bytes\":{}}}}}\n",
         arena.size_bytes, arena.lower_bound_bytes, arena.naive_bytes);
}

std::string Writer::write() {
  out_ += '{';
  list("streams", count_up(program_.streams().size()), [this](auto i) { this->write_stream(i); });
  out_ += ',';
  list("steps", count_up(program_.steps().size()), [this](auto i) { this->write_step(i); });
  out_ += ',';
  list("buffers", count_up(program_.buffers().size()), [this](auto i) { this->write_buffer(i); });
  out_ += ',';
  ids("order", plan_.order());
  out_ += ',';
  list("waits", plan_.waits(),
       [this](const Wait& wait) { append("[{},{}]", index_of(wait.step), index_of(wait.on)); });
  out_ += ',';
  ids("exits", plan_.exits());
  write_arena();
  return std::move(out_);
}

}  // namespace

std::string dump_plan_json(const Plan& plan) { return Writer(plan).write(); }

}  // namespace anabranch
