// SPDX-License-Identifier: Apache-2.0
// Tables of a plan, on the host and on the simulated driver: the bytes that a launch is given are
// those that its regions read, whatever is in flight and whatever becomes of the caller's memory.
#include <algorithm>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "launch/sim_memory_testing.h"
#include "record/cuda/plan/plan_tables.h"

namespace anabranch::cuda {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::must;
using testing::plan_of;
using testing::Regions;

using Bytes = std::vector<unsigned char>;
enum class On : std::uint8_t { kHost, kGpu, kGpuWithoutCode };

constexpr std::size_t kLengths = 20, kPages = 200, kOut = kLengths + kPages;

Binding table_of(const Bytes& bytes) { return Binding::table(bytes.data(), bytes.size()); }

// y is both tables: the lengths, by way of a copy on a side stream, and the pages.
class PlanTablesTest : public ::testing::TestWithParam<On> {
 protected:
  PlanTablesTest() {
    const BufferId lengths = builder.add_table("lengths", kLengths, 4);
    const BufferId y = builder.add_buffer({"y", Role::kOutput, kOut, 8});
    const BufferId pages = builder.add_table("pages", kPages, 128);
    const BufferId t = builder.add_buffer({"t", Role::kTemporary, kLengths, 8});
    builder.copy(builder.add_stream("side"), builder.whole(t), builder.whole(lengths));
    builder.compute(kAmbient, "keep", {builder.read(t), builder.read(pages), builder.write(y)});
    regions.add("keep", [this](const RegionCall& call) {
      misplaced += reinterpret_cast<std::uintptr_t>(call.buffers[1]) % 128 != 0;
      auto* const out = static_cast<unsigned char*>(call.buffers[2]);
      std::memcpy(out, call.buffers[0], kLengths);
      std::memcpy(out + kLengths, call.buffers[1], kPages);
      return 0;
    });
  }
  ~PlanTablesTest() override {
    for (const CuStream made : streams_) d.cuStreamDestroy(made);
  }
  bool on_host() const { return GetParam() == On::kHost; }
  Recording record() {
    const Plan plan = plan_of(builder);
    if (on_host()) return must(anabranch::record(plan, Device::host(), regions.table()));
    return must(
        anabranch::record(plan, bench.make_device(), bench.kernels_of(plan, regions.table())));
  }
  CudaStream stream() {
    if (on_host()) return {};
    streams_.emplace_back();
    EXPECT_EQ(d.cuStreamCreateWithPriority(&streams_.back(), kStreamNonBlocking, 0),
              CuResult::kSuccess);
    return CudaStream(streams_.back());
  }

  // What a launch writes, and should have written.
  struct Job {
    explicit Job(testing::MemorySource& from) : source(from), out(from.allocate(kOut, 8)) {}
    ~Job() { source.release(out, 8); }
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    std::vector<Binding> bind(const Bytes& lengths, const Bytes& pages) {
      expected.assign(kOut, 0);
      std::ranges::copy(lengths, expected.begin());
      std::ranges::copy(pages, expected.begin() + kLengths);
      return {table_of(lengths), {out, kOut}, table_of(pages)};
    }
    Bytes found() const {
      const auto* bytes = static_cast<const unsigned char*>(out);
      return {bytes, bytes + kOut};
    }
    testing::MemorySource& source;
    void* out;
    Bytes expected;
  };
  Bytes some_bytes(std::size_t count) {
    Bytes bytes(count);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    return bytes;
  }

  testing::SimBench bench{{.jitter_ns = 3000}, GetParam() != On::kGpuWithoutCode};
  const Driver& d = bench.driver();
  testing::SimMemory device_memory{bench};
  testing::MemorySource& source =
      on_host() ? testing::HostMemory::get() : static_cast<testing::MemorySource&>(device_memory);
  ProgramBuilder builder;
  Regions regions;
  std::atomic<int> misplaced{0};
  std::mt19937 random{7};

