// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_file.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/plan_file_fuzz.cpp"  // NOLINT: the fuzzer's entry point is run here, see below
#include "plan/plan_generated.h"
#include "plan/random_program.h"

namespace anabranch {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

// Every kind of step, every role, both origins, a strided view, a wait and an arena.
Program full_program() {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const EventId event = builder.add_event("half way");
  const BufferId x = builder.add_buffer({"x", Role::kInput, 4096, 64});
  const BufferId w = builder.add_buffer({"weights", Role::kConstant, 4096, 256});
  const BufferId t = builder.add_buffer({"scratch", Role::kTemporary, 1000, 64});
  const BufferId u = builder.add_buffer({"scratch2", Role::kTemporary, 4096, 64});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 4096, 64});
  builder.fill(kAmbient, builder.whole(t), 0x5a);
  builder.add_step({.kind = StepKind::kCompute,
                    .stream = side,
                    .name = "matmul",
                    .source = "model.py:88",
                    .accesses = {builder.read(x), builder.read(w), builder.write(u)}});
  builder.record_event(side, event);
  builder.wait_event(kAmbient, event);
  const View odd{.buffer = u, .offset_bytes = 4088, .item_bytes = 8, .dims = {{16, -32}, {2, -16}}};
  builder.add_step({.kind = StepKind::kHost,
                    .stream = kAmbient,
                    .name = "mix",
                    .accesses = {{AccessMode::kRead, odd}, builder.read_write(t)}});
  builder.copy(kAmbient, builder.whole(y), builder.whole(u));
  builder.synchronize(builder.add_stream("users", StreamOrigin::kUserSynchronised, -3));
  builder.synchronize(side);
  Result<Program> program = builder.build();
  EXPECT_TRUE(program.ok()) << (program ? "" : program.error().message());
  return *program;
}

Plan plan_of(const Program& program) {
  Result<Plan> plan = make_plan(program);
  EXPECT_TRUE(plan.ok()) << (plan ? "" : plan.error().message());
  return *plan;
}

const Plan& full_plan() {
  static const Plan plan = plan_of(full_program());
  return plan;
}

void expect_equal(const Step& a, const Step& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.stream, b.stream);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.event, b.event);
  EXPECT_EQ(a.fill_byte, b.fill_byte);
  ASSERT_EQ(a.accesses.size(), b.accesses.size());
  for (std::size_t i = 0; i < a.accesses.size(); ++i) {
    EXPECT_EQ(a.accesses[i].mode, b.accesses[i].mode);
    EXPECT_EQ(a.accesses[i].view, b.accesses[i].view);
  }
}

void expect_equal(const Program& a, const Program& b) {
  EXPECT_THAT(a.streams(), testing::ElementsAreArray(b.streams()));
  EXPECT_THAT(a.origins(), testing::ElementsAreArray(b.origins()));
  EXPECT_THAT(a.priorities(), testing::ElementsAreArray(b.priorities()));
  EXPECT_THAT(a.events(), testing::ElementsAreArray(b.events()));
  ASSERT_EQ(a.buffers().size(), b.buffers().size());
  for (std::size_t i = 0; i < a.buffers().size(); ++i) {
    const Buffer &one = a.buffers()[i], &other = b.buffers()[i];
    EXPECT_EQ(std::tie(one.name, one.role, one.size_bytes, one.alignment, one.number, one.least,
                       one.most, one.most_blocks),
              std::tie(other.name, other.role, other.size_bytes, other.alignment, other.number,
                       other.least, other.most, other.most_blocks));
  }
  ASSERT_EQ(a.steps().size(), b.steps().size());
  for (std::size_t i = 0; i < a.steps().size(); ++i) expect_equal(a.steps()[i], b.steps()[i]);
}

void expect_equal(const Plan& a, const Plan& b) {
  expect_equal(a.program(), b.program());
  EXPECT_THAT(a.order(), testing::ElementsAreArray(b.order()));
  EXPECT_THAT(a.waits(), testing::ElementsAreArray(b.waits()));
  EXPECT_THAT(a.exits(), testing::ElementsAreArray(b.exits()));
  EXPECT_EQ(a.arena().size_bytes, b.arena().size_bytes);
  EXPECT_EQ(a.arena().lower_bound_bytes, b.arena().lower_bound_bytes);
  EXPECT_EQ(a.arena().naive_bytes, b.arena().naive_bytes);
  EXPECT_EQ(a.arena().offsets, b.arena().offsets);
}

