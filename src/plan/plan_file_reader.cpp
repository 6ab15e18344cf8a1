// SPDX-License-Identifier: Apache-2.0
// A FlatBuffer back into a plan. Nothing in the bytes is trusted: the verifier proves that every
// offset stays inside, this file that every count and number is within its limit, ProgramBuilder
// that the program is one, make_plan_from_parts that the plan is complete and free of races.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "plan/plan_file.h"
#include "plan/plan_generated.h"

namespace anabranch {
namespace {

Status malformed(std::string why) {
  return Status(StatusCode::kFileMalformed, "read plan: " + std::move(why));
}

template <typename T>
std::size_t count_of(const flatbuffers::Vector<T>* vector) {
  return vector == nullptr ? 0 : vector->size();
}

// The verifier looks at the alignment of a vector's length, not at that of 8-byte items behind it.
Dim copy_dim(const flatbuffers::Vector<const file::Dim*>& dims, std::size_t number) {
  file::Dim dim;
  std::memcpy(&dim, dims.Data() + number * sizeof dim, sizeof dim);
  return {.size = dim.size(), .stride_bytes = dim.stride_bytes()};
}

// Offsets may point twice to the same bytes, which would let a small file ask for much memory. Our
// writer shares nothing, so a file of n bytes holds n bytes of text and shapes at the very most.
class Reader {
 public:
  Reader(const file::Plan& plan, std::uint64_t payload_bytes)
      : plan_(plan), budget_bytes_(payload_bytes) {}

  Result<Plan> read();

 private:
  void check_counts();
  void read_names();
  void read_buffers();
  void read_bounds(const flatbuffers::Vector<double>* bounds, Buffer& buffer, std::uint32_t number);
  void read_blocks(const flatbuffers::Vector<std::uint32_t>* blocks, Buffer& buffer,
                   std::uint32_t number);
  void read_steps();
  Step read_step(const file::Step& step, std::uint32_t number);
  Access read_access(const file::Access& access, std::uint32_t step);
  std::string read_text(const flatbuffers::String* text);
  StreamOrigin read_origin(std::uint32_t number);
  std::int32_t read_priority(std::uint32_t number);
  PlanParts read_parts() const;

  // Calls take(item, number) for each item until something is refused.
  template <typename T, typename Take>
  void each(const flatbuffers::Vector<T>* items, Take take) {
    for (std::uint32_t i = 0; i < count_of(items) && !error_; ++i) take(items->Get(i), i);
  }
  // `what` is only called for a value that is refused.
  template <typename What>
  void check_range(std::uint64_t value, std::uint64_t least, std::uint64_t most, What what) {
    if (value >= least && value <= most) return;
    refuse(fmt::format("{} is {}, outside {} to {}", what(), value, least, most));
  }
  void spend(std::uint64_t bytes);
  void refuse(std::string why) {
    if (!error_) error_ = malformed(std::move(why));
  }

