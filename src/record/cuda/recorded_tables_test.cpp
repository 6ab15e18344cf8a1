// SPDX-License-Identifier: Apache-2.0
// Steps whose kernels read arrays of addresses, on the simulated driver: what becomes of the copies
// that bring the arrays, and that launches find everything at its new place.
#include "record/cuda/rewrite/tables.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"

namespace anabranch::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using enum UnitKind;

constexpr std::uint64_t kBytes = 256;

// What a step is captured with: units, and pinned memory for its tables.
struct Given {
  std::vector<CuDevicePtr> at;
  std::vector<std::uint64_t*> pinned;
};

class TablesTest : public sim::SimTest {
 protected:
  using Step = std::function<void(CuStream, const Given&)>;

  TablesTest() : code_(*DeviceCode::load(*d, sim::add_device_code(*sim).c_str())) {
    foreach_ = load(foreach_kernel());
    options.device_code = code_.get();
    work_stream_ = stream();
  }
  ~TablesTest() override {
    for (Captured& captured : captured_) drop(captured);
  }

  // foreach_add_one(table, count): word i of the table is where a word is read, word count + i
  // where it is written, greater by one.
  static sim::Kernel foreach_kernel() {
    return {.name = "foreach_add_one",
            .params = sim::layout_of({8, 8}),
            .run = [](const sim::KernelCall& call) {
              const auto count = call.param<std::uint64_t>(8);
              const auto* table = call.memory<CuDevicePtr>(call.param<CuDevicePtr>(0), 2 * count);
              for (std::uint64_t i = 0; table && i < count; ++i) {
                const auto* in = call.memory<std::uint32_t>(table[i], 1);
                auto* out = call.memory<std::uint32_t>(table[count + i], 1);
                if (in && out) *out = *in + 1;
              }
            }};
  }
  void foreach_add_one(CuStream on, CuDevicePtr table, std::uint64_t count) {
    EXPECT_CU(launch(foreach_, on, {&table, &count}));
  }
  void copy_table(CuStream on, CuDevicePtr to, std::uint64_t* pinned,
                  const std::vector<std::uint64_t>& words) {
    std::copy(words.begin(), words.end(), pinned);
    EXPECT_CU(d->cuMemcpyHtoDAsync(to, pinned, words.size() * 8, on));
  }
  std::uint64_t* pin(std::size_t bytes = kBytes) {
    void* made = nullptr;
    EXPECT_CU(d->cuMemHostAlloc(&made, bytes, 0));
    return static_cast<std::uint64_t*>(made);
  }

  // Captures the step twice, in pinned memory of its own each time. Device memory goes at once.
  void capture(const Step& step, std::size_t tables = 1, std::size_t table_bytes = kBytes) {
    std::vector<std::uint64_t*> pinned[2];
    for (std::size_t i = 0; i < 2 * tables; ++i) pinned[i % 2].push_back(pin(table_bytes));
    for (int c = 0; c < 2; ++c) capture_once(captured_[c], step, pinned[c]);
  }
  // In the same.
  void capture_in_one(const Step& step) {
    const std::vector<std::uint64_t*> pinned{pin()};
    for (Captured& captured : captured_) capture_once(captured, step, pinned);
    std::fill_n(pinned[0], kBytes / 8, 0xA5A5A5A5A5A5A5A5);
  }

  Result<Discovery> try_discover() {
    return discover(*d, capture_of(0), capture_of(1), kinds, {.device_code = options.device_code});
  }
  Result<std::shared_ptr<CudaRecording>> try_record() {
    return record_captures(*d, capture_of(0), capture_of(1), kinds, options);
  }
  std::shared_ptr<CudaRecording> record() {
    auto made = try_record();
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }
  std::string refusal(StatusCode code) {
    const auto made = try_record();
    EXPECT_FALSE(made.ok());
    if (made.ok()) return {};
    EXPECT_EQ(made.error().code(), code);
    return made.error().message();
  }

  // Slots and then the part of the arena, if there is one.
  void launch_at(CudaExec& exec, const std::vector<std::uint64_t>& addresses) {
    const auto set = exec.set_addresses(addresses);
    ASSERT_TRUE(set.ok()) << set.error().message();
    const Status launched = exec.launch(work_stream_);
    ASSERT_TRUE(launched.ok()) << launched.message();
    EXPECT_CU(d->cuStreamSynchronize(work_stream_));
  }
  std::vector<CudaExec*> both(const CudaRecording& recording) {
    return {recording.executables()[0].get(), recording.updating()[0].get()};
  }
  CuDevicePtr allocate_aligned(std::uint64_t bytes) {
    return (allocate(bytes + 512) + 511) / 512 * 512;
  }