Status status_of(const Bytes& bytes) {
  const Result<Plan> plan = read_plan(bytes);
  return plan ? Status() : plan.error();
}

TEST(PlanFile, ReadsBackWhatWasWritten) {
  const Result<Plan> again = read_plan(write_plan(full_plan()));
  ASSERT_TRUE(again.ok()) << again.error().message();
  expect_equal(full_plan(), *again);
}

TEST(PlanFile, WritesEqualPlansAsEqualBytes) {
  EXPECT_EQ(write_plan(full_plan()), write_plan(plan_of(full_program())));
  EXPECT_EQ(write_plan(full_plan()), write_plan(*read_plan(write_plan(full_plan()))));
}

TEST(PlanFile, HoldsAnEmptyProgram) {
  const Plan empty = plan_of(*ProgramBuilder().build());
  const Result<Plan> again = read_plan(write_plan(empty));
  ASSERT_TRUE(again.ok()) << again.error().message();
  expect_equal(empty, *again);
}

// Of the version that has numbers; what has none stays of the one that older libraries read.
TEST(PlanFile, HoldsNumbersAndTheirBounds) {
  EXPECT_EQ(write_plan(full_plan())[8], 1);
  ProgramBuilder builder;
  builder.compute(kAmbient, "step",
                  {builder.read(builder.add_number("rate", NumberKind::kF32, 0, 1)),
                   builder.read(builder.add_number("wide", NumberKind::kF64)),
                   builder.read(builder.add_number("count", NumberKind::kI32, -3)),
                   builder.read(builder.add_number("half", NumberKind::kBF16))});
  const Plan plan = plan_of(*builder.build());
  const Bytes file = write_plan(plan);
  EXPECT_EQ(file[8], 2);
  const Result<Plan> again = read_plan(file);
  ASSERT_TRUE(again.ok()) << again.error().message();
  expect_equal(plan, *again);
  EXPECT_EQ(write_plan(*again), file);
}

// Of the version that has tables, with or without numbers.
TEST(PlanFile, HoldsTables) {
  for (const bool has_numbers : {false, true}) {
    ProgramBuilder builder;
    std::vector<Access> accesses{builder.read(builder.add_table("lengths", 256)),
                                 builder.read(builder.add_table("pages", kMaxTableBytes, 512))};
    if (has_numbers) {
      accesses.push_back(builder.read(builder.add_number("rate", NumberKind::kF32, 0, 1)));
    }
    builder.compute(kAmbient, "step", std::move(accesses));
    const Plan plan = plan_of(*builder.build());
    const Bytes file = write_plan(plan);
    EXPECT_EQ(file[8], 3);
    const Result<Plan> again = read_plan(file);
    ASSERT_TRUE(again.ok()) << again.error().message();
    expect_equal(plan, *again);
    EXPECT_EQ(write_plan(*again), file);
  }
}

TEST(PlanFile, HoldsGrids) {
  ProgramBuilder builder;
  builder.compute(kAmbient, "step",
                  {builder.read(builder.add_grid("widest", kMaxGrid[0], kMaxGrid[1], kMaxGrid[2])),
                   builder.read(builder.add_grid("blocks", 132))});
  const Plan plan = plan_of(*builder.build());
  const Bytes file = write_plan(plan);
  EXPECT_EQ(file[8], 3);
  const Result<Plan> again = read_plan(file);
  ASSERT_TRUE(again.ok()) << again.error().message();
  expect_equal(plan, *again);
  EXPECT_EQ(write_plan(*again), file);
}

TEST(PlanFile, ReadsRandomPlansBackAsTheyWere) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const RandomProgramOptions options{.steps = 60, .streams = 5, .syncs = 5};
    const Plan plan = plan_of(random_program(seed, options));
    const Bytes file = write_plan(plan);
    const Result<Plan> again = read_plan(file);
    ASSERT_TRUE(again.ok()) << seed << ": " << again.error().message();
    expect_equal(plan, *again);
    EXPECT_EQ(write_plan(*again), file) << seed;
  }
}

TEST(PlanFile, ReadsFromAnyAddress) {
  const Bytes file = write_plan(full_plan());
  for (std::size_t shift = 1; shift < 8; ++shift) {
    Bytes moved(shift);
    moved.insert(moved.end(), file.begin(), file.end());
    EXPECT_TRUE(read_plan(std::span<const std::uint8_t>(moved).subspan(shift)).ok());
  }
}

