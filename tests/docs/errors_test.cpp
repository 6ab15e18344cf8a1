// SPDX-License-Identifier: Apache-2.0
// Every sample message of docs/errors.md is one that the core gives, word for word: each code is
// provoked here, as a user might provoke it, and compared with its section.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "anabranch/anabranch.h"
#include "anabranch/experimental/tape.h"

namespace anabranch {
namespace {

// x -> a (stream "side") -> y (ambient): the program that all cases vary.
struct Sample {
  ProgramBuilder builder;
  StreamId side = builder.add_stream("side");
  BufferId x = builder.add_buffer({.name = "x", .role = Role::kInput, .size_bytes = 4096});
  BufferId a = builder.add_buffer({.name = "a", .size_bytes = 4096});
  BufferId y = builder.add_buffer({.name = "y", .role = Role::kOutput, .size_bytes = 4096});

  void add(StreamId stream, std::string name, std::string source, std::vector<Access> accesses) {
    builder.add_step({.stream = stream,
                      .name = std::move(name),
                      .source = std::move(source),
                      .accesses = std::move(accesses)});
  }
  void add_steps() {
    add(side, "gelu", "model.py:88", {builder.write(a), builder.read(x)});
    add(kAmbient, "linear", "model.py:89", {builder.write(y), builder.read(a)});
  }
};

Program sample_program() {
  Sample sample;
  sample.add_steps();
  return *sample.builder.build();
}

PlanParts parts_of(const Plan& plan) {
  return {{plan.order().begin(), plan.order().end()},
          {plan.waits().begin(), plan.waits().end()},
          plan.arena()};
}

std::int32_t succeed(void*, const RegionCall*) { return 0; }
std::int32_t fail(void*, const RegionCall* call) {
  std::snprintf(call->error, call->error_bytes, "the matrix is singular");
  return 1;
}
// Launches the recording that it is a part of.
struct Again {
  const Recording* recording = nullptr;
  std::span<const Binding> bindings;
  Status answer{};
};
std::int32_t launch_again(void* context, const RegionCall*) {
  auto* again = static_cast<Again*>(context);
  if (Result<Ticket> ticket = launch(*again->recording, again->bindings); !ticket) {
    again->answer = ticket.error();
  }
  return 0;
}

Result<Recording> record_sample(Region gelu) {
  return record(*make_plan(sample_program()), Device::host(),
                {{"gelu", gelu}, {"linear", {succeed, nullptr}}});
}

struct alignas(64) Memory {
  std::byte x[4096];
  std::byte y[4096];
  std::vector<Binding> bindings() { return {{x, sizeof x}, {y, sizeof y}}; }
};

Status provoke_invalid_program() {
  Sample sample;
  sample.builder.add_stream("side");
  return sample.builder.build().error();
}
Status provoke_view_outside() {
  Sample sample;
  const View row{.buffer = sample.x, .offset_bytes = 4000, .item_bytes = 4, .dims = {{32, 4}}};
  sample.add(kAmbient, "sum", "model.py:12",
             {sample.builder.write(sample.y), {AccessMode::kRead, row}});
  return sample.builder.build().error();
}
Status provoke_read_before_write() {
  Sample sample;
  sample.add(kAmbient, "linear", "model.py:89",
             {sample.builder.write(sample.y), sample.builder.read(sample.a)});
  return sample.builder.build().error();
}
Status provoke_event_never_recorded() {
  Sample sample;
  sample.builder.wait_event(sample.side, sample.builder.add_event("weights ready"));
  return sample.builder.build().error();
}
Status provoke_unknown_id() {
  Sample sample;
  sample.builder.synchronize(StreamId{7});
  return sample.builder.build().error();
}
Status provoke_role() {
  Sample sample;
  const BufferId w =
      sample.builder.add_buffer({.name = "weight", .role = Role::kConstant, .size_bytes = 4096});
  sample.add(kAmbient, "add_", "model.py:40", {sample.builder.read_write(w)});
  return sample.builder.build().error();
}
// Pieces of eight dims whose strides have no common measure.
Status provoke_too_many_comparisons() {
  Sample sample;
  std::uint64_t number = 1;
  const auto next = [&number](std::uint64_t end) {
    number = number * 6364136223846793005u + 1442695040888963407u;
    return (number >> 33) % end;
  };
  const BufferId a = sample.builder.add_buffer(
      {.name = "a", .role = Role::kOutput, .size_bytes = std::uint64_t{1} << 30});
  for (int i = 0; i < 400; ++i) {
    View view{.buffer = a, .offset_bytes = next(100'000), .item_bytes = 1};
    for (std::uint64_t dim = 0; dim < 8; ++dim) {
      const std::uint64_t stride = 2 + next(1000) * (1 + 7 * dim * dim);
      view.dims.push_back({2 + next(2), static_cast<std::int64_t>(stride)});
    }
    sample.add(kAmbient, "scatter", "model.py:9", {{AccessMode::kWrite, view}});
  }
  return make_plan(*sample.builder.build()).error();
}
Status provoke_limit() {
  Sample sample;
  sample.builder.add_buffer({.name = "cache", .size_bytes = kMaxBufferBytes + 1});
  return sample.builder.build().error();
}
Status provoke_race() {
  PlanParts parts = parts_of(*make_plan(sample_program()));
  parts.waits.clear();
  return make_plan_from_parts(sample_program(), parts).error();
}
Status provoke_invalid_plan() {
  PlanParts parts = parts_of(*make_plan(sample_program()));
  parts.order.pop_back();
  return make_plan_from_parts(sample_program(), parts).error();
}
Status provoke_unsynchronised() {
  Sample sample;
  const StreamId users = sample.builder.add_stream("A", StreamOrigin::kUserSynchronised);
  sample.builder.synchronize(kAmbient);
  sample.add(kAmbient, "linear", "model.py:89",
             {sample.builder.write(sample.y), sample.builder.read(sample.x)});
  sample.add(users, "gelu_", "model.py:90", {sample.builder.read_write(sample.x)});
  return make_plan(*sample.builder.build()).error();
}
Status provoke_missing_region() {
  return record(*make_plan(sample_program()), Device::host(), {{"gelu", {succeed, nullptr}}})
      .error();
}
Status provoke_invalid_tape() {
  tape::TapeBuilder builder;
  builder.call("cpp_fused_gelu_0", nullptr, {}, false);
  return builder.finish().error();
}
Status provoke_busy() {
  Memory memory;
  const std::vector<Binding> bindings = memory.bindings();
  Again again{.bindings = bindings};
  const Result<Recording> recording = record_sample({launch_again, &again});
  again.recording = &*recording;
  EXPECT_TRUE(launch(*recording, bindings).ok());
  return again.answer;
}
Status provoke_bad_binding() {
  Memory memory;
  std::vector<Binding> bindings = memory.bindings();
  bindings[0].size_bytes = 2048;
  return launch(*record_sample({succeed, nullptr}), bindings).error();
}
Status provoke_refused_stream() {
  const Result<Recording> recording = record_sample({succeed, nullptr});
  Memory memory;
  return launch(*recording, memory.bindings(), CudaStream(reinterpret_cast<void*>(0x7f00))).error();
}
Status provoke_failed_step() {
  Memory memory;
  return launch(*record_sample({fail, nullptr}), memory.bindings()).error();
}
Status provoke_unreadable_file() { return read_plan_file("no/such.plan").error(); }
Status provoke_malformed_file() {
  std::vector<std::uint8_t> bytes = write_plan(*make_plan(sample_program()));
  bytes.resize(bytes.size() - 100);
  return read_plan(bytes).error();
}
Status provoke_version() {
  std::vector<std::uint8_t> bytes = write_plan(*make_plan(sample_program()));
  bytes[8] = 9;
  return read_plan(bytes).error();
}

// Without those that no user can provoke at will: see docs/errors.md.
const std::map<StatusCode, std::function<Status()>>& provocations() {
  static const std::map<StatusCode, std::function<Status()>> all{
      {StatusCode::kProgramInvalid, provoke_invalid_program},
      {StatusCode::kViewOutsideBuffer, provoke_view_outside},
      {StatusCode::kReadBeforeWrite, provoke_read_before_write},
      {StatusCode::kEventNeverRecorded, provoke_event_never_recorded},
      {StatusCode::kUnknownId, provoke_unknown_id},
      {StatusCode::kRoleForbidsAccess, provoke_role},
      {StatusCode::kLimitExceeded, provoke_limit},
      {StatusCode::kRace, provoke_race},
      {StatusCode::kPlanInvalid, provoke_invalid_plan},
      {StatusCode::kUnsynchronised, provoke_unsynchronised},
      {StatusCode::kTooManyComparisons, provoke_too_many_comparisons},
      {StatusCode::kRegionMissing, provoke_missing_region},
      {StatusCode::kTapeInvalid, provoke_invalid_tape},
      {StatusCode::kBusy, provoke_busy},
      {StatusCode::kBadBinding, provoke_bad_binding},
      {StatusCode::kStepFailed, provoke_failed_step},
      {StatusCode::kStreamRefused, provoke_refused_stream},
      {StatusCode::kFileUnreadable, provoke_unreadable_file},
      {StatusCode::kFileMalformed, provoke_malformed_file},
      {StatusCode::kFileVersion, provoke_version},
  };
  return all;
}

// The text block of a section of docs/errors.md.
std::string sample_on_page(const std::string& code) {
  std::ifstream file(ANABRANCH_ERRORS_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  const std::string fence = "```text\n";
  std::size_t begin = page.find("## " + code + " ");
  if (begin != std::string::npos) begin = page.find(fence, begin);
  if (begin == std::string::npos) return "no sample of " + code;
  begin += fence.size();
  return page.substr(begin, page.find("\n```", begin) - begin);
}

TEST(ErrorsPage, ShowsEachMessageAsTheCoreWordsIt) {
  for (const auto& [code, provoke] : provocations()) {
    const Status status = provoke();
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), sample_on_page(code_text(code)));
  }
}

}  // namespace
}  // namespace anabranch
