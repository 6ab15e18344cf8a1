// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "input.h"
#include "launch_times.h"
#include "numbers.h"
#include "trace_summary.h"

namespace anabranch::tool {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Shape {
  const char* last = "join";
  std::uint64_t bytes = 4096;
  bool parallel = true;
};

// Two steps side by side (or one after the other) and one that joins them.
Plan make_example(const Shape& shape = {}) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId x = builder.add_buffer({"x", Role::kInput, shape.bytes});
  const BufferId up = builder.add_buffer({"up", Role::kTemporary, shape.bytes});
  const BufferId down = builder.add_buffer({"down", Role::kTemporary, shape.bytes});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, shape.bytes});
  builder.compute(kAmbient, "up", {builder.read(x), builder.write(up)});
  builder.compute(shape.parallel ? side : kAmbient, "down", {builder.read(x), builder.write(down)});
  builder.compute(kAmbient, shape.last, {builder.read(up), builder.read(down), builder.write(y)});
  return *make_plan(*builder.build());
}

// A file in the test's folder, removed with it.
class File {
 public:
  explicit File(const std::string& name)
      : path_((std::filesystem::path(testing::TempDir()) / ("anabranch_tool_" + name)).string()) {}
  File(const std::string& name, const Plan& plan) : File(name) {
    EXPECT_TRUE(write_plan_file(plan, path_).ok());
  }
  File(const std::string& name, const std::string& text) : File(name) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  std::string text() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string path_;
};

template <typename T>
std::string message_of(const Result<T>& result) {
  return result ? "no error" : result.error().message();
}

TEST(Doctor, SaysForEverythingThatIsOffWhy) {
  const auto json = nlohmann::json::parse(doctor(/*as_json=*/true));
  for (const char* what :
       {"library", "compiler", "device host", "device cuda", "device code", "device sim"}) {
    ASSERT_TRUE(json.contains(what)) << what;
    EXPECT_FALSE(json[what]["detail"].get<std::string>().empty()) << what;
  }
  EXPECT_THAT(json["compiler"]["detail"].get<std::string>(), Not(HasSubstr("/")));
  EXPECT_TRUE(json["device host"]["on"]);
  const Result<CudaFacts> facts = describe_cuda();
  const bool has_gpu = facts && !facts->gpus.empty();
  EXPECT_EQ(json["device cuda"]["on"], has_gpu);
  EXPECT_THAT(json["device cuda"]["detail"].get<std::string>(),
              HasSubstr(facts ? "CUDA 1" : "no CUDA driver"));
  EXPECT_THAT(doctor(/*as_json=*/false), HasSubstr("device sim   off  for tests"));
}

TEST(Show, PrintsThePlanOfAPlanFile) {
  const File file("show.plan", make_example());
  const Result<std::string> text = show(file.path());
  ASSERT_TRUE(text.ok()) << message_of(text);
  EXPECT_EQ(*text, dump_plan(make_example()));
}

// The data of a page, as a browser reads it.
nlohmann::json data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(ShowPage, HoldsThePlanWhateverItsNamesAre) {
  const std::string name = "</script><img src=x onerror=alert(1)>";
  const Plan plan = make_example({.last = name.c_str()});
  const File file("<b>page.plan", plan);
  const Result<std::string> page = show_page(file.path());
  ASSERT_TRUE(page.ok()) << message_of(page);
  EXPECT_THAT(*page, Not(HasSubstr("<img")));
  const nlohmann::json data = data_of(*page);
  EXPECT_EQ(data["title"], file.path());
  EXPECT_EQ(data["graphs"][0]["plan"], nlohmann::json::parse(dump_plan_json(plan)));
  EXPECT_EQ(data["graphs"][0]["plan"]["steps"][2]["name"], name);
}

TEST(ShowPage, IsMadeOfAPlanFileAlone) {
  const File json("page.json", std::string("{\"traceEvents\": []}"));
  EXPECT_THAT(message_of(show_page(json.path())), HasSubstr("is no plan file"));
  EXPECT_THAT(message_of(show_page("/no/such")), HasSubstr("No such file"));
}