TEST(PlanFile, RefusesAFileCutAnywhere) {
  const Bytes file = write_plan(full_plan());
  for (std::size_t size = 0; size < file.size(); ++size) {
    const Status status = status_of(Bytes(file.begin(), file.begin() + size));
    EXPECT_EQ(status.code(), StatusCode::kFileMalformed) << size;
    EXPECT_THAT(status.message(), HasSubstr("cut short")) << size;
  }
}

TEST(PlanFile, RefusesEveryFlippedBit) {
  Bytes file = write_plan(full_plan());
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    const auto mask = static_cast<std::uint8_t>(1u << (bit % 8));
    file[bit / 8] ^= mask;
    const bool in_version = bit / 8 >= 8 && bit / 8 < 12;
    ASSERT_EQ(status_of(file).code(),
              in_version ? StatusCode::kFileVersion : StatusCode::kFileMalformed)
        << "bit " << bit % 8 << " of byte " << bit / 8;
    file[bit / 8] ^= mask;
  }
}

TEST(PlanFile, RefusesAFutureVersionWithBothNumbers) {
  Bytes file = write_plan(full_plan());
  file[8] = 7;
  EXPECT_THAT(status_of(file).message(),
              HasSubstr("format version 7, this library reads versions 1 to 3"));
}

TEST(PlanFile, RefusesAVersionThatIsNotThatOfItsContents) {
  Bytes file = write_plan(full_plan());
  file[8] = 2;
  EXPECT_THAT(status_of(file).message(),
              HasSubstr("the header says format version 2, what follows is of version 1"));
}

TEST(PlanFile, RefusesTrailingBytes) {
  Bytes file = write_plan(full_plan());
  file.push_back(0);
  EXPECT_THAT(status_of(file).message(), HasSubstr("appended to"));
}

TEST(PlanFile, RefusesAnotherFormatByItsFirstBytes) {
  const std::string text = "{\"traceEvents\": [], \"padding\": \"................\"}";
  EXPECT_THAT(status_of(Bytes(text.begin(), text.end())).message(),
              HasSubstr("the file begins with '{\"traceE', a plan file with 'ANBRPLAN'"));
}

TEST(PlanFile, RefusesAPayloadOfAnotherKind) {
  Bytes payload = write_plan_payload(full_plan());
  payload[4] = 'X';
  EXPECT_THAT(status_of(seal_plan_payload(payload)).message(), HasSubstr("'XNBP'"));
}

std::string scratch_path(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / ("anabranch_plan_file_" + name)).string();
}

TEST(PlanFile, GoesThroughAFile) {
  const std::string path = scratch_path("whole.plan");
  ASSERT_TRUE(write_plan_file(full_plan(), path).ok());
  const Result<Plan> again = read_plan_file(path);
  ASSERT_TRUE(again.ok()) << again.error().message();
  expect_equal(full_plan(), *again);
  std::filesystem::remove(path);
}

TEST(PlanFile, NamesTheFileThatCannotBeRead) {
  const Status missing = read_plan_file("/no/such.plan").error();
  EXPECT_EQ(missing.message(), "read plan file '/no/such.plan': No such file or directory [E0501]");
  EXPECT_EQ(read_plan_file(testing::TempDir()).error().code(), StatusCode::kFileUnreadable);

  const std::string path = scratch_path("cut.plan");
  std::ofstream(path) << "ANBRPLAN";
  const Status cut = read_plan_file(path).error();
  EXPECT_EQ(cut.code(), StatusCode::kFileMalformed);
  EXPECT_EQ(cut.message(),
            "read plan file '" + path +
                "': the file has 8 bytes, its header alone has 32: it was cut short [E0502]");
  std::filesystem::remove(path);
}

TEST(PlanFile, RefusesToWriteWhatItCouldNotRead) {
  ProgramBuilder builder;
  builder.add_stream(std::string(kMaxFileTextBytes + 1, 's'));
  const Plan plan = plan_of(*builder.build());
  EXPECT_TRUE(write_plan(plan).empty());
  const Status status = write_plan_file(plan, scratch_path("long.plan"));
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), HasSubstr("65536"));
}