  const file::Plan& plan_;
  std::uint64_t budget_bytes_;
  ProgramBuilder builder_;
  std::optional<Status> error_;
};

void Reader::spend(std::uint64_t bytes) {
  if (bytes > budget_bytes_) refuse("the same bytes serve several texts or shapes");
  budget_bytes_ -= std::min(bytes, budget_bytes_);
}

void Reader::check_counts() {
  const auto check = [this](const auto* items, std::uint64_t most, const char* what) {
    check_range(count_of(items), 0, most, [&] { return fmt::format("the number of {}", what); });
  };
  check(plan_.streams(), kMaxStreams - 1, "side streams");
  check(plan_.events(), kMaxFileEvents, "events");
  check(plan_.buffers(), kMaxFileBuffers, "buffers");
  check(plan_.steps(), kMaxSteps, "steps");
  check(plan_.order(), count_of(plan_.steps()), "steps in the order");
  const auto check_by_stream = [this](const auto* items, const char* what) {
    if (count_of(items) == 0) return;
    const std::size_t streams = count_of(plan_.streams());
    check_range(count_of(items), streams, streams,
                [&] { return fmt::format("the number of {}", what); });
  };
  check_by_stream(plan_.origins(), "origins");
  check_by_stream(plan_.priorities(), "priorities");
}

std::string Reader::read_text(const flatbuffers::String* text) {
  if (text == nullptr) return {};
  check_range(text->size(), 0, kMaxFileTextBytes, [] { return "the length of a text"; });
  spend(text->size());
  return error_ ? std::string() : text->str();
}

// Of side stream `number`, from 0. Older files have no origins: their streams are placed.
StreamOrigin Reader::read_origin(std::uint32_t number) {
  if (number >= count_of(plan_.origins())) return StreamOrigin::kPlaced;
  const std::uint8_t origin = plan_.origins()->Get(number);
  check_range(origin, 0, static_cast<std::uint8_t>(StreamOrigin::kUserSynchronised),
              [&] { return fmt::format("the origin of stream {}", number + 1); });
  return static_cast<StreamOrigin>(origin);
}

// Nor have they priorities.
std::int32_t Reader::read_priority(std::uint32_t number) {
  return number < count_of(plan_.priorities()) ? plan_.priorities()->Get(number) : 0;
}

void Reader::read_names() {
  each(plan_.streams(), [this](const auto* name, std::uint32_t number) {
    builder_.add_stream(read_text(name), read_origin(number), read_priority(number));
  });
  each(plan_.events(), [this](const auto* name, auto) { builder_.add_event(read_text(name)); });
}

void Reader::read_buffers() {
  each(plan_.buffers(), [this](const file::Buffer* buffer, std::uint32_t number) {
    check_range(buffer->role(), 0, static_cast<std::uint8_t>(Role::kGrid),
                [&] { return fmt::format("the role of buffer {}", number); });
    check_range(buffer->number(), 0, static_cast<std::uint8_t>(NumberKind::kBF16),
                [&] { return fmt::format("the kind of number of buffer {}", number); });
    Buffer read{.name = read_text(buffer->name()),
                .role = static_cast<Role>(buffer->role()),
                .size_bytes = buffer->size_bytes(),
                .alignment = buffer->alignment(),
                .number = static_cast<NumberKind>(buffer->number())};
    read_bounds(buffer->bounds(), read, number);
    read_blocks(buffer->most_blocks(), read, number);
    builder_.add_buffer(std::move(read));
  });
}

void Reader::read_bounds(const flatbuffers::Vector<double>* bounds, Buffer& buffer,
                         std::uint32_t number) {
  if (bounds == nullptr) return;
  check_range(bounds->size(), 2, 2,
              [&] { return fmt::format("the number of bounds of buffer {}", number); });
  if (error_) return;
  spend(2 * sizeof(double));
  // The verifier looks at the alignment of the vector's length, not at that of what is behind it.
  std::memcpy(&buffer.least, bounds->Data(), sizeof(double));
  std::memcpy(&buffer.most, bounds->Data() + sizeof(double), sizeof(double));
}

void Reader::read_blocks(const flatbuffers::Vector<std::uint32_t>* blocks, Buffer& buffer,
                         std::uint32_t number) {
  if (blocks == nullptr) return;
  check_range(blocks->size(), 3, 3,
              [&] { return fmt::format("the number of dimensions of buffer {}", number); });
  if (error_) return;
  spend(kGridBytes);
  std::memcpy(buffer.most_blocks.data(), blocks->Data(), kGridBytes);
}

Access Reader::read_access(const file::Access& access, std::uint32_t step) {
  check_range(access.mode(), static_cast<std::uint8_t>(AccessMode::kRead),
              static_cast<std::uint8_t>(AccessMode::kReadWrite),
              [&] { return fmt::format("the mode of an access of step {}", step); });
  check_range(count_of(access.dims()), 0, kMaxViewDims,
              [&] { return fmt::format("the number of dims in a view of step {}", step); });
  spend(count_of(access.dims()) * sizeof(file::Dim));
  Access read{.mode = static_cast<AccessMode>(access.mode()),
              .view = {.buffer = BufferId{access.buffer()},
                       .offset_bytes = access.offset_bytes(),
                       .item_bytes = access.item_bytes(),
                       .dims = {}}};
  for (std::uint32_t i = 0; i < count_of(access.dims()) && !error_; ++i) {
    read.view.dims.push_back(copy_dim(*access.dims(), i));
  }
  return read;
}

Step Reader::read_step(const file::Step& step, std::uint32_t number) {
  check_range(step.kind(), 0, static_cast<std::uint8_t>(StepKind::kSynchronize),
              [&] { return fmt::format("the kind of step {}", number); });
  Step read{.kind = static_cast<StepKind>(step.kind()),
            .stream = StreamId{step.stream()},
            .name = read_text(step.name()),
            .source = read_text(step.source()),
            .accesses = {},
            .event = EventId{step.event()},
            .fill_byte = step.fill_byte()};
  each(step.accesses(), [&](const file::Access* access, auto) {
    read.accesses.push_back(read_access(*access, number));
  });
  return read;
}

void Reader::read_steps() {
  each(plan_.steps(), [this](const file::Step* step, std::uint32_t number) {
    builder_.add_step(read_step(*step, number));
  });
}

// No number in here is looked at: make_plan_from_parts checks them all against the program.
PlanParts Reader::read_parts() const {
  PlanParts parts;
  for (std::uint32_t i = 0; i < count_of(plan_.order()); ++i) {
    parts.order.push_back(StepId{plan_.order()->Get(i)});
  }
  for (std::uint32_t i = 0; i < count_of(plan_.waits()); ++i) {
    const file::Wait& wait = *plan_.waits()->Get(i);
    parts.waits.push_back({.step = StepId{wait.step()}, .on = StepId{wait.on()}});
  }
  for (std::uint32_t i = 0; i < count_of(plan_.buffers()); ++i) {
    parts.arena.offsets.push_back(plan_.buffers()->Get(i)->arena_offset());
  }
  parts.arena.size_bytes = plan_.arena_size_bytes();
  parts.arena.lower_bound_bytes = plan_.arena_lower_bound_bytes();
  parts.arena.naive_bytes = plan_.arena_naive_bytes();
  return parts;
}

Result<Plan> Reader::read() {
  check_counts();
  read_names();
  read_buffers();
  read_steps();
  if (error_) return *error_;
  Result<Program> program = builder_.build();
  if (!program) return program.error();
  return make_plan_from_parts(*program, read_parts());
}

// Answers the root table, once every offset below it is known to stay inside.
Result<const file::Plan*> verify(std::span<const std::uint8_t> payload) {
  // The smallest table and the offset that names it take 8 bytes, so no honest file has more.
  flatbuffers::Verifier::Options options;
  options.max_depth = 8;
  options.max_tables = static_cast<flatbuffers::uoffset_t>(payload.size() / 8 + 1);
  flatbuffers::Verifier verifier(payload.data(), payload.size(), options);
  if (!file::VerifyPlanBuffer(verifier)) {
    return malformed(
        "the payload is no valid FlatBuffer: an offset, a length or a text in it is "
        "wrong. Write the plan again.");
  }
  return file::GetPlan(payload.data());
}

Result<Plan> read_aligned(std::span<const std::uint8_t> payload) {
  Result<const file::Plan*> root = verify(payload);
  if (!root) return root.error();
  return Reader(**root, payload.size()).read();
}

}  // namespace

Result<Plan> read_plan_payload(std::span<const std::uint8_t> payload) {
  if (payload.size() < 8 || payload.size() > kMaxPlanPayloadBytes) {
    return malformed(fmt::format("the payload has {} bytes, outside 8 to {}", payload.size(),
                                 kMaxPlanPayloadBytes));
  }
  if (!file::PlanBufferHasIdentifier(payload.data())) {
    return malformed(fmt::format("the payload's identifier is '{}', a plan's is '{}'",
                                 printable({payload.data() + 4, 4}), file::PlanIdentifier()));
  }
  if (reinterpret_cast<std::uintptr_t>(payload.data()) % alignof(std::uint64_t) == 0) {
    return read_aligned(payload);
  }
  std::vector<std::uint64_t> aligned(payload.size() / sizeof(std::uint64_t) + 1);
  auto* bytes = reinterpret_cast<std::uint8_t*>(aligned.data());
  std::copy(payload.begin(), payload.end(), bytes);
  return read_aligned({bytes, payload.size()});
}

}  // namespace anabranch
