// SPDX-License-Identifier: Apache-2.0
// A small step from capture on memory for captures to launches at allocated and at mapped
// addresses: parameters in both styles, a struct by value, a fill, copies of one and two
// dimensions, and a child graph that counts launches where it was; and a step in a child graph.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <tuple>

#include "base/seeds_testing.h"
#include "device/cuda/device_code.h"
#include "differential.h"
#include "launch/cuda_launch.h"
#include "record/cuda/discover.h"
#include "record/cuda/image/capture_memory.h"

namespace anabranch::cuda {
namespace {

constexpr std::uint32_t kWords = 32;
constexpr std::uint64_t kBytes = kWords * sizeof(std::uint32_t);
constexpr std::uint64_t kUnitBytes = 512;  // as little as a part of the arena may have
constexpr std::uint32_t kPoison = 0xA5A5A5A5;
constexpr std::uint32_t kStored = 7;

enum : std::size_t { kX, kY, kZ, kT0, kT1, kT2, kT3, kT4, kUnits };

// Who sets the nodes.
enum class By : std::uint8_t { kHost, kOneKernel, kTwoKernels, kLaunchable };
// Whether the memory of launches is mapped, and whether nodes run side by side.
using Way = std::tuple<By, bool, bool>;

// y = x + 3 and z = 8.
class Recordings : public Differential, public ::testing::WithParamInterface<Way> {
 protected:
  Recordings() {
    counter = allocate(kBytes);
    put(counter, std::vector<std::uint32_t>(kWords, 0));
    const CuGraph child = capture([&](CuStream on) { EXPECT_CU(add(on, counter, counter)); });
    std::unique_ptr<CaptureMemory> memories[2];
    CuGraph graphs[2] = {};
    CaptureMarks marks(d);
    for (int c = 0; c < 2; ++c) {
      memories[c] = *CaptureMemory::make(d);
      marks_ = c == 0 ? &marks : nullptr;
      graphs[c] = capture([&](CuStream on) { queue_step(on, *memories[c]); });
      CuGraphNode node = nullptr;
      EXPECT_CU(d.cuGraphAddChildGraphNode(&node, graphs[c], nullptr, 0, child));
    }
    auto loaded = DeviceCode::load(d, device_code_image);
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message());
    code = *std::move(loaded);
    CudaRecordOptions options{.device_code = code.get(), .updating_executables = 0};
    if (by_updater()) {
      options.updating_executables = 2;
      options.few_nodes = 0;
      options.settle_after = ~0u;
      if (by() == By::kTwoKernels) options.repoint_in_two = true;
      if (by() == By::kLaunchable) options.launchable_updating = options.launchable_settled = 0;
    }
    options.least_part_bytes = kPartAlignment;  // an arena in parts
    std::vector<UnitKind> kinds(kUnits, UnitKind::kTemporary);
    kinds[kX] = kinds[kY] = kinds[kZ] = UnitKind::kGiven;
    options.lanes = is_side_by_side() ? 3 : 1;
    const Notes notes{&marks, kUnits, works_, uses_};
    auto made = record_captures(d, {graphs[0], memories[0]->allocations(), nullptr, &notes},
                                {graphs[1], memories[1]->allocations()}, kinds, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    if (made.ok()) recording = *std::move(made);
  }

  static By by() { return std::get<0>(GetParam()); }
  static bool by_updater() { return by() != By::kHost; }
  static bool is_side_by_side() { return std::get<2>(GetParam()); }
  CuDevicePtr memory_for_launches(std::size_t bytes) {
    if (!std::get<1>(GetParam())) return allocate(bytes);
    mapped_ = std::make_unique<Mapped>(d);
    return mapped_->address;
  }

