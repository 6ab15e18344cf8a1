// SPDX-License-Identifier: Apache-2.0
#include "program/check_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program/user_streams.h"
#include "program/view_bounds.h"

namespace anabranch {
namespace {

constexpr std::string_view kKinds[] = {"compute",      "copy",       "fill",       "host",
                                       "record_event", "wait_event", "synchronize"};
constexpr std::size_t kRoleCount = 7;
constexpr std::size_t kNumberKindCount = 6;
constexpr std::size_t kOriginCount = 2;

bool reads(AccessMode mode) { return mode != AccessMode::kWrite; }
bool writes(AccessMode mode) { return mode != AccessMode::kRead; }

// Disjoint intervals of bytes.
class Intervals {
 public:
  bool meets(ViewBounds bounds) const {
    const auto next = ends_.upper_bound(bounds.begin);
    return next != ends_.end() && next->second < bounds.end;
  }
  void add(ViewBounds bounds) {
    auto at = ends_.lower_bound(bounds.begin);
    while (at != ends_.end() && at->second <= bounds.end) {
      bounds.begin = std::min(bounds.begin, at->second);
      bounds.end = std::max(bounds.end, at->first);
      at = ends_.erase(at);
    }
    ends_[bounds.end] = bounds.begin;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // end -> begin
};

class Checker {
 public:
  explicit Checker(const Program& program)
      : program_(program),
        written_(program.buffers().size()),
        recorded_(program.events().size(), false) {}

  Status run();

 private:
  template <typename... Values>
  void report(StatusCode code, fmt::format_string<Values...> text, Values&&... values);
  template <typename... Values>
  void report_step(StatusCode code, fmt::format_string<Values...> text, Values&&... values);

  void check_limits();
  void check_streams();
  void check_buffer(std::uint32_t number);
  void check_number(std::uint32_t number);
  void check_table(std::uint32_t number);
  void check_grid(std::uint32_t number);
  void check_step(std::uint32_t number);
  void check_shape(const Step& step);
  void check_sync(const Step& step);
  void check_copy(const Step& step);
  bool check_access(std::size_t number, const Access& access);
  void check_role(const Access& access, ViewBounds bounds);
  void check_value_use(const Access& access);

