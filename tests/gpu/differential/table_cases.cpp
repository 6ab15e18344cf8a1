// SPDX-License-Identifier: Apache-2.0
// Arrays of addresses that a step brings to the device through pinned memory: what the driver says
// of that memory and of the copies, our kernel for them, and recordings launched at random places.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "base/seeds_testing.h"
#include "device/cuda/device_code.h"
#include "differential.h"
#include "record/cuda/discover.h"
#include "record/cuda/image/capture_memory.h"
#include "record/cuda/rewrite/transfer_kernels.h"

namespace anabranch::cuda {
namespace {

class Tables : public Differential {
 protected:
  Tables() {
    auto loaded = DeviceCode::load(d, device_code_image);
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message());
    code = *std::move(loaded);
  }
  static CuDevicePtr device_pointer(const void* host) {
    return reinterpret_cast<CuDevicePtr>(host);
  }
  void launch_foreach(CuStream on, CuDevicePtr table, std::uint32_t count) {
    void* params[] = {&table, &count};
    EXPECT_CU(d.cuLaunchKernel(foreach_add_one, (count + 31) / 32, 1, 1, 32, 1, 1, 0, on, params,
                               nullptr));
  }

  std::unique_ptr<DeviceCode> code;
};

TEST_F(Tables, EachByteOfPinnedMemoryKnowsWhereTheHostFindsIt) {
  auto* const host = static_cast<std::byte*>(allocate_host(100'000));
  for (const std::size_t at : {0, 1, 4096, 70'001, 99'999}) {
    CuMemoryType type{};
    unsigned is_managed = 0;
    void* found = nullptr;
    CuPointerAttribute wanted[] = {CuPointerAttribute::kMemoryType, CuPointerAttribute::kIsManaged};
    void* answers[] = {&type, &is_managed};
    ASSERT_CU(d.cuPointerGetAttributes(2, wanted, answers, device_pointer(host + at)));
    ASSERT_CU(d.cuPointerGetAttribute(&found, CuPointerAttribute::kHostPointer,
                                      device_pointer(host + at)));
    EXPECT_EQ(type, CuMemoryType::kHost);
    EXPECT_EQ(is_managed, 0u);
    EXPECT_EQ(found, host + at);
  }
}

TEST_F(Tables, AnImageHoldsWhatItsCopiesReadFromPinnedMemory) {
  auto* const host = static_cast<std::uint64_t*>(allocate_host(1024));
  std::iota(host, host + 128, 1000u);
  const CuDevicePtr to = allocate(1024);
  const CuGraph graph = capture([&](CuStream on) {
    EXPECT_CU(d.cuMemcpyHtoDAsync(to, host + 1, 24, on));
    EXPECT_CU(d.cuMemcpyAsync(to, device_pointer(host + 5), 21, on));
    EXPECT_CU(d.cuMemcpyDtoDAsync(to, to + 512, 64, on));
    CuMemcpy2D rows{};
    rows.src_memory_type = CuMemoryType::kHost;
    rows.src_host = host;
    rows.dst_memory_type = CuMemoryType::kDevice;
    rows.dst_device = to;
    rows.src_pitch = 64;
    rows.dst_pitch = rows.width_bytes = 32;
    rows.height = 2;
    EXPECT_CU(d.cuMemcpy2DAsync(&rows, on));
  });
  const auto image = read_graph(d, graph);
  ASSERT_TRUE(image.ok()) << image.error().message();
  ASSERT_EQ(image->nodes.size(), 4u);
  const auto expect_bytes = [&](std::size_t node, const void* from, std::size_t bytes) {
    const auto& read = image->nodes[node].source_bytes;
    ASSERT_EQ(read.size(), bytes);
    EXPECT_EQ(std::memcmp(read.data(), from, bytes), 0);
  };
  expect_bytes(0, host + 1, 24);
  expect_bytes(1, host + 5, 21);
  EXPECT_TRUE(image->nodes[2].source_bytes.empty());
  EXPECT_TRUE(image->nodes[3].source_bytes.empty());  // in two pieces
}

TEST_F(Tables, OurKernelWritesTheTableToTheLastByte) {
  constexpr std::size_t kField = 5 * kTableRange;
  const CuDevicePtr from = allocate(kField), to = allocate(kField);
  std::vector<std::uint8_t> source(kField), expected(kField), found(kField);
  std::mt19937_64 random(17);
  for (std::uint8_t& byte : source) byte = static_cast<std::uint8_t>(random());
  ASSERT_CU(d.cuMemcpyHtoD(from, source.data(), kField));
  ASSERT_CU(d.cuStreamSynchronize(nullptr));
  const CuStream on = stream();
  for (int round = 0; round < 200; ++round) {
    fill(to, 0xA5, kField);
    std::fill(expected.begin(), expected.end(), 0xA5);
    TableParams table;
    const std::uint64_t skipped = 16 * (random() % 4) + 8 * (random() % 2), place = random() % 40;
    table.from = from + skipped;
    table.to = to + (round % 3 == 0 ? place : place / 8 * 8);
    table.bytes = 1 + random() % (round % 2 == 0 ? 600 : kField - 200);
    std::memcpy(expected.data() + (table.to - to), source.data() + skipped, table.bytes);
    std::vector<std::uint32_t> words(table.bytes / 8);
    std::iota(words.begin(), words.end(), 0u);
    std::shuffle(words.begin(), words.end(), random);
    words.resize(std::min<std::size_t>(words.size(), random() % (kTableWords + 1)));
    std::sort(words.begin(), words.end());
    for (const std::uint32_t word : words) {
      table.places[table.count] = 8 * word;
      table.words[table.count] = random();
      std::memcpy(expected.data() + (table.to - to) + std::size_t{8} * word,
                  &table.words[table.count], 8);
      ++table.count;
    }
    KernelImage kernel = table_kernel(*code, table);
    void* params[] = {kernel.params.data()};
    const CuKernelNodeParams& p = kernel.launch;
    ASSERT_CU(d.cuLaunchKernel(p.func, p.grid_x, p.grid_y, p.grid_z, p.block_x, p.block_y,
                               p.block_z, 0, on, params, nullptr));
    ASSERT_CU(d.cuStreamSynchronize(on));
    ASSERT_CU(d.cuMemcpyDtoH(found.data(), to, kField));
    ASSERT_TRUE(found == expected) << "round " << round << ": " << table.bytes << " bytes";
  }
}

// y[i] = x[n - 1 - i] + 1 by addresses of each word, which take three kernels, with words between
// them that stay; then z = y + 1 by another table where the first one was.
class TableRecordings : public Tables, public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr std::uint32_t kCount = 350, kStays = 3000;
  static constexpr std::size_t kBytes = kCount * sizeof(std::uint32_t);
  static constexpr std::uint32_t kPoison = 0xA5A5A5A5;
  enum : std::size_t { kX, kY, kZ, kTable, kUnits };

  TableRecordings() {
    std::unique_ptr<CaptureMemory> memories[2];
    CuGraph graphs[2] = {};
    GraphImage images[2];
    // Both captures use the same pinned memory, one after the other.
    std::uint64_t* const pinned[] = {pin(), pin()};
    for (int c = 0; c < 2; ++c) {
      memories[c] = *CaptureMemory::make(d);
      graphs[c] = capture([&](CuStream on) { queue_step(on, *memories[c], pinned); });
      auto image = read_graph(d, graphs[c]);
      EXPECT_TRUE(image.ok()) << (image.ok() ? "" : image.error().message());
      if (image.ok()) images[c] = *std::move(image);
    }
    for (std::uint64_t* const words : pinned) std::fill_n(words, kWords, 0x5A5A5A5A5A5A5A5A);
    CudaRecordOptions options;
    options.device_code = code.get();
    options.updating_executables = GetParam() ? 1 : 0;
    std::vector<UnitKind> kinds(kUnits, UnitKind::kGiven);
    kinds[kTable] = UnitKind::kTemporary;
    auto made =
        record_captures(d, {graphs[0], memories[0]->allocations(), &images[0]},
                        {graphs[1], memories[1]->allocations(), &images[1]}, kinds, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    if (made.ok()) recording = *std::move(made);
  }
  CudaExec& exec() { return GetParam() ? *recording->updating()[0] : *recording->executables()[0]; }

  std::shared_ptr<CudaRecording> recording;

 private:
  static constexpr std::size_t kWords = 2 * kCount + kStays;
  std::uint64_t* pin() { return static_cast<std::uint64_t*>(allocate_host(8 * kWords)); }

  void queue_step(CuStream on, CaptureMemory& memory, std::uint64_t* const (&pinned)[2]) {
    std::array<CuDevicePtr, kUnits> at{};
    for (std::size_t i = 0; i < kUnits; ++i) {
      at[i] = *memory.allocate(i == kTable ? 8 * kWords : kBytes);
    }
    for (std::uint32_t i = 0; i < kCount; ++i) {
      pinned[0][i] = at[kX] + 4 * (kCount - 1 - i);
      pinned[0][kCount + i] = pinned[1][i] = at[kY] + 4 * i;
      pinned[1][kCount + i] = at[kZ] + 4 * i;
    }
    std::iota(pinned[0] + 2 * kCount, pinned[0] + kWords, 0u);
    EXPECT_CU(d.cuMemcpyHtoDAsync(at[kTable], pinned[0], 8 * kWords, on));
    launch_foreach(on, at[kTable], kCount);
    EXPECT_CU(d.cuMemcpyAsync(at[kTable], device_pointer(pinned[1]), 16 * kCount, on));
    launch_foreach(on, at[kTable], kCount);
  }
};

TEST_P(TableRecordings, LaunchesAtRandomPlacesWriteThereAndNowhereElse) {
  constexpr std::size_t kPlaces = 8, kPlace = 65'536;  // the arena takes a place, too
  ASSERT_TRUE(recording);
  ASSERT_EQ(recording->slots().size(), 3u);
  ASSERT_LE(recording->arena().size_bytes, kPlace);
  const CuDevicePtr field = allocate((kPlaces + 1) * kPlace);
  const CuDevicePtr first = (field + 511) / 512 * 512;
  std::array<std::size_t, kPlaces> places{};
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::mt19937 random(23);
  const CuStream on = stream();
  for (std::uint32_t round = 0; round < rounds_of(200); ++round) {
    std::shuffle(places.begin(), places.end(), random);
    ASSERT_CU(d.cuMemsetD32Async(first, kPoison, kPlaces * kPlace / 4, on));
    ASSERT_CU(d.cuStreamSynchronize(on));
    const auto at = [&](std::size_t i) { return first + places[i] * kPlace; };
    std::vector<std::uint32_t> x(kCount);
    std::iota(x.begin(), x.end(), 1000 * round);
    put(at(0), x);
    const auto set = exec().set_addresses(std::vector<std::uint64_t>{at(0), at(1), at(2), at(3)});
    ASSERT_TRUE(set.ok()) << set.error().message();
    const Status launched = exec().launch(on);
    ASSERT_TRUE(launched.ok()) << launched.message();
    ASSERT_CU(d.cuStreamSynchronize(on));
    const auto words = get(first, kPlaces * kPlace / 4);
    std::vector<std::uint32_t> expected(words.size(), kPoison);
    for (std::uint32_t i = 0; i < kCount; ++i) {
      expected[places[0] * kPlace / 4 + i] = x[i];
      expected[places[1] * kPlace / 4 + i] = x[kCount - 1 - i] + 1;
      expected[places[2] * kPlace / 4 + i] = x[kCount - 1 - i] + 2;
    }
    const auto arena = static_cast<std::ptrdiff_t>(places[3] * kPlace / 4);  // may hold anything
    std::copy_n(words.begin() + arena, recording->arena().size_bytes / 4, expected.begin() + arena);
    ASSERT_TRUE(words == expected) << "round " << round;
  }
}

TEST_P(TableRecordings, EveryAddressIsForTheUpdaterIfThereIsOne) {
  ASSERT_TRUE(recording);
  const CuDevicePtr field = (allocate(4 * 65'536) + 511) / 512 * 512;
  const auto set = exec().set_addresses(
      std::vector<std::uint64_t>{field, field + 2048, field + 4096, field + 8192});
  ASSERT_TRUE(set.ok()) << set.error().message();
  EXPECT_EQ(*set, GetParam() ? 0u : 8u);  // three kernels for each table, and those that read them
}

std::string who(const ::testing::TestParamInfo<bool>& by_updater) {
  return by_updater.param ? "ByUpdater" : "ByHost";
}
INSTANTIATE_TEST_SUITE_P(, TableRecordings, ::testing::Bool(), who);

}  // namespace
}  // namespace anabranch::cuda