  void queue_step(CuStream on, CaptureMemory& memory) {
    std::array<CuDevicePtr, kUnits> at{};
    for (CuDevicePtr& address : at) address = *memory.allocate(kUnitBytes);
    EXPECT_CU(d.cuMemsetD32Async(at[kT0], 0, kWords, on));
    EXPECT_CU(add(on, at[kX], at[kT0]));
    EXPECT_CU(add_packed(on, at[kT0], at[kT1]));
    note(on, {{at[kT0], false}, {at[kT1], true}});
    EXPECT_CU(d.cuMemcpyDtoDAsync(at[kT3], at[kT1], kBytes, on));
    CuMemcpy2D spread{};
    spread.src_memory_type = spread.dst_memory_type = CuMemoryType::kDevice;
    spread.src_device = at[kT3];
    spread.src_pitch = spread.width_bytes = kBytes / 8;
    spread.height = 8;
    spread.dst_device = at[kT4];
    spread.dst_pitch = kBytes / 4;
    EXPECT_CU(d.cuMemcpy2DAsync(&spread, on));
    CuMemcpy2D gather = spread;
    gather.src_device = at[kT4];
    gather.src_pitch = kBytes / 4;
    gather.dst_device = at[kT3];
    gather.dst_pitch = kBytes / 8;
    EXPECT_CU(d.cuMemcpy2DAsync(&gather, on));
    EXPECT_CU(add(on, at[kT3], at[kY]));
    Target target{at[kT2], kStored, 0};
    std::uint32_t count = kWords;
    mark(on);
    EXPECT_CU(Differential::launch(store, on, {&count, &target}));
    note(on, {{at[kT2], true}});
    EXPECT_CU(add(on, at[kT2], at[kZ]));
  }
  CuResult add(CuStream on, CuDevicePtr in, CuDevicePtr out) {
    std::uint32_t count = kWords;
    mark(on);
    const CuResult queued = Differential::launch(add_one, on, {&in, &out, &count});
    note(on, {{in, false}, {out, true}});
    return queued;
  }
  std::uint32_t mark(CuStream on) {
    if (!marks_) return 0;
    const auto marked = marks_->mark(on, 0);
    EXPECT_TRUE(marked.ok()) << (marked.ok() ? "" : marked.error().message());
    return marked.ok() ? *marked : 0;
  }
  // What the kernels do that were queued since the mark before.
  void note(CuStream on, const std::vector<CaptureUse>& uses) {
    if (!marks_) return;
    works_.push_back({mark(on), static_cast<std::uint32_t>(uses.size()), false});
    uses_.insert(uses_.end(), uses.begin(), uses.end());
  }
  CuResult add_packed(CuStream on, CuDevicePtr in, CuDevicePtr out) {
    struct {
      CuDevicePtr in, out;
      std::uint32_t count = kWords, pad = 0;
    } block{in, out};
    std::size_t size = 20;
    void* extra[] = {params_buffer_key(), &block, params_size_key(), &size, kParamsEnd};
    return d.cuLaunchKernel(add_one, 1, 1, 1, 32, 1, 1, 0, on, nullptr, extra);
  }

  CuDevicePtr counter = 0;
  std::unique_ptr<DeviceCode> code;
  std::shared_ptr<CudaRecording> recording;

 private:
  std::unique_ptr<Mapped> mapped_;
  CaptureMarks* marks_ = nullptr;
  std::vector<CaptureWork> works_;
  std::vector<CaptureUse> uses_;
};

TEST_P(Recordings, NodesThatShareNothingRunSideBySideIfTheyMay) {
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->step_counts().lanes, is_side_by_side() ? 2u : 1u);
  EXPECT_EQ(recording->step_counts().known, 9u);  // all but the child graph
}

TEST_P(Recordings, FindEveryAddressAndPlanTheTemporaries) {
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->slots().size(), 3u);
  EXPECT_EQ(recording->sites().size(), 16u);
  for (const PlacedSite& site : recording->sites()) EXPECT_EQ(site.operand, Operand::kParam);
  EXPECT_LT(recording->arena().size_bytes, recording->arena().naive_bytes);
  EXPECT_GT(recording->part_bytes().size(), 1u);
}

TEST_P(Recordings, EveryNodeWithAnAddressIsForTheUpdaterIfThereIsOne) {
  ASSERT_TRUE(recording);
  const auto execs = by_updater() ? recording->updating() : recording->executables();
  ASSERT_FALSE(execs.empty());
  std::vector<std::uint64_t> addresses(recording->source_rules().size());
  const CuDevicePtr field = memory_for_launches(addresses.size() * 2048);
  for (std::size_t i = 0; i < addresses.size(); ++i) addresses[i] = field + i * 2048;
  const auto set = execs[0]->set_addresses(addresses);
  ASSERT_TRUE(set.ok()) << set.error().message();
  EXPECT_EQ(*set, by_updater() ? 0u : 9u);  // set by the host
}