TEST(Show, RefusesWhatIsNeitherPlanNorTrace) {
  const File text("show.txt", std::string("hello, this is no plan file at all, nor JSON"));
  EXPECT_THAT(message_of(show(text.path())), HasSubstr("begins with 'hello, t'"));
  const File json("show.json", std::string("{\"a\": 1}"));
  EXPECT_THAT(message_of(show(json.path())), HasSubstr("JSON without events"));
  const File cut("cut.json", std::string("{\"traceEvents\": ["));
  EXPECT_THAT(message_of(show(cut.path())), HasSubstr("no valid JSON"));
  EXPECT_THAT(message_of(show("/no/such")), HasSubstr("No such file"));
}

TEST(Show, TakesAnyJsonForATraceWithoutTrippingOverIt) {
  for (const char* json : {"[]", "[1, null, {}, []]", R"([{"ph": 1, "name": [], "args": 3}])",
                           R"([{"ph": "M", "name": "thread_name", "args": 3}])",
                           R"([{"ph": "X", "ts": "a", "dur": 1e300, "tid": 1e300, "cat": "step"}])",
                           R"([{"ph": "M", "name": "thread_name", "tid": -1, "args": []}])"}) {
    EXPECT_TRUE(summarize_trace("x", json).ok()) << json;
  }
}

TEST(Check, AnswersOneLineForAGoodPlan) {
  const File file("check.plan", make_example());
  EXPECT_EQ(*check(file.path()),
            file.path() + ": ok, 3 steps on 2 streams, 1 waits, arena of 8192 bytes, no race\n");
}

// y = h, on a stream of the user's that waits for nobody; `other` changes h beside it.
Plan make_unsynchronised(bool with_mutation) {
  ProgramBuilder builder;
  const StreamId a = builder.add_stream("A", StreamOrigin::kUserSynchronised);
  const BufferId h = builder.add_buffer({"h", Role::kOutput, 64});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 64});
  builder.compute(kAmbient, "mm", {builder.write(h)});
  builder.compute(a, "add", {builder.read(h), builder.write(y)});
  PlanParts parts{{StepId{0}, StepId{1}}, {{StepId{1}, StepId{0}}}, {}};
  if (with_mutation) {
    builder.compute(kAmbient, "other", {builder.read_write(h)});
    parts.order.push_back(StepId{2});
    parts.waits.push_back({StepId{2}, StepId{1}});
  }
  parts.arena.offsets = {kNotInArena, kNotInArena};
  return *make_plan_from_parts(*builder.build(), parts);
}

TEST(Show, NamesTheStreamsThatTheUserSynchronises) {
  const File file("users.plan", make_unsynchronised(false));
  EXPECT_THAT(*show(file.path()), HasSubstr("synchronised by the user: A\n"));
}

TEST(Check, PrintsWhatTheUsersStreamsLeaveOpen) {
  const File file("reports.plan", make_unsynchronised(false));
  const Result<std::string> text = check(file.path());
  ASSERT_TRUE(text.ok()) << message_of(text);
  EXPECT_THAT(*text, HasSubstr("no race\nwarning: race-flow: `add` (step 1, stream A) reads `h`"));
  EXPECT_THAT(*text, HasSubstr("\nnote: unjoined: `add`"));
}

TEST(Check, RefusesReportsThatAreErrorsWithAllOfThem) {
  const File strict("strict.plan", make_unsynchronised(false));
  EXPECT_THAT(message_of(check(strict.path(), true)), HasSubstr("error: race-flow: `add`"));
  const File racy("racy.plan", make_unsynchronised(true));
  const std::string message = message_of(check(racy.path()));
  EXPECT_THAT(message, HasSubstr("warning: race-flow: `add`"));
  EXPECT_THAT(message, HasSubstr("error: race-mutation: `other`"));
  EXPECT_THAT(message, HasSubstr("[E0203]"));
}

TEST(Compare, SeesAnotherOriginOfAStream) {
  ProgramBuilder placed, users;
  placed.add_stream("A");
  users.add_stream("A", StreamOrigin::kUserSynchronised);
  const Comparison comparison =
      compare_plans(*make_plan(*placed.build()), *make_plan(*users.build()));
  EXPECT_THAT(comparison.text, HasSubstr("origins 1 differs"));
}