 private:
  std::deque<CuStream> streams_;
};

TEST_P(PlanTablesTest, EachLaunchReadsItsOwnBytesThoughTheCallersAreChangedAtOnce) {
  const Recording recording = record();
  const std::array<CudaStream, 3> streams{stream(), stream(), stream()};
  std::deque<Job> jobs;
  for (std::size_t i = 0; i < 100; ++i) {  // far more than there are blocks for
    Bytes lengths = some_bytes(kLengths), pages = some_bytes(kPages);
    Job& job = jobs.emplace_back(source);
    must(launch(recording, job.bind(lengths, pages), streams[random() % 3]));
    std::ranges::fill(lengths, 0xEE);
    std::ranges::fill(pages, 0xEE);
  }
  if (!on_host()) bench.sim().run_until_idle();
  for (const Job& job : jobs) ASSERT_EQ(job.found(), job.expected) << &job - &jobs[0];
  EXPECT_EQ(misplaced, 0);
}

TEST_P(PlanTablesTest, WhatALaunchLeavesOutIsZeroAndNotOfALaunchBefore) {
  const Recording recording = record();
  Job job(source);
  const auto expect = [&](const Bytes& lengths, const Bytes& pages) {
    EXPECT_TRUE(must(launch(recording, job.bind(lengths, pages), CudaStream())).wait().ok());
    EXPECT_EQ(job.found(), job.expected);
  };
  for (std::size_t i = 0; i < 2 * StagedTables::kBlocks; ++i) {
    expect(Bytes(kLengths, 0xFF), Bytes(kPages, 0xFF));
  }
  expect(some_bytes(kLengths - 1), some_bytes(1));
  expect(some_bytes(3), {});  // null, and no bytes
  EXPECT_THAT(Bytes(job.expected.begin() + kLengths, job.expected.end()), Each(0));
}

TEST_P(PlanTablesTest, TheirBytesMayLieAtAnyAddress) {
  const Recording recording = record();
  Job job(source);
  const Bytes lengths = some_bytes(kLengths), pages = some_bytes(kPages);
  for (std::size_t shift = 0; shift < 8; ++shift) {
    Bytes moved(shift + kPages);
    std::ranges::copy(pages, moved.begin() + static_cast<std::ptrdiff_t>(shift));
    std::vector<Binding> bindings = job.bind(lengths, pages);
    bindings[2].data = moved.data() + shift;
    EXPECT_TRUE(must(launch(recording, bindings, CudaStream())).wait().ok());
    EXPECT_EQ(job.found(), job.expected);
  }
}

// Where what launches write is the host's memory, as tables are.
class PlanTablesOnTheHostTest : public PlanTablesTest {};

TEST_P(PlanTablesOnTheHostTest, TheirBytesMayLieInWhatTheSameLaunchWrites) {
  const Recording recording = record();
  Job job(source);
  const Bytes lengths = some_bytes(kLengths), pages = some_bytes(kPages);
  std::vector<Binding> bindings = job.bind(lengths, pages);
  std::memcpy(job.out, pages.data(), kPages);
  bindings[2].data = job.out;
  must(launch(recording, bindings));
  EXPECT_EQ(job.found(), job.expected);
}

TEST_P(PlanTablesTest, WhatIsNoTableOrTooLongIsRefusedAndChangesNothing) {
  const Recording recording = record();
  Job job(source);
  const Bytes lengths = some_bytes(kLengths), pages = some_bytes(kPages + 1);
  const Bytes fit(pages.begin(), pages.end() - 1);
  EXPECT_TRUE(must(launch(recording, job.bind(lengths, fit))).wait().ok());
  const auto expect_bad = [&](std::size_t slot, Binding binding, const std::string& with) {
    auto bindings = job.bind(lengths, fit);
    bindings[slot] = binding;
    const auto refused = launch(recording, bindings);
    ASSERT_FALSE(refused.ok()) << with;
    EXPECT_EQ(refused.error().code(), StatusCode::kBadBinding);
    EXPECT_THAT(refused.error().message(), HasSubstr(with));
  };
  expect_bad(2, table_of(pages),
             "table 'pages' (slot 2) was given 201 bytes, and was declared with 200");
  expect_bad(2, Binding::table(nullptr, 1), "table 'pages' (slot 2) is null, and was given 1 byte");
  expect_bad(2, {job.out, kPages},
             "binding 'pages' (slot 2) is for a table, and an address was given. Pass "
             "Binding::table()");
  expect_bad(2, Binding::number(1), "is for a table, and a number was given");
  expect_bad(1, Binding::table(job.out, kOut),
             "binding 'y' (slot 1) is for an address, and a table was given");
  expect_bad(1, Binding::number(1.0), "is for an address, and a number was given");
  EXPECT_EQ(job.found(), job.expected);
  EXPECT_TRUE(must(launch(recording, job.bind(lengths, {}))).wait().ok());
  EXPECT_EQ(job.found(), job.expected);
}

TEST_P(PlanTablesTest, SlotsSayWhichAreTables) {
  const std::vector<RecordingSlot> slots = record().slots();
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[0].kind, SlotKind::kTable);
  EXPECT_EQ(slots[0].size_bytes, kLengths);
  EXPECT_EQ(slots[1].kind, SlotKind::kAddress);
  EXPECT_EQ(slots[2].kind, SlotKind::kTable);
}