TEST(PlanFile, LeavesNothingBehindWhereItCannotWrite) {
  EXPECT_EQ(write_plan_file(full_plan(), "/no/such/folder/x.plan").code(),
            StatusCode::kFileUnreadable);
  const std::string folder = scratch_path("folder");
  std::filesystem::create_directory(folder);
  EXPECT_EQ(write_plan_file(full_plan(), folder).code(), StatusCode::kFileUnreadable);
  std::filesystem::remove(folder);
}

// Payloads that no writer of ours makes, each one change away from this: two streams, a write of
// buffer 0 on each of them, the second waiting for the first.
struct Crafted {
  std::uint8_t role = 3, kind = 2, mode = 2;
  std::size_t dims = 0, streams = 1, events = 0;
  std::vector<std::uint8_t> origins{};     // none: as files had it before there were any
  std::vector<std::int32_t> priorities{};  // likewise
  std::uint8_t number = 0;
  std::vector<double> bounds{};
  std::vector<std::uint32_t> blocks{};
  std::string name = "t";
  std::uint64_t arena_offset = 0, arena_size_bytes = 64;
  std::vector<std::uint32_t> order{0, 1};
  std::vector<file::Wait> waits{{1, 0}};

  Bytes make() const;
};

Bytes Crafted::make() const {
  flatbuffers::FlatBufferBuilder out;
  const auto text = out.CreateString(name);
  const auto strings = [&](std::size_t count) {
    return out.CreateVector(std::vector<flatbuffers::Offset<flatbuffers::String>>(count, text));
  };
  const auto stream_names = strings(streams), event_names = strings(events);
  const auto all_bounds = bounds.empty() ? 0 : out.CreateVector(bounds);
  const auto all_blocks = blocks.empty() ? 0 : out.CreateVector(blocks);
  const auto buffer =
      file::CreateBuffer(out, text, role, 64, 64, arena_offset, number, all_bounds, all_blocks);
  const auto shape = out.CreateVectorOfStructs(std::vector<file::Dim>(dims, file::Dim(1, 8)));
  const auto access = file::CreateAccess(out, mode, 0, 0, 64, shape);
  const auto accesses = out.CreateVector(&access, 1);
  std::vector<flatbuffers::Offset<file::Step>> steps;
  for (std::uint32_t stream : {0u, 1u}) {
    steps.push_back(file::CreateStep(out, kind, stream, text, 0, accesses));
  }
  const auto buffers = out.CreateVector(&buffer, 1);
  const auto all_steps = out.CreateVector(steps);
  const auto all_order = out.CreateVector(order);
  const auto all_waits = out.CreateVectorOfStructs(waits);
  const auto all_origins = origins.empty() ? 0 : out.CreateVector(origins);
  const auto all_priorities = priorities.empty() ? 0 : out.CreateVector(priorities);
  out.Finish(file::CreatePlan(out, stream_names, event_names, buffers, all_steps, all_order,
                              all_waits, arena_size_bytes, arena_size_bytes, arena_size_bytes,
                              all_origins, all_priorities),
             file::PlanIdentifier());
  return seal_plan_payload({out.GetBufferPointer(), out.GetSize()});
}