TEST(Compare, SeesAnotherPriorityOfAStream) {
  ProgramBuilder calm, urgent;
  calm.add_stream("A");
  urgent.add_stream("A", StreamOrigin::kPlaced, -1);
  const Plan plan = *make_plan(*urgent.build());
  EXPECT_THAT(compare_plans(*make_plan(*calm.build()), plan).text,
              HasSubstr("priorities 1 differs"));
  const File file("urgent.plan", plan);
  EXPECT_THAT(*show(file.path()), HasSubstr("priorities, the lower the more urgent: A -1\n"));
}

TEST(Check, RefusesAChangedFile) {
  const File good("good.plan", make_example());
  std::string bytes = good.text();
  bytes.back() ^= 1;
  const File bad("bad.plan", bytes);
  EXPECT_THAT(message_of(check(bad.path())), HasSubstr("the file was changed"));
}

TEST(Run, NamesTheRegionsItWasNotGiven) {
  const File file("run.plan", make_example());
  const std::string message = message_of(run(file.path(), {}));
  EXPECT_THAT(message, HasSubstr("E0301"));
  for (const char* region : {"'up'", "'down'", "'join'"}) EXPECT_THAT(message, HasSubstr(region));
}

TEST(Run, LaunchesWithNullRegions) {
  const File file("null.plan", make_example());
  for (const std::uint32_t lanes : {1u, 2u}) {
    const auto text = run(file.path(), {.null_regions = true, .launches = 7, .lanes = lanes});
    ASSERT_TRUE(text.ok()) << message_of(text);
    EXPECT_THAT(*text, HasSubstr("3 steps on " + std::to_string(lanes) + " lanes, 7 launches"));
    EXPECT_THAT(*text, HasSubstr("median"));
  }
  const auto none = run(file.path(), {.null_regions = true, .launches = 0});
  EXPECT_THAT(*none, HasSubstr("not launched"));
}

TEST(Run, GivesNumbersTablesAndGridsToNullRegions) {
  ProgramBuilder builder;
  builder.compute(kAmbient, "step",
                  {builder.read(builder.add_number("rate", NumberKind::kF32, 1, 2)),
                   builder.read(builder.add_number("wide", NumberKind::kF64, -2, -1)),
                   builder.read(builder.add_number("count", NumberKind::kI32, 0.5, 7)),
                   builder.read(builder.add_number("position", NumberKind::kI64)),
                   builder.read(builder.add_number("half", NumberKind::kBF16, 2, 4)),
                   builder.read(builder.add_table("lengths", 64)),
                   builder.read(builder.add_grid("blocks", 132, 4))});
  const File file("slots.plan", *make_plan(*builder.build()));
  const auto text = run(file.path(), {.null_regions = true, .launches = 2});
  ASSERT_TRUE(text.ok()) << message_of(text);
  EXPECT_THAT(*text, HasSubstr("2 launches"));
}