TEST_P(Recordings, AThousandLaunchesAtRandomPlacesWriteThereAndNowhereElse) {
  const std::uint32_t rounds = rounds_of(1000);
  constexpr std::size_t kPlaces = 16, kPlace = 2048;
  ASSERT_TRUE(recording);
  const auto parts = recording->part_bytes();
  for (const std::uint64_t bytes : parts) ASSERT_LE(bytes, kPlace);
  const CuDevicePtr field = memory_for_launches((kPlaces + 1) * kPlace);
  const CuDevicePtr first = (field + 511) / 512 * 512;
  const CuStream on = stream();
  std::mt19937 random(11);
  for (std::uint32_t round = 0; round < rounds; ++round) {
    std::array<std::size_t, kPlaces> places{};  // of x, y, z and the parts
    std::iota(places.begin(), places.end(), 0u);
    std::shuffle(places.begin(), places.end(), random);
    ASSERT_CU(d.cuMemsetD32Async(first, kPoison, kPlaces * kPlace / 4, on));
    ASSERT_CU(d.cuStreamSynchronize(on));
    const auto at = [&](std::size_t i) { return first + places[i] * kPlace; };
    std::vector<std::uint32_t> x(kWords);
    for (std::uint32_t i = 0; i < kWords; ++i) x[i] = round + i;
    put(at(0), x);
    std::vector<std::uint64_t> addresses;
    for (std::size_t i = 0; i < 3 + parts.size(); ++i) addresses.push_back(at(i));
    const auto launched = cuda::launch(*recording, addresses, on);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    ASSERT_CU(d.cuStreamSynchronize(on));
    const auto words = get(first, kPlaces * kPlace / 4);
    std::vector<std::uint32_t> expected(words.size(), kPoison);
    for (std::uint32_t i = 0; i < kWords; ++i) {
      expected[places[0] * kPlace / 4 + i] = round + i;
      expected[places[1] * kPlace / 4 + i] = round + i + 3;
      expected[places[2] * kPlace / 4 + i] = kStored + 1;
    }
    for (std::size_t part = 0; part < parts.size(); ++part) {  // may hold anything
      const auto begin = static_cast<std::ptrdiff_t>(places[3 + part] * kPlace / 4);
      std::copy_n(words.begin() + begin, parts[part] / 4, expected.begin() + begin);
    }
    ASSERT_EQ(std::memcmp(words.data(), expected.data(), words.size() * 4), 0) << "round " << round;
  }
  EXPECT_EQ(get(counter, kWords), std::vector<std::uint32_t>(kWords, rounds));
}

// The count in the child graph is of no one launch, and not looked at.
TEST_P(Recordings, LaunchesOfSeveralStreamsAtOnceKeepToTheirOwnAddresses) {
  constexpr std::size_t kStreams = 3, kLaunches = 8 * kStreams, kPlace = 1024;
  ASSERT_TRUE(recording);
  const auto parts = recording->part_bytes();
  for (const std::uint64_t bytes : parts) ASSERT_LE(bytes, kPlace);
  const std::size_t places = 3 + parts.size();  // x, y, z and the parts
  const CuDevicePtr field = memory_for_launches((kLaunches * places + 1) * kPlace);
  const CuDevicePtr first = (field + 511) / 512 * 512;
  const std::array<CuStream, kStreams> streams{stream(), stream(), stream()};
  for (std::uint32_t round = 0; round < 50; ++round) {
    ASSERT_CU(d.cuMemsetD32Async(first, kPoison, kLaunches * places * kPlace / 4, streams[0]));
    ASSERT_CU(d.cuStreamSynchronize(streams[0]));
    const auto at = [&](std::size_t launch, std::size_t place) {
      return first + (launch * places + (place + round + launch) % places) * kPlace;
    };
    for (std::uint32_t i = 0; i < kLaunches; ++i) {
      put(at(i, 0), std::vector<std::uint32_t>(kWords, 100 * round + i));
    }
    ASSERT_CU(d.cuCtxSynchronize());
    for (std::size_t i = 0; i < kLaunches; ++i) {
      std::vector<std::uint64_t> addresses;
      for (std::size_t place = 0; place < places; ++place) addresses.push_back(at(i, place));
      const auto launched = cuda::launch(*recording, addresses, streams[i % kStreams]);
      ASSERT_TRUE(launched.ok()) << launched.error().message();
    }
    for (const CuStream on : streams) ASSERT_CU(d.cuStreamSynchronize(on));
    for (std::uint32_t i = 0; i < kLaunches; ++i) {
      const auto holds = [&](std::size_t place, std::uint32_t word) {
        return get(at(i, place), kWords) == std::vector<std::uint32_t>(kWords, word);
      };
      ASSERT_TRUE(holds(0, 100 * round + i) && holds(1, 100 * round + i + 3) &&
                  holds(2, kStored + 1))
          << "launch " << i << " of round " << round;
    }
  }
}