  std::vector<UnitKind> kinds;
  std::vector<std::uint64_t> sizes;  // of units; kBytes where it is empty
  CudaRecordOptions options;

 private:
  struct Captured {
    CuGraph graph = nullptr;
    std::vector<CaptureAllocation> memory;
    GraphImage image;
  };
  Capture capture_of(int c) const {
    return {captured_[c].graph, captured_[c].memory, &captured_[c].image};
  }
  void drop(Captured& captured) {
    if (captured.graph) d->cuGraphDestroy(captured.graph);
    captured = {};
  }
  void capture_once(Captured& captured, const Step& step,
                    const std::vector<std::uint64_t*>& pinned) {
    drop(captured);
    Given given{{}, pinned};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const std::uint64_t bytes = sizes.empty() ? kBytes : sizes[i];
      given.at.push_back(allocate(bytes));
      captured.memory.push_back({given.at.back(), bytes});
    }
    EXPECT_CU(d->cuStreamBeginCapture(work_stream_, CuCaptureMode::kThreadLocal));
    step(work_stream_, given);
    captured.graph = end_capture(work_stream_);
    auto image = read_graph(*d, captured.graph);
    ASSERT_TRUE(image.ok()) << image.error().message();
    captured.image = *std::move(image);
    for (const CuDevicePtr address : given.at) EXPECT_CU(d->cuMemFree(address));
  }

  const std::unique_ptr<DeviceCode> code_;
  CuStream work_stream_ = nullptr;
  CuFunction foreach_ = nullptr;
  Captured captured_[2];
};

// Units: two words to read, two to write, the table.
class ForeachTest : public TablesTest {
 protected:
  ForeachTest() { kinds = {kGiven, kGiven, kGiven, kGiven, kTemporary}; }

  void queue(CuStream on, const Given& given) {
    copy_table(on, given.at[4], given.pinned[0],
               {given.at[0], given.at[1] + 8, given.at[2], given.at[3] + 16});
    foreach_add_one(on, given.at[4], 2);
  }
  void capture_foreach() {
    capture([this](CuStream on, const Given& given) { queue(on, given); });
  }
  void expect_launches(const CudaRecording& recording, int launches) {
    for (CudaExec* exec : both(recording)) {
      for (int i = 0; i < launches && !HasFailure(); ++i) launch_and_check(*exec, i);
    }
    EXPECT_THAT(sim->violations(), IsEmpty());
  }

 private:
  // At fresh addresses in a random order; memory that is freed is watched.
  void launch_and_check(CudaExec& exec, int round) {
    std::vector<std::uint64_t> at;
    for (int i = 0; i < 4; ++i) at.push_back(allocate(kBytes));
    std::shuffle(at.begin(), at.end(), random_);
    const CuDevicePtr arena = allocate_aligned(kBytes);
    const auto n = static_cast<std::uint32_t>(round);
    put(at[0], 10 + n);
    put(at[1] + 8, 1000 + n);
    auto with_arena = at;
    with_arena.push_back(arena);
    launch_at(exec, with_arena);
    EXPECT_EQ(get(at[2]), 11 + n);
    EXPECT_EQ(get(at[3] + 16), 1001 + n);
    for (const CuDevicePtr address : at) EXPECT_CU(d->cuMemFree(address));
  }
  std::mt19937 random_{5};
};

TEST_F(ForeachTest, AddressesInATableAreThoseOfTheLaunch) {
  capture_foreach();
  const auto recording = record();
  ASSERT_TRUE(recording);
  expect_launches(*recording, 100);
}

TEST_F(ForeachTest, AndOfATableInAChildGraph) {
  const CuStream inside = stream();
  capture([&](CuStream on, const Given& given) {
    EXPECT_CU(d->cuStreamBeginCapture(inside, CuCaptureMode::kThreadLocal));
    queue(inside, given);
    queue_child(on, end_capture(inside));
  });
  const auto recording = record();
  ASSERT_TRUE(recording);
  expect_launches(*recording, 10);
}

