// SPDX-License-Identifier: Apache-2.0
#include "plan/random_program.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace anabranch {
namespace {

constexpr std::uint64_t kItem = 4;

std::string numbered(const char* text, std::uint64_t number) {
  std::string name = text;
  return name.append(std::to_string(number));
}

// A range of `count` places with a step of 1 to 3, perhaps backwards.
struct Cut {
  std::uint64_t first = 0;
  Dim dim;
};

Cut random_cut(RandomNumbers& random, std::uint64_t count, std::uint64_t stride) {
  const std::uint64_t first = random.below(count);
  const std::uint64_t step = 1 + random.below(3);
  const std::uint64_t most = (count - 1 - first) / step + 1;
  const std::uint64_t size = 1 + random.below(most);
  const auto forward = static_cast<std::int64_t>(step * stride);
  if (!random.chance(10)) return {first, {size, forward}};
  return {first + (size - 1) * step, {size, -forward}};
}

class Writer {
 public:
  Writer(std::uint64_t seed, const RandomProgramOptions& options)
      : options_(options), random_(seed), recent_(options.streams) {}

  Program write() {
    add_names();
    for (std::uint32_t i = 0; i < options_.steps; ++i) {
      if (random_.chance(options_.switches)) stream_ = draw<StreamId>(options_.streams);
      add_step();
    }
    Result<Program> program = builder_.build();
    if (program) return *program;
    std::fprintf(stderr, "random_program: %s\n", program.error().message().c_str());
    std::abort();  // a bug of this file
  }

 private:
  template <typename Id>
  Id draw(std::uint64_t end) {
    return static_cast<Id>(random_.below(end));
  }
  void add_names();
  BufferId add_buffer(Role role);
  void add_step();
  bool add_sync();
  void add_other();
  void add_compute();
  Access read_something();
  Access write_something();
  View view(BufferId buffer, bool may_be_part);
  void note_written(BufferId buffer);