  const Program& program_;
  std::uint32_t step_ = 0;  // the one under test
  std::vector<Intervals> written_;
  std::vector<bool> recorded_;
  StatusCode first_ = StatusCode::kOk;
  std::string text_;
};

template <typename... Values>
void Checker::report(StatusCode code, fmt::format_string<Values...> text, Values&&... values) {
  if (first_ == StatusCode::kOk) first_ = code;
  text_ += text_.empty() ? "program: " : "\nprogram: ";
  fmt::format_to(std::back_inserter(text_), text, std::forward<Values>(values)...);
}

template <typename... Values>
void Checker::report_step(StatusCode code, fmt::format_string<Values...> text, Values&&... values) {
  const Step& step = program_.steps()[step_];
  const std::string source =
      step.source.empty() ? "" : fmt::format(" ({})", printable_text(step.source));
  report(code, "step {} '{}'{} {}", step_, printable_text(step.name), source,
         fmt::format(text, std::forward<Values>(values)...));
}

Status Checker::run() {
  check_limits();
  if (first_ != StatusCode::kOk) return Status(first_, std::move(text_));
  check_streams();
  for (std::uint32_t i = 0; i < program_.buffers().size(); ++i) check_buffer(i);
  for (step_ = 0; step_ < program_.steps().size(); ++step_) check_step(step_);
  return Status(first_, std::move(text_));
}

void Checker::check_limits() {
  if (program_.steps().size() > kMaxSteps) {
    report(StatusCode::kLimitExceeded, "has {} steps, the limit is {}; split it",
           program_.steps().size(), kMaxSteps);
  }
  if (program_.streams().size() > kMaxStreams) {
    report(StatusCode::kLimitExceeded, "has {} streams, the limit is {}; share streams",
           program_.streams().size(), kMaxStreams);
  }
  std::uint64_t total = 0;
  for (const Buffer& buffer : program_.buffers()) {
    if (buffer.size_bytes > kMaxTotalBytes || buffer.alignment > kMaxTotalBytes) continue;
    total += buffer.size_bytes + buffer.alignment;
    if (total <= kMaxTotalBytes) continue;
    return report(StatusCode::kLimitExceeded,
                  "has buffers of more than {} bytes together; split it", kMaxTotalBytes);
  }
}

void Checker::check_streams() {
  std::unordered_map<std::string_view, std::size_t> names;
  for (std::size_t i = 0; i < program_.streams().size(); ++i) {
    const std::string& name = program_.streams()[i];
    if (name.empty()) {
      report(StatusCode::kProgramInvalid, "stream {} has no name; give it one", i);
    } else if (const auto [at, fresh] = names.emplace(name, i); !fresh) {
      report(StatusCode::kProgramInvalid, "streams {} and {} are both named '{}'; rename one",
             at->second, i, printable_text(name));
    }
    const auto origin = static_cast<std::size_t>(program_.origins()[i]);
    if (origin < kOriginCount) continue;
    report(StatusCode::kProgramInvalid,
           "stream {} '{}' has origin {}, there are {}; pick one of them", i, printable_text(name),
           origin, kOriginCount);
  }
}

void Checker::check_buffer(std::uint32_t number) {
  const Buffer& buffer = program_.buffers()[number];
  if (buffer.size_bytes > kMaxBufferBytes) {
    report(StatusCode::kLimitExceeded, "buffer {} '{}' has {} bytes, the limit is {}; split it",
           number, printable_text(buffer.name), buffer.size_bytes, kMaxBufferBytes);
  }
  if (!std::has_single_bit(buffer.alignment) || buffer.alignment > kMaxBufferBytes) {
    report(StatusCode::kProgramInvalid,
           "buffer {} '{}' has alignment {}; it must be a power of two, at most {}", number,
           printable_text(buffer.name), buffer.alignment, kMaxBufferBytes);
  }
  if (static_cast<std::size_t>(buffer.role) >= kRoleCount) {
    report(StatusCode::kProgramInvalid,
           "buffer {} '{}' has role {}, there are {}; pick one of them", number,
           printable_text(buffer.name), static_cast<unsigned>(buffer.role), kRoleCount);
  }
  check_number(number);
  if (buffer.role == Role::kTable) check_table(number);
  check_grid(number);
}

void Checker::check_number(std::uint32_t number) {
  const Buffer& buffer = program_.buffers()[number];
  if (static_cast<std::size_t>(buffer.number) >= kNumberKindCount) {
    return report(StatusCode::kProgramInvalid,
                  "buffer {} '{}' is a number of kind {}, there are {}; pick one of them", number,
                  printable_text(buffer.name), static_cast<unsigned>(buffer.number),
                  kNumberKindCount);
  }
  const std::uint64_t bytes = bytes_of(buffer.number);
  if ((buffer.role == Role::kNumber) != (bytes != 0) ||
      (bytes != 0 && buffer.size_bytes != bytes)) {
    return report(StatusCode::kProgramInvalid,
                  "buffer {} '{}' has role {}, {} bytes and a kind of number of {}; add numbers by "
                  "add_number(), and give no other buffer a kind",
                  number, printable_text(buffer.name), static_cast<unsigned>(buffer.role),
                  buffer.size_bytes, bytes);
  }
  if (buffer.least <= buffer.most) return;
  report(StatusCode::kProgramInvalid,
         "number {} '{}' lies between {} and {}, where nothing does; give the lower bound first",
         number, printable_text(buffer.name), buffer.least, buffer.most);
}

void Checker::check_table(std::uint32_t number) {
  const Buffer& table = program_.buffers()[number];
  if (table.size_bytes == 0) {
    report(StatusCode::kProgramInvalid,
           "table {} '{}' has no bytes; declare as many as a launch may give", number,
           printable_text(table.name));
  }
  if (table.size_bytes <= kMaxTableBytes && table.alignment <= kMaxTableAlignment) return;
  report(StatusCode::kLimitExceeded,
         "table {} '{}' has {} bytes and alignment {}, the limits are {} and {}; make it an input",
         number, printable_text(table.name), table.size_bytes, table.alignment, kMaxTableBytes,
         kMaxTableAlignment);
}

void Checker::check_grid(std::uint32_t number) {
  const Buffer& grid = program_.buffers()[number];
  const auto& most = grid.most_blocks;
  const bool is_grid = grid.role == Role::kGrid;
  const auto without = std::ranges::count(most, 0u);
  if (!is_grid && without == 3) return;
  if (!is_grid || without != 0 || grid.size_bytes != kGridBytes) {
    return report(StatusCode::kProgramInvalid,
                  "buffer {} '{}' has role {}, {} bytes and at most {}x{}x{} blocks; add grids by "
                  "add_grid(), with a block in each dimension, and give no other buffer any",
                  number, printable_text(grid.name), static_cast<unsigned>(grid.role),
                  grid.size_bytes, most[0], most[1], most[2]);
  }
  if (most[0] <= kMaxGrid[0] && most[1] <= kMaxGrid[1] && most[2] <= kMaxGrid[2]) return;
  report(StatusCode::kLimitExceeded,
         "grid {} '{}' has at most {}x{}x{} blocks, the limits are {}x{}x{}; declare fewer", number,
         printable_text(grid.name), most[0], most[1], most[2], kMaxGrid[0], kMaxGrid[1],
         kMaxGrid[2]);
}

void Checker::check_step(std::uint32_t number) {
  const Step& step = program_.steps()[number];
  if (static_cast<std::size_t>(step.kind) >= std::size(kKinds)) {
    return report_step(StatusCode::kProgramInvalid, "has kind {}, there are {}; pick one of them",
                       static_cast<unsigned>(step.kind), std::size(kKinds));
  }
  if (index_of(step.stream) >= program_.streams().size()) {
    report_step(StatusCode::kUnknownId,
                "runs on stream {}, the program has {}; add the stream first",
                index_of(step.stream), program_.streams().size());
  }
  check_shape(step);
  check_sync(step);
  std::vector<const Access*> good;
  for (std::size_t i = 0; i < step.accesses.size(); ++i) {
    if (check_access(i, step.accesses[i])) good.push_back(&step.accesses[i]);
  }
  // A step's own writes come after its reads.
  for (const Access* access : good) {
    if (!writes(access->mode) || is_empty(access->view)) continue;
    const std::uint32_t buffer = index_of(access->view.buffer);
    written_[buffer].add(*find_bounds(access->view, program_.buffers()[buffer].size_bytes));
  }
}

// The number and modes of accesses that a kind asks for.
void Checker::check_shape(const Step& step) {
  const std::size_t count = step.accesses.size();
  const std::string_view kind = kKinds[static_cast<std::size_t>(step.kind)];
  switch (step.kind) {
    case StepKind::kCompute:
    case StepKind::kHost:
      if (!step.name.empty()) return;
      return report_step(StatusCode::kProgramInvalid, "is a {} without a name; name its region",
                         kind);
    case StepKind::kCopy:
      return check_copy(step);
    case StepKind::kFill:
      if (count == 1 && step.accesses[0].mode == AccessMode::kWrite) return;
      return report_step(StatusCode::kProgramInvalid,
                         "is a fill with {} accesses; it takes one, a write", count);
    default:
      if (count == 0) return;
      return report_step(StatusCode::kProgramInvalid, "is a {} with {} accesses; it takes none",
                         kind, count);
  }
}

void Checker::check_copy(const Step& step) {
  if (step.accesses.size() != 2 || step.accesses[0].mode != AccessMode::kWrite ||
      step.accesses[1].mode != AccessMode::kRead) {
    return report_step(StatusCode::kProgramInvalid,
                       "is a copy with {} accesses; it takes two, a write and then a read",
                       step.accesses.size());
  }
  const View& to = step.accesses[0].view;
  const View& from = step.accesses[1].view;
  if (to.item_bytes != from.item_bytes || to.dims.size() != from.dims.size()) {
    return report_step(StatusCode::kProgramInvalid,
                       "copies items of {} bytes in {} dims to items of {} bytes in {} dims; "
                       "both must be equal",
                       from.item_bytes, from.dims.size(), to.item_bytes, to.dims.size());
  }
  for (std::size_t i = 0; i < to.dims.size(); ++i) {
    if (to.dims[i].size == from.dims[i].size) continue;
    return report_step(StatusCode::kProgramInvalid,
                       "copies {} items to {} items in dim {}; both must be equal",
                       from.dims[i].size, to.dims[i].size, i);
  }
}

void Checker::check_sync(const Step& step) {
  if (step.kind != StepKind::kRecordEvent && step.kind != StepKind::kWaitEvent) return;
  const std::uint32_t event = index_of(step.event);
  if (event >= recorded_.size()) {
    return report_step(StatusCode::kUnknownId,
                       "names event {}, the program has {}; add the event first", event,
                       recorded_.size());
  }
  if (step.kind == StepKind::kRecordEvent) {
    recorded_[event] = true;
  } else if (!recorded_[event] && !has_user_streams(program_.origins())) {
    report_step(StatusCode::kEventNeverRecorded,
                "waits for event {} '{}', which no step before it records; record it first", event,
                printable_text(program_.events()[event]));
  }
}

// Answers whether the bytes of the access are known.
bool Checker::check_access(std::size_t number, const Access& access) {
  const auto mode = static_cast<unsigned>(access.mode);
  if (mode < 1 || mode > 3) {
    report_step(StatusCode::kProgramInvalid, "has mode {} at access {}; modes are 1, 2 and 3", mode,
                number);
    return false;
  }
  const View& view = access.view;
  if (index_of(view.buffer) >= program_.buffers().size()) {
    report_step(StatusCode::kUnknownId,
                "names buffer {} at access {}, the program has {}; add the buffer first",
                index_of(view.buffer), number, program_.buffers().size());
    return false;
  }
  if (view.dims.size() > kMaxViewDims) {
    report_step(StatusCode::kLimitExceeded, "has {} dims at access {}, the limit is {}; merge dims",
                view.dims.size(), number, kMaxViewDims);
    return false;
  }
  const Buffer& buffer = program_.buffer(view.buffer);
  const std::optional<ViewBounds> bounds = find_bounds(view, buffer.size_bytes);
  if (!bounds) {
    report_step(StatusCode::kViewOutsideBuffer,
                "reaches at access {} outside buffer {} '{}' of {} bytes: a view at offset {} of "
                "{} dims and items of {} bytes; shrink the view or grow the buffer",
                number, index_of(view.buffer), printable_text(buffer.name), buffer.size_bytes,
                view.offset_bytes, view.dims.size(), view.item_bytes);
    return false;
  }
  check_role(access, *bounds);
  return true;
}

void Checker::check_role(const Access& access, ViewBounds bounds) {
  const std::uint32_t number = index_of(access.view.buffer);
  const Buffer& buffer = program_.buffers()[number];
  if (writes(access.mode) && (buffer.role == Role::kConstant || buffer.role == Role::kTable)) {
    report_step(StatusCode::kRoleForbidsAccess,
                "writes buffer {} '{}', a {}; make it an input, or write another buffer", number,
                printable_text(buffer.name), buffer.role == Role::kTable ? "table" : "constant");
  }
  if (buffer.role == Role::kNumber || buffer.role == Role::kGrid) check_value_use(access);
  const bool given = buffer.role != Role::kOutput && buffer.role != Role::kTemporary;
  if (given || !reads(access.mode) || bounds.begin == bounds.end) return;
  if (written_[number].meets(bounds)) return;
  report_step(StatusCode::kReadBeforeWrite,
              "reads bytes {}..{} of buffer {} '{}', where no step before it writes; write there "
              "first, or make it an input",
              bounds.begin, bounds.end, number, printable_text(buffer.name));
}

// It has no bytes on a device: what moves bytes cannot reach it.
void Checker::check_value_use(const Access& access) {
  const StepKind kind = program_.steps()[step_].kind;
  const bool is_region = kind == StepKind::kCompute || kind == StepKind::kHost;
  if (is_region && !writes(access.mode)) return;
  const std::uint32_t number = index_of(access.view.buffer);
  const Buffer& buffer = program_.buffers()[number];
  report_step(StatusCode::kRoleForbidsAccess,
              "{} {} {} '{}', which regions alone may read; make it an input of {} bytes",
              writes(access.mode) ? "writes" : "copies",
              buffer.role == Role::kGrid ? "grid" : "number", number, printable_text(buffer.name),
              buffer.size_bytes);
}

}  // namespace

Status check_program(const Program& program) { return Checker(program).run(); }

}  // namespace anabranch