TEST_F(ForeachTest, GivenMemoryThatOnlyATableNamesIsASlot) {
  capture_foreach();
  const auto recording = record();
  ASSERT_TRUE(recording);
  ASSERT_THAT(recording->slots(), SizeIs(4));
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(recording->slots()[i].unit, i);
    EXPECT_GE(recording->slots()[i].alignment, 256u);
  }
  EXPECT_EQ(recording->arena().size_bytes, kBytes);
}

TEST_F(ForeachTest, ATableMayLieWhereTheOtherCapturesDid) {
  capture_in_one([this](CuStream on, const Given& given) { queue(on, given); });
  const auto recording = record();
  ASSERT_TRUE(recording);
  expect_launches(*recording, 3);
}

TEST_F(ForeachTest, WordsThatAreEqualAreKept) {
  kinds.push_back(kGiven);
  capture(
      [this](CuStream on, const Given& given) {
        queue(on, given);
        std::fill_n(given.pinned[1], 3, 77);
        EXPECT_CU(d->cuMemcpyHtoDAsync(given.at[5], given.pinned[1], 20, on));
      },
      2);
  const auto recording = record();
  ASSERT_TRUE(recording);
  for (CudaExec* exec : both(*recording)) {
    std::vector<std::uint64_t> at;
    for (int i = 0; i < 5; ++i) at.push_back(allocate(kBytes));
    at.push_back(allocate_aligned(kBytes));
    EXPECT_CU(d->cuMemsetD8(at[4], 0xA5, kBytes));
    launch_at(*exec, at);
    EXPECT_EQ(get(at[4]), 77u);
    EXPECT_EQ(get(at[4] + 16), 77u);
    EXPECT_EQ(get(at[4] + 20), 0xA5A5A5A5u);
  }
}

TEST_F(ForeachTest, WithoutDeviceCodeATableIsRefused) {
  capture_foreach();
  options.device_code = nullptr;
  EXPECT_THAT(refusal(StatusCode::kNotRecordable),
              AllOf(HasSubstr("copy 0"), HasSubstr("takes device code"), HasSubstr("nvcc")));
}

TEST_F(ForeachTest, NoFailingCallLeavesAnythingBehind) {
  capture_foreach();
  const auto have_failed = fail_each_call([&] { return try_record(); });
  for (const char* call : {"cuMemAlloc", "cuMemcpyHtoD", "cuStreamSynchronize"}) {
    EXPECT_TRUE(have_failed.contains(call)) << call;
  }
}

TEST_F(ForeachTest, RecordingsOfOneDiscoveryShareItsTablesAndTheLastFreesThem) {
  capture_foreach();
  const std::size_t before = sim->live_objects();
  const auto record_twice = [&]() -> std::vector<std::shared_ptr<CudaRecording>> {
    const auto discovery = try_discover();
    EXPECT_TRUE(discovery.ok()) << discovery.error().message();
    EXPECT_EQ(sim->live_objects(), before + 1);
    return {*make_recording(*d, *discovery, options), *make_recording(*d, *discovery, options)};
  };
  record_twice().clear();
  EXPECT_EQ(sim->live_objects(), before);
  for (const auto& recording : record_twice()) expect_launches(*recording, 3);
}

TEST_F(ForeachTest, ARecordingFreesItsTables) {
  capture_foreach();
  const std::size_t before = sim->live_objects();
  ASSERT_TRUE(record());
  EXPECT_EQ(sim->live_objects(), before);
}

TEST_F(TablesTest, BytesThatDifferAndAreNoAddressAreRefusedByName) {
  kinds = {kGiven, kGiven};
  std::uint64_t turn = 0;
  capture([&](CuStream on, const Given& given) {
    copy_table(on, given.at[1], given.pinned[0], {given.at[0], 7, 0x3f800000 + turn++});
  });
  EXPECT_THAT(refusal(StatusCode::kCapturesDiffer),
              AllOf(HasSubstr("copy 0"), HasSubstr("byte 16 of what it copies from the host"),
                    HasSubstr("(0x3f800000, 0x3f800001), which is no address")));
}

TEST_F(TablesTest, BytesBehindTheLastWordThatDifferAreRefused) {
  kinds = {kGiven};
  std::uint64_t turn = 0;
  capture([&](CuStream on, const Given& given) {
    given.pinned[0][0] = 1;
    given.pinned[0][1] = turn++;
    EXPECT_CU(d->cuMemcpyHtoDAsync(given.at[0], given.pinned[0], 12, on));
  });
  EXPECT_THAT(refusal(StatusCode::kCapturesDiffer),
              AllOf(HasSubstr("byte 8"), HasSubstr("bytes too few for an address")));
}