TEST(Run, RefusesAPlanThatAsksForMoreMemoryThanAllowed) {
  const File file("large.plan", make_example({.bytes = std::uint64_t{1} << 46}));
  const auto text = run(file.path(), {.null_regions = true});
  EXPECT_EQ(text.error().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(message_of(text), HasSubstr("--max-memory"));
}

TEST(TraceCommand, WritesATraceThatShowReads) {
  const File file("trace.plan", make_example());
  const File out("trace.json");
  const auto text = trace(file.path(), {.null_regions = true, .launches = 5}, out.path());
  ASSERT_TRUE(text.ok()) << message_of(text);
  EXPECT_THAT(*text, HasSubstr(" 0 dropped"));
  const nlohmann::json json = nlohmann::json::parse(out.text());
  const auto steps = std::ranges::count_if(json["traceEvents"], [](const nlohmann::json& event) {
    return event.contains("cat") && event["cat"] == "step";
  });
  EXPECT_EQ(steps, 15);
  const Result<std::string> summary = show(out.path());
  ASSERT_TRUE(summary.ok()) << message_of(summary);
  EXPECT_THAT(*summary, HasSubstr(": 5 launches, 5 waits, "));
  EXPECT_THAT(*summary, HasSubstr("ambient                    10 "));
  EXPECT_THAT(*summary, HasSubstr("side                        5 "));
}

TEST(TraceCommand, NamesTheFileItCannotWrite) {
  const File file("unwritten.plan", make_example());
  const auto text = trace(file.path(), {.null_regions = true, .launches = 1}, "/no/such/x.json");
  EXPECT_THAT(message_of(text), HasSubstr("write trace '/no/such/x.json': No such file"));
}

TEST(Compare, FindsEqualPlansEqual) {
  const Comparison comparison = compare_plans(make_example(), make_example());
  EXPECT_TRUE(comparison.equal) << comparison.text;
  EXPECT_THAT(comparison.text, Not(HasSubstr("differences")));
}

TEST(Compare, ShowsWhatDiffersInEachPart) {
  const Comparison name = compare_plans(make_example(), make_example({.last = "sum"}));
  EXPECT_FALSE(name.equal);
  EXPECT_THAT(name.text, HasSubstr("steps 2 differs"));
  EXPECT_THAT(name.text, HasSubstr("step 2 'join', step 2 'sum'"));
  EXPECT_THAT(name.text, HasSubstr("waits    equal"));

  const Comparison waits = compare_plans(make_example(), make_example({.parallel = false}));
  EXPECT_THAT(waits.text, HasSubstr("only in the first: step 2 'join' waits for step 1 'down'"));

  const Comparison arena = compare_plans(make_example(), make_example({.bytes = 8192}));
  EXPECT_THAT(arena.text, HasSubstr("bytes: 8192, 16384"));
  EXPECT_THAT(arena.text, HasSubstr("order    equal"));
}

TEST(Compare, ReadsBothFiles) {
  const File first("first.plan", make_example()), second("second.plan", make_example());
  EXPECT_TRUE(compare(first.path(), second.path())->equal);
  EXPECT_THAT(message_of(compare(first.path(), "/no/such")), HasSubstr("'/no/such'"));
}

TEST(Numbers, AreTakenWholeOrNotAtAll) {
  EXPECT_EQ(parse_count("0", 10), 0u);
  EXPECT_EQ(parse_count("10", 10), 10u);
  EXPECT_EQ(parse_count("18446744073709551615", ~std::uint64_t{0}), ~std::uint64_t{0});
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "1x", "0x1", "1.5", "11", "4294967306",
                           "18446744073709551616", "99999999999999999999999"}) {
    EXPECT_EQ(parse_count(text, 10), std::nullopt) << text;
  }
}