// y = x + 2 by way of two temporaries, all of it in a child graph; with kernels of ours for its
// fill and its copy, and with the driver's.
class ChildRecordings : public Differential, public ::testing::WithParamInterface<bool> {
 protected:
  std::shared_ptr<CudaRecording> record(const DeviceCode* device_code) {
    std::unique_ptr<CaptureMemory> memories[2];
    CuGraph graphs[2] = {};
    for (int c = 0; c < 2; ++c) {
      memories[c] = *CaptureMemory::make(d);
      const CuGraph child = capture([&](CuStream on) { queue_step(on, *memories[c]); });
      graphs[c] = capture([](CuStream) {});
      CuGraphNode node = nullptr;
      EXPECT_CU(d.cuGraphAddChildGraphNode(&node, graphs[c], nullptr, 0, child));
    }
    const std::vector<UnitKind> kinds{UnitKind::kGiven, UnitKind::kGiven, UnitKind::kTemporary,
                                      UnitKind::kTemporary};
    auto made = record_captures(d, {graphs[0], memories[0]->allocations()},
                                {graphs[1], memories[1]->allocations()}, kinds,
                                {.device_code = device_code, .few_nodes = 0});
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }
  void queue_step(CuStream on, CaptureMemory& memory) {
    std::array<CuDevicePtr, 4> at{};
    for (CuDevicePtr& address : at) address = *memory.allocate(kUnitBytes);
    const auto add = [&](CuDevicePtr in, CuDevicePtr out) {
      std::uint32_t count = kWords;
      EXPECT_CU(Differential::launch(add_one, on, {&in, &out, &count}));
    };
    EXPECT_CU(d.cuMemsetD32Async(at[2], kPoison, kWords, on));
    add(at[0], at[2]);
    EXPECT_CU(d.cuMemcpyDtoDAsync(at[3], at[2], kBytes, on));
    add(at[3], at[1]);
  }
};

TEST_P(ChildRecordings, WhatMovesInAChildGraphRunsWhereALaunchSays) {
  std::unique_ptr<DeviceCode> code;
  if (GetParam()) code = *DeviceCode::load(d, device_code_image);
  const auto recording = record(code.get());
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->node_count(), 4u);
  const CuStream on = stream();
  for (std::uint32_t round = 0; round < 20; ++round) {
    std::vector<std::uint64_t> addresses;
    for (const SourceRule& source : recording->source_rules()) {
      addresses.push_back((allocate(source.bytes() + 511) + 511) / 512 * 512);
    }
    put(addresses[0], std::vector<std::uint32_t>(kWords, round));
    put(addresses[1], std::vector<std::uint32_t>(kWords, kPoison));
    const auto launched = cuda::launch(*recording, addresses, on);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    ASSERT_CU(d.cuStreamSynchronize(on));
    ASSERT_EQ(get(addresses[1], kWords), std::vector<std::uint32_t>(kWords, round + 2));
  }
}
INSTANTIATE_TEST_SUITE_P(, ChildRecordings, ::testing::Bool(),
                         [](const auto& with) { return with.param ? "ByKernels" : "ByTheDriver"; });