  const RandomProgramOptions& options_;
  RandomNumbers random_;
  ProgramBuilder builder_;
  StreamId stream_ = kAmbient;
  std::vector<std::uint64_t> sizes_;           // by buffer
  std::vector<std::vector<BufferId>> recent_;  // by stream, the last written buffers
  std::vector<BufferId> readable_;             // the caller's, not outputs yet to be written
  std::vector<BufferId> writable_;             // the caller's inputs and written outputs
  std::vector<BufferId> unwritten_;            // outputs
  std::vector<EventId> recorded_;
};

void Writer::add_names() {
  for (std::uint32_t i = 1; i < options_.streams; ++i) {
    builder_.add_stream(numbered("stream", i));
  }
  if (options_.syncs != 0) {
    for (std::uint32_t i = 0; i < options_.events; ++i) {
      builder_.add_event(numbered("event", i));
    }
  }
  for (std::uint32_t i = 0; i < options_.callers; ++i) {
    static constexpr Role kRoles[] = {Role::kInput, Role::kOutput, Role::kConstant};
    const Role role = kRoles[i % 3];
    const BufferId buffer = add_buffer(role);
    if (role == Role::kOutput) {
      unwritten_.push_back(buffer);
    } else {
      readable_.push_back(buffer);
      if (role == Role::kInput) writable_.push_back(buffer);
    }
  }
}

BufferId Writer::add_buffer(Role role) {
  const std::uint64_t low = std::bit_width(options_.min_bytes) - 1;
  const std::uint64_t high = std::bit_width(options_.max_bytes) - 1;
  const std::uint64_t power = std::uint64_t{1} << (low + random_.below(high - low + 1));
  // Half of them are no power of two.
  const std::uint64_t size = random_.chance(50) ? power : power + random_.below(power);
  sizes_.push_back(std::clamp(size, options_.min_bytes, options_.max_bytes));
  return builder_.add_buffer({numbered("b", sizes_.size() - 1), role, sizes_.back(), 64});
}

void Writer::add_step() {
  if (random_.chance(options_.syncs) && add_sync()) return;
  if (random_.chance(options_.others)) return add_other();
  add_compute();
}

bool Writer::add_sync() {
  if (random_.chance(12)) {
    builder_.synchronize(stream_);
    return true;
  }
  if (options_.events == 0) return false;
  if (recorded_.empty() || random_.chance(50)) {
    recorded_.push_back(draw<EventId>(options_.events));
    builder_.record_event(stream_, recorded_.back());
  } else {
    builder_.wait_event(stream_, recorded_[random_.below(recorded_.size())]);
  }
  return true;
}

void Writer::add_other() {
  switch (random_.below(3)) {
    case 0: {
      const BufferId buffer = add_buffer(Role::kTemporary);
      builder_.fill(stream_, builder_.whole(buffer), 0);
      return note_written(buffer);
    }
    case 1: {
      const Access from = read_something();
      const BufferId to = builder_.add_buffer(
          {numbered("b", sizes_.size()), Role::kTemporary, sizes_[index_of(from.view.buffer)]});
      sizes_.push_back(sizes_[index_of(from.view.buffer)]);
      builder_.copy(stream_, builder_.whole(to), builder_.whole(from.view.buffer));
      return note_written(to);
    }
    default:
      builder_.add_step({.kind = StepKind::kHost,
                         .stream = stream_,
                         .name = "host",
                         .accesses = {read_something(), write_something()}});
  }
}

void Writer::add_compute() {
  std::vector<Access> accesses;
  const std::uint64_t reads = random_.below(4);
  for (std::uint64_t i = 0; i < reads; ++i) accesses.push_back(read_something());
  accesses.push_back(write_something());
  builder_.compute(stream_, numbered("region", random_.below(16)), std::move(accesses));
}

Access Writer::read_something() {
  std::vector<BufferId>* from = &recent_[index_of(stream_)];
  if (random_.chance(options_.travels)) from = &recent_[random_.below(recent_.size())];
  if (from->empty() || random_.chance(options_.from_caller)) from = &readable_;
  if (from->empty()) {
    const BufferId buffer = add_buffer(Role::kConstant);
    readable_.push_back(buffer);
  }
  return {AccessMode::kRead, view((*from)[random_.below(from->size())], true)};
}

Access Writer::write_something() {
  if (random_.chance(options_.in_place)) {
    std::vector<BufferId>* to = &recent_[index_of(stream_)];
    if (random_.chance(options_.travels)) to = &recent_[random_.below(recent_.size())];
    if (to->empty() || random_.chance(options_.from_caller)) to = &writable_;
    if (!to->empty()) {
      const BufferId buffer = (*to)[random_.below(to->size())];
      const AccessMode mode = random_.chance(50) ? AccessMode::kReadWrite : AccessMode::kWrite;
      return {mode, view(buffer, true)};
    }
  }
  BufferId buffer{};
  if (!unwritten_.empty() && random_.chance(5)) {
    buffer = unwritten_.back();
    unwritten_.pop_back();
    readable_.push_back(buffer);
    writable_.push_back(buffer);
  } else {
    buffer = add_buffer(Role::kTemporary);
    note_written(buffer);
  }
  return {AccessMode::kWrite, view(buffer, false)};
}

View Writer::view(BufferId buffer, bool may_be_part) {
  if (!may_be_part || !random_.chance(options_.views)) return builder_.whole(buffer);
  return random_view(random_, buffer, sizes_[index_of(buffer)]);
}

void Writer::note_written(BufferId buffer) {
  std::vector<BufferId>& recent = recent_[index_of(stream_)];
  if (recent.size() >= std::max(options_.window, 1u)) recent.erase(recent.begin());
  recent.push_back(buffer);
}

}  // namespace

View random_view(RandomNumbers& random, BufferId buffer, std::uint64_t size_bytes) {
  const std::uint64_t items = size_bytes / kItem;
  if (items < 4) return {buffer, 0, size_bytes, {}};
  const std::uint64_t columns = std::uint64_t{1}
                                << random.below(static_cast<std::uint64_t>(std::bit_width(items)));
  const Cut row = random_cut(random, items / columns, columns * kItem);
  const Cut column = random_cut(random, columns, kItem);
  View view{buffer, (row.first * columns + column.first) * kItem, kItem, {row.dim, column.dim}};
  if (random.chance(20)) std::swap(view.dims[0], view.dims[1]);
  return view;
}

Program random_program(std::uint64_t seed, const RandomProgramOptions& options) {
  return Writer(seed, options).write();
}

}  // namespace anabranch