TEST(Numbers, OfBytesHaveUnitsThatDoNotWrapAround) {
  EXPECT_EQ(parse_bytes("17"), 17u);
  EXPECT_EQ(parse_bytes("3b"), 3u);
  EXPECT_EQ(parse_bytes("4k"), 4096u);
  EXPECT_EQ(parse_bytes("4KiB"), 4096u);
  EXPECT_EQ(parse_bytes("1gb"), std::uint64_t{1} << 30);
  EXPECT_EQ(parse_bytes("16777215t"), std::uint64_t{16777215} << 40);
  for (const char* text : {"", "k", "-5", "-5g", "16777216t", "18446744073709551616", "1e3", "1 k",
                           "1kk", "1gibi", "1.5g", "four"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(LaunchTimes, KeepsAFixedNumberOfTimesEvenlyOverTheRun) {
  LaunchTimes times(/*most=*/8);
  for (std::uint64_t time_ns = 1000; time_ns > 0; --time_ns) times.add(time_ns);
  EXPECT_EQ(times.count(), 1000u);
  EXPECT_EQ(times.least_ns(), 1u);
  const std::vector<std::uint64_t> sorted = times.sorted_ns();
  EXPECT_GE(sorted.size(), 4u);
  EXPECT_LT(sorted.size(), 8u);
  EXPECT_EQ(sorted.back(), 1000u);
  for (std::size_t i = 2; i < sorted.size(); ++i) {
    EXPECT_EQ(sorted[i] - sorted[i - 1], sorted[1] - sorted[0]);
  }
}

TEST(LaunchTimes, KeepsAllOfAFew) {
  LaunchTimes times;
  for (const std::uint64_t time_ns : {3u, 1u, 2u}) times.add(time_ns);
  EXPECT_THAT(times.sorted_ns(), testing::ElementsAre(1, 2, 3));
}

// A pipe gives its bytes once.
class Fifo : public File {
 public:
  Fifo(const std::string& name, std::string bytes)
      : File(name),
        bytes_(std::move(bytes)),
        made_(::mkfifo(path().c_str(), 0600)),
        writer_([this] { std::ofstream(path(), std::ios::binary) << bytes_; }) {
    EXPECT_EQ(made_, 0);
  }
  ~Fifo() { writer_.join(); }

 private:
  std::string bytes_;
  int made_;
  std::thread writer_;
};

TEST(Show, ReadsAPipeOnce) {
  const Fifo plan("plan.fifo", File("fifo.plan", make_example()).text());
  EXPECT_EQ(*show(plan.path()), dump_plan(make_example()));
  const Fifo trace("trace.fifo", " {\"traceEvents\": []}");
  EXPECT_THAT(*show(trace.path()), HasSubstr("0 launches"));
}

TEST(Show, ReadsNoMoreThanTheBeginningOfWhatItCannotShow) {
  EXPECT_THAT(message_of(show("/dev/zero")), HasSubstr("'/dev/zero': read plan: the file begins"));
}

// Two graphs, each with a stream of its own on thread 1, busy at the same time.
TEST(Show, KeepsStreamsOfTwoGraphsApart) {
  const auto summary = summarize_trace("x", R"([
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "left"}},
    {"ph": "M", "name": "thread_name", "pid": 2, "tid": 1, "args": {"name": "right"}},
    {"ph": "X", "cat": "step", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 80},
    {"ph": "X", "cat": "step", "name": "b", "pid": 2, "tid": 1, "ts": 10, "dur": 90}])");
  EXPECT_THAT(*summary,
              HasSubstr("1: left                     1       80.000        0.000    80.0"));
  EXPECT_THAT(*summary,
              HasSubstr("2: right                    1       90.000        0.000    90.0"));
}

TEST(Show, IsNeverBusierThanAllTheTime) {
  const auto summary = summarize_trace("x", R"([
    {"ph": "X", "cat": "step", "name": "a", "tid": 1, "ts": 0, "dur": 80},
    {"ph": "X", "cat": "step", "name": "b", "tid": 1, "ts": 20, "dur": 80},
    {"ph": "X", "cat": "step", "name": "c", "tid": 1, "ts": 30, "dur": 10}])");
  EXPECT_THAT(*summary,
              HasSubstr("thread 1                    3      100.000        0.000   100.0"));
}

// Names that clear the terminal, and begin a line that the command did not write.
TEST(Commands, PrintNoNameRaw) {
  ProgramBuilder builder, other;
  for (ProgramBuilder* made : {&builder, &other}) {
    const BufferId x = made->add_buffer({"x\x1b[2J\nok", Role::kOutput, 64});
    const BufferId t = made->add_buffer({"t\x1b[2J\nok", Role::kTemporary, 64});
    made->compute(made->add_stream("s\x1b[2J\nok"), made == &other ? "g\x1b\nok" : "f\x1b\nok",
                  {made->write(t), made->write(x)});
  }
  const File file("hostile.plan", *make_plan(*builder.build()));
  const File second("hostile2.plan", *make_plan(*other.build()));
  const File out("hostile.json");
  const RunOptions options{.null_regions = true, .launches = 1};
  for (const std::string& text :
       {*show(file.path()), *check(file.path()), message_of(run(file.path(), {})),
        message_of(run(file.path(), {.null_regions = true, .max_memory_bytes = 1})),
        *run(file.path(), options), compare(file.path(), second.path())->text,
        *trace(file.path(), options, out.path()), *show(out.path()),
        message_of(show("no\x1b\nok"))}) {
    EXPECT_THAT(text, Not(HasSubstr("\x1b"))) << text;
    EXPECT_THAT(text, Not(HasSubstr("\nok"))) << text;
  }
}

TEST(CmakeFolder, IsNotMadeUpOutsideAnInstallation) {
  EXPECT_THAT(message_of(find_cmake_folder()), HasSubstr("came without the C++ library"));
}

}  // namespace
}  // namespace anabranch::tool