// A step that begins and ends in pinned memory, for launches at memory that is mapped or not.
class PinnedRecordings : public Differential, public ::testing::WithParamInterface<bool> {
 protected:
  std::shared_ptr<CudaRecording> record(const DeviceCode* device_code) {
    std::unique_ptr<CaptureMemory> memories[2];
    CuGraph graphs[2] = {};
    for (int c = 0; c < 2; ++c) {
      memories[c] = *CaptureMemory::make(d);
      std::array<CuDevicePtr, 2> at{};
      for (CuDevicePtr& address : at) address = *memories[c]->allocate(kUnitBytes);
      graphs[c] = capture([&](CuStream captured) {
        std::uint32_t count = kWords;
        EXPECT_CU(d.cuMemcpyHtoDAsync(at[0], in, kBytes, captured));
        EXPECT_CU(Differential::launch(add_one, captured, {&at[0], &at[1], &count}));
        EXPECT_CU(d.cuMemcpyDtoHAsync(out, at[1], kBytes, captured));
      });
    }
    const std::vector<UnitKind> kinds(2, UnitKind::kGiven);
    auto made = record_captures(
        d, {graphs[0], memories[0]->allocations()}, {graphs[1], memories[1]->allocations()}, kinds,
        {.device_code = device_code, .few_nodes = 0, .mapped_memory = GetParam()});
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return made.ok() ? *std::move(made) : nullptr;
  }
  void launch_at(CudaRecording& recording, CuDevicePtr first, std::uint32_t value) {
    std::fill_n(in, kWords, value);
    std::fill_n(out, kWords, kPoison);
    const std::vector<std::uint64_t> addresses{first, first + kUnitBytes};
    const auto launched = cuda::launch(recording, addresses, on);
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    ASSERT_CU(d.cuStreamSynchronize(on));
    EXPECT_EQ(std::count(out, out + kWords, value + 1), kWords);
  }

  const CuStream on = stream();
  std::uint32_t* const in = static_cast<std::uint32_t*>(allocate_host(kBytes));
  std::uint32_t* const out = static_cast<std::uint32_t*>(allocate_host(kBytes));
};

TEST_P(PinnedRecordings, CopyFromAndToMemoryOfTheKindThatWasSaid) {
  const auto code = *DeviceCode::load(d, device_code_image);
  for (const DeviceCode* const with : std::vector<const DeviceCode*>{nullptr, code.get()}) {
    const auto recording = record(with);
    ASSERT_TRUE(recording);
    Mapped mapped(d);
    const auto place = [&] { return (allocate(4 * kUnitBytes) + 511) / 512 * 512; };
    for (std::uint32_t round = 0; round < 20; ++round) {
      launch_at(*recording, GetParam() ? mapped.address + round * 4 * kUnitBytes : place(), round);
      const std::vector<std::uint64_t> other{GetParam() ? place() : mapped.address,
                                             mapped.address + kUnitBytes};
      EXPECT_FALSE(cuda::launch(*recording, other, on).ok());
    }
    for (std::uint32_t round = 0; GetParam() && round < 20; ++round) {
      launch_at(*recording, mapped.address, 100 + round);
      mapped.unmap(0);
      mapped.map(0);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(, PinnedRecordings, ::testing::Bool(), [](const auto& is_mapped) {
  return is_mapped.param ? "Mapped" : "Allocated";
});

std::string who(const ::testing::TestParamInfo<Way>& way) {
  const auto [by, is_mapped, is_side_by_side] = way.param;
  return std::string(by == By::kHost         ? "ByHost"
                     : by == By::kOneKernel  ? "ByOneKernel"
                     : by == By::kTwoKernels ? "ByTwoKernels"
                                             : "Launchable") +
         (is_mapped ? "Mapped" : "Allocated") + (is_side_by_side ? "SideBySide" : "");
}
INSTANTIATE_TEST_SUITE_P(, Recordings,
                         ::testing::Combine(::testing::Values(By::kHost, By::kOneKernel,
                                                              By::kTwoKernels, By::kLaunchable),
                                            ::testing::Bool(), ::testing::Bool()),
                         who);

}  // namespace
}  // namespace anabranch::cuda