TEST(PlanFile, TakesTheCraftedPayloadAsItStands) {
  const Status status = status_of(Crafted{}.make());
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(PlanFile, StreamsOfAFileWithoutOriginsArePlaced) {
  const Result<Plan> plan = read_plan(Crafted{}.make());
  EXPECT_THAT(plan->program().origins(),
              testing::ElementsAre(StreamOrigin::kPlaced, StreamOrigin::kPlaced));
  const Result<Plan> newer = read_plan(Crafted{.origins = {1}}.make());
  EXPECT_EQ(newer->program().origins()[1], StreamOrigin::kUserSynchronised);
}

TEST(PlanFile, OfPlacedStreamsAloneHasTheBytesItHadWithoutOrigins) {
  const Bytes file = write_plan(*read_plan(Crafted{.origins = {0}}.make()));
  EXPECT_EQ(file, write_plan(*read_plan(Crafted{}.make())));
}

TEST(PlanFile, StreamsOfAFileWithoutPrioritiesHaveNone) {
  EXPECT_THAT(read_plan(Crafted{}.make())->program().priorities(), testing::Each(0));
  const Result<Plan> newer = read_plan(Crafted{.priorities = {-1}}.make());
  EXPECT_THAT(newer->program().priorities(), testing::ElementsAre(0, -1));
  const Bytes file = write_plan(*read_plan(Crafted{.priorities = {0}}.make()));
  EXPECT_EQ(file, write_plan(*read_plan(Crafted{}.make())));
}

TEST(PlanFile, RefusesAPlanWithARace) {
  EXPECT_EQ(status_of(Crafted{.waits = {}}.make()).code(), StatusCode::kRace);
}

TEST(PlanFile, RefusesAPlanThatDoesNotFitItsProgram) {
  EXPECT_EQ(status_of(Crafted{.order = {0}}.make()).code(), StatusCode::kPlanInvalid);
  EXPECT_EQ(status_of(Crafted{.order = {0, 0}}.make()).code(), StatusCode::kPlanInvalid);
  EXPECT_EQ(status_of(Crafted{.order = {0, 4'000'000'000}}.make()).code(),
            StatusCode::kPlanInvalid);
  EXPECT_EQ(status_of(Crafted{.waits = {{1, 9}}}.make()).code(), StatusCode::kPlanInvalid);
  EXPECT_EQ(status_of(Crafted{.arena_offset = ~0ull - 64}.make()).code(), StatusCode::kPlanInvalid);
  EXPECT_EQ(status_of(Crafted{.arena_size_bytes = 63}.make()).code(), StatusCode::kPlanInvalid);
}

TEST(PlanFile, RefusesNumbersBeyondTheirLimitWithBothValues) {
  const std::pair<Crafted, const char*> cases[] = {
      {{.role = 7}, "the role of buffer 0 is 7, outside 0 to 6"},
      {{.kind = 7}, "the kind of step 0 is 7, outside 0 to 6"},
      {{.mode = 0}, "the mode of an access of step 0 is 0, outside 1 to 3"},
      {{.mode = 4}, "the mode of an access of step 0 is 4, outside 1 to 3"},
      {{.dims = 33}, "the number of dims in a view of step 0 is 33, outside 0 to 32"},
      {{.streams = 1024}, "the number of side streams is 1024, outside 0 to 1023"},
      {{.origins = {2}}, "the origin of stream 1 is 2, outside 0 to 1"},
      {{.origins = {1, 1}}, "the number of origins is 2, outside 1 to 1"},
      {{.priorities = {1, 1}}, "the number of priorities is 2, outside 1 to 1"},
      {{.number = 6}, "the kind of number of buffer 0 is 6, outside 0 to 5"},
      {{.bounds = {1}}, "the number of bounds of buffer 0 is 1, outside 2 to 2"},
      {{.blocks = {1, 1}}, "the number of dimensions of buffer 0 is 2, outside 3 to 3"},
      {{.name = std::string(65537, 'a')}, "the length of a text is 65537, outside 0 to 65536"},
      {{.order = {0, 1, 1}}, "the number of steps in the order is 3, outside 0 to 2"}};
  for (const auto& [crafted, message] : cases) {
    const Status status = status_of(crafted.make());
    EXPECT_EQ(status.code(), StatusCode::kFileMalformed) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
}

TEST(PlanFile, RefusesASmallFileThatAsksForMuchMemory) {
  const Status status = status_of(Crafted{.events = 500, .name = std::string(60000, 'a')}.make());
  EXPECT_EQ(status.code(), StatusCode::kFileMalformed);
  EXPECT_THAT(status.message(), HasSubstr("the same bytes serve several texts"));
}

// The fuzzer aborts when a promise breaks, so that reaching the end is the assertion.
void fuzz_once(const Bytes& bytes) { LLVMFuzzerTestOneInput(bytes.data(), bytes.size()); }

TEST(PlanFileFuzz, KeepsItsPromisesOverTheCorpus) {
  const auto folder = std::filesystem::path(__FILE__).parent_path() / "plan_file_corpus";
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    fuzz_once(Bytes(std::istreambuf_iterator<char>(in), {}));
    ++count;
  }
  EXPECT_GE(count, 5u) << folder;
}

TEST(PlanFileFuzz, KeepsItsPromisesOverMutationsOfPayloads) {
  std::mt19937_64 random(20260801);
  const Bytes seeds[] = {write_plan_payload(full_plan()),
                         write_plan_payload(*read_plan(Crafted{}.make()))};
  for (int round = 0; round < 4000; ++round) {
    Bytes bytes = seeds[round % 2];
    for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] ^= static_cast<std::uint8_t>(1u << (random() % 8));
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    fuzz_once(bytes);
  }
}

}  // namespace
}  // namespace anabranch