TEST_F(TablesTest, PinnedMemoryThatStaysIsReadAtEachLaunch) {
  kinds = {kGiven};
  std::uint64_t* const pinned = pin();
  *pinned = 42;
  capture([&](CuStream on, const Given& given) {
    EXPECT_CU(d->cuMemcpyHtoDAsync(given.at[0], pinned, 8, on));
  });
  const auto recording = record();
  ASSERT_TRUE(recording);
  const CuDevicePtr x = allocate(kBytes);
  for (const std::uint32_t value : {42u, 43u}) {
    *pinned = value;
    launch_at(*recording->executables()[0], {x});
    EXPECT_EQ(get(x), value);
  }
}

TEST_F(TablesTest, PinnedMemoryThatTwoTablesReadIsRefused) {
  kinds = {kGiven, kGiven, kGiven};
  capture([&](CuStream on, const Given& given) {
    copy_table(on, given.at[1], given.pinned[0], {given.at[0], 1});
    copy_table(on, given.at[2], given.pinned[0] + 1, {given.at[0]});
  });
  EXPECT_THAT(refusal(StatusCode::kNotRecordable),
              AllOf(HasSubstr("copy 0 and copy 1"), HasSubstr("read the same pinned memory")));
}

TEST_F(TablesTest, OneSecondUseInTheSecondCaptureIsEnoughToRefuse) {
  kinds = {kGiven, kGiven, kGiven};
  int turn = 0;
  capture(
      [&](CuStream on, const Given& given) {
        copy_table(on, given.at[1], given.pinned[0], {given.at[0]});
        copy_table(on, given.at[2], given.pinned[turn++ == 0 ? 1 : 0], {given.at[0]});
      },
      2);
  EXPECT_THAT(refusal(StatusCode::kNotRecordable), HasSubstr("read the same pinned memory"));
}

TEST_F(TablesTest, ATableForTheHostIsRefused) {
  kinds = {kGiven};
  std::uint64_t* const there = pin();
  capture([&](CuStream on, const Given& given) {
    *given.pinned[0] = given.at[0];
    EXPECT_CU(d->cuMemcpyAsync(reinterpret_cast<CuDevicePtr>(there),
                               reinterpret_cast<CuDevicePtr>(given.pinned[0]), 8, on));
  });
  EXPECT_THAT(refusal(StatusCode::kNotRecordable), HasSubstr("not this device's"));
}

TEST_F(TablesTest, ATableMayBeCopiedToMemoryThatNeverMoves) {
  kinds = {kGiven, kGiven, kTemporary, kTemporary};
  const CuDevicePtr table = allocate(kBytes);
  // Unit 2 is dead but for the table when unit 3 comes.
  capture([&](CuStream on, const Given& given) {
    EXPECT_CU(add_one(on, given.at[0], given.at[2]));
    copy_table(on, table, given.pinned[0], {given.at[2], given.at[1]});
    EXPECT_CU(add_one(on, given.at[0], given.at[3]));
    foreach_add_one(on, table, 1);
  });
  const auto recording = record();
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->arena().size_bytes, 512 + kBytes);
  for (CudaExec* exec : both(*recording)) {
    const CuDevicePtr x = allocate(kBytes), y = allocate(kBytes);
    put(x, 5);
    launch_at(*exec, {x, y, allocate_aligned(2 * kBytes + 512)});
    EXPECT_EQ(get(y), 7u);
  }
}

// Without the table nothing would name unit 3 behind the copy, and units 4 and 5 would lie there.
TEST_F(TablesTest, WhatATableNamesLivesAsLongAsTheTableIsRead) {
  kinds = {kGiven, kGiven, kGiven, kTemporary, kTemporary, kTemporary, kTemporary};
  capture([&](CuStream on, const Given& given) {
    EXPECT_CU(add_one(on, given.at[0], given.at[3]));
    copy_table(on, given.at[6], given.pinned[0], {given.at[3], given.at[1]});
    EXPECT_CU(add_one(on, given.at[2], given.at[4]));
    EXPECT_CU(add_one(on, given.at[4], given.at[5]));
    foreach_add_one(on, given.at[6], 1);
  });
  const auto recording = record();
  ASSERT_TRUE(recording);
  for (CudaExec* exec : both(*recording)) {
    const CuDevicePtr x = allocate(kBytes), y = allocate(kBytes), other = allocate(kBytes);
    put(x, 5);
    put(other, 100);
    launch_at(*exec, {x, y, other, allocate_aligned(recording->arena().size_bytes)});
    EXPECT_EQ(get(y), 7u);
  }
}