// Where launches of a recording overlap, and call a driver.
class PlanTablesOnTheGpuTest : public PlanTablesTest {};

TEST_P(PlanTablesOnTheGpuTest, ThreadsMayLaunchOneRecording) {
  const Recording recording = record();
  struct Side {
    CudaStream on;
    std::deque<Job> jobs{};
    std::vector<Bytes> lengths{}, pages{};
  };
  std::deque<Side> sides;
  for (std::size_t t = 0; t < 4; ++t) {
    sides.push_back({stream()});
    Side& side = sides.back();
    for (std::size_t i = 0; i < 30; ++i) {
      side.jobs.emplace_back(source);
      side.lengths.push_back(some_bytes(kLengths));
      side.pages.push_back(some_bytes(kPages));
    }
  }
  {
    std::vector<std::jthread> threads;
    for (Side& side : sides) {
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < side.jobs.size(); ++i) {
          must(launch(recording, side.jobs[i].bind(side.lengths[i], side.pages[i]), side.on));
        }
      });
    }
  }
  bench.sim().run_until_idle();
  for (const Side& side : sides) {
    for (const Job& job : side.jobs) ASSERT_EQ(job.found(), job.expected);
  }
}

TEST_P(PlanTablesOnTheGpuTest, WhenAnyCallFailsTheLaunchesAroundAreRight) {
  for (std::uint64_t n = 1;; ++n) {
    const Recording recording = record();
    const CudaStream busy = stream(), other = stream();
    std::array<Job, 3> jobs{Job(source), Job(source), Job(source)};
    const auto go = [&](Job& job, CudaStream on) {
      return launch(recording, job.bind(some_bytes(9), some_bytes(99)), on);
    };
    must(go(jobs[0], busy));
    bench.sim().fail_call(n, CuResult::kOutOfMemory);
    const bool failed = !go(jobs[1], other).ok();
    const std::string call = bench.sim().failed_call();
    bench.sim().fail_call(0, CuResult::kSuccess);
    EXPECT_TRUE(must(go(jobs[2], other)).wait().ok()) << call;
    bench.sim().run_until_idle();
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (failed && i == 1) continue;
      ASSERT_EQ(jobs[i].found(), jobs[i].expected) << call;
    }
    if (call.empty()) {
      EXPECT_GT(n, 8u);
      return;
    }
    EXPECT_TRUE(failed || call == "cuEventQuery") << call;  // asked only to choose what to lease
  }
}

std::string name_of(const ::testing::TestParamInfo<On>& on) {
  return on.param == On::kHost  ? "OnTheHost"
         : on.param == On::kGpu ? "OnAGpu"
                                : "OnAGpuWithoutDeviceCode";
}

INSTANTIATE_TEST_SUITE_P(, PlanTablesTest,
                         ::testing::Values(On::kHost, On::kGpu, On::kGpuWithoutCode), name_of);
INSTANTIATE_TEST_SUITE_P(, PlanTablesOnTheHostTest, ::testing::Values(On::kHost), name_of);
INSTANTIATE_TEST_SUITE_P(, PlanTablesOnTheGpuTest, ::testing::Values(On::kGpu, On::kGpuWithoutCode),
                         name_of);

}  // namespace
}  // namespace anabranch::cuda