// Tables of many words, most of them no addresses, one behind the other in one step.
TEST_F(TablesTest, LargeTablesTakeSeveralKernels) {
  constexpr std::uint64_t kCount = 350, kWords = 6000;
  kinds = {kGiven, kGiven, kTemporary};
  sizes = {4 * kCount, 4 * kCount, 8 * kWords};
  capture(
      [&](CuStream on, const Given& given) {
        std::vector<std::uint64_t> words(kWords, 3);
        for (std::uint64_t i = 0; i < kCount; ++i) {
          words[i] = given.at[0] + 4 * i;
          words[kCount + i] = given.at[1] + 4 * (kCount - 1 - i);
        }
        copy_table(on, given.at[2], given.pinned[0], words);
        foreach_add_one(on, given.at[2], kCount);
      },
      1, 8 * kWords);
  const auto recording = record();
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->node_count(), 3 + 1u);  // 700 addresses, 256 a kernel
  for (CudaExec* exec : both(*recording)) {
    const CuDevicePtr x = allocate(4 * kCount), y = allocate(4 * kCount);
    std::vector<std::uint32_t> in(kCount), out(kCount);
    std::iota(in.begin(), in.end(), 100u);
    EXPECT_CU(d->cuMemcpyHtoD(x, in.data(), 4 * kCount));
    launch_at(*exec, {x, y, allocate_aligned(8 * kWords)});
    EXPECT_CU(d->cuMemcpyDtoH(out.data(), y, 4 * kCount));
    for (std::uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(out[kCount - 1 - i], in[i] + 1);
  }
}

// Of random words, sizes and places, against what the copies would have brought.
TEST_F(TablesTest, RandomTablesHoldWhatTheirCopiesWouldHave) {
  constexpr std::uint64_t kWords = 900;
  std::mt19937_64 random(3);
  kinds = {kGiven, kGiven};
  sizes = {8 * kWords + 64, kBytes};
  for (int round = 0; round < 40; ++round) {
    const std::uint64_t bytes = 8 + random() % (8 * kWords - 8), place = random() % 17;
    std::vector<std::uint64_t> words(kWords), is_address(kWords);
    for (std::uint64_t i = 0; i < kWords; ++i) {
      words[i] = random() % kBytes;
      is_address[i] = 8 * i + 8 <= bytes && random() % 4 <= static_cast<unsigned>(round % 4);
    }
    is_address[0] = 1;
    const auto table_at = [&](CuDevicePtr unit) {
      auto table = words;
      for (std::uint64_t i = 0; i < kWords; ++i) table[i] += is_address[i] ? unit : 0;
      return table;
    };
    capture(
        [&](CuStream on, const Given& given) {
          const auto table = table_at(given.at[1]);
          std::copy(table.begin(), table.end(), given.pinned[0]);
          EXPECT_CU(d->cuMemcpyHtoDAsync(given.at[0] + place, given.pinned[0], bytes, on));
        },
        1, 8 * kWords);
    const auto recording = record();
    ASSERT_TRUE(recording) << "round " << round;
    for (CudaExec* exec : both(*recording)) {
      const CuDevicePtr to = allocate(sizes[0]), unit = allocate(kBytes);
      std::vector<std::uint8_t> found(sizes[0]), expected(sizes[0], 0xA5);
      EXPECT_CU(d->cuMemsetD8(to, 0xA5, sizes[0]));
      launch_at(*exec, {to, unit});
      EXPECT_CU(d->cuMemcpyDtoH(found.data(), to, sizes[0]));
      std::memcpy(expected.data() + place, table_at(unit).data(), bytes);
      ASSERT_TRUE(found == expected) << "round " << round;
      EXPECT_CU(d->cuMemFree(to));
      EXPECT_CU(d->cuMemFree(unit));
    }
  }
  EXPECT_THAT(sim->calls(), Not(Contains("cuGraphExecMemcpyNodeSetParams")));
}

}  // namespace
}  // namespace anabranch::cuda
