// SPDX-License-Identifier: Apache-2.0
// Our kernels for copies and fills against what the driver does when it is asked for the same.
#include <algorithm>
#include <memory>
#include <random>

#include "device/cuda/device_code.h"
#include "differential.h"
#include "record/cuda/rewrite/transfer_kernels.h"

namespace anabranch::cuda {
namespace {

class Transfers : public Differential {
 protected:
  static constexpr std::size_t kField = 1 << 16;

  Transfers() {
    auto loaded = DeviceCode::load(d, device_code_image);
    EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().message());
    code = *std::move(loaded);
    on = stream();
  }

  std::uint64_t random(std::uint64_t least, std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(least, most)(random_);
  }
  // Also many that are multiples of a vector, and so is what is made of them.
  std::uint64_t random_bytes(std::uint64_t most) {
    const std::uint64_t bytes = random(0, most);
    const std::uint64_t unit = std::uint64_t{1} << random(0, 4);
    return bytes / unit * unit;
  }
  void randomize(CuDevicePtr address, std::size_t bytes) {
    std::vector<std::uint32_t> words(bytes / 4);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random_());
    put(address, words);
  }
  void launch_kernel(KernelImage kernel) {
    void* params[] = {kernel.params.data()};
    const CuKernelNodeParams& p = kernel.launch;
    ASSERT_CU(d.cuLaunchKernel(p.func, p.grid_x, p.grid_y, p.grid_z, p.block_x, p.block_y,
                               p.block_z, 0, on, params, nullptr));
    ASSERT_CU(d.cuStreamSynchronize(on));
  }

  // A box with free bytes on every side, in fields of kField bytes.
  CuMemcpy3D random_copy(CuDevicePtr from, CuDevicePtr to) {
    CuMemcpy3D copy{};
    copy.src_memory_type = copy.dst_memory_type = CuMemoryType::kDevice;
    copy.src_device = from + random_bytes(64);
    copy.dst_device = to + random_bytes(64);
    const std::uint64_t dimensions = random(1, 3);
    copy.width_bytes = 1 + random_bytes(dimensions == 1 ? 40'000 : 400);
    if (random(0, 1)) copy.width_bytes += 15;
    copy.height = dimensions > 1 ? random(1, 12) : 1;
    copy.depth = dimensions > 2 ? random(1, 4) : 1;
    copy.src_x_bytes = random_bytes(20), copy.dst_x_bytes = random_bytes(20);
    copy.src_y = random(0, 2), copy.dst_y = random(0, 2);
    copy.src_z = random(0, 1), copy.dst_z = random(0, 1);
    if (dimensions == 1) copy.src_y = copy.dst_y = copy.src_z = copy.dst_z = 0;
    copy.src_pitch = copy.width_bytes + copy.src_x_bytes + random_bytes(32);
    copy.dst_pitch = copy.width_bytes + copy.dst_x_bytes + random_bytes(32);
    copy.src_height = copy.height + copy.src_y + random(0, 1);
    copy.dst_height = copy.height + copy.dst_y + random(0, 1);
    return copy;
  }
  CuMemsetNodeParams random_fill() {
    const auto element = static_cast<unsigned>(1 << random(0, 2));
    const std::uint64_t height = random(0, 2) == 0 ? random(2, 12) : 1;
    const std::uint64_t width = random(1, (height == 1 ? 40'000 : 2000) / element);
    return {random_bytes(64) / element * element,
            (width + random(0, 9)) * element,
            static_cast<unsigned>(random(0, ~0u >> (32 - 8 * element))),
            element,
            width,
            height};
  }
  void run_fill(const CuMemsetNodeParams& fill) {
    const CuGraph graph = capture([](CuStream) {});
    CuGraphNode node = nullptr;
    ASSERT_CU(d.cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context));
    run(instantiate(graph));
  }

  std::unique_ptr<DeviceCode> code;
  CuStream on = nullptr;

 private:
  std::mt19937 random_{3};
};

TEST_F(Transfers, CopiesOfAnyShapeAndAlignmentAreTheDrivers) {
  const CuDevicePtr from = allocate(kField), to = allocate(kField), other = allocate(kField);
  randomize(from, kField);
  for (int round = 0; round < 500; ++round) {
    const std::uint32_t poison = 0x01010101u * static_cast<std::uint32_t>(round % 256);
    put(to, std::vector<std::uint32_t>(kField / 4, poison));
    put(other, std::vector<std::uint32_t>(kField / 4, poison));
    CuMemcpy3D copy = random_copy(from, to);
    launch_kernel(copy_kernel(*code, copy));
    copy.dst_device = other + (copy.dst_device - to);
    ASSERT_CU(d.cuMemcpy3DAsync(&copy, on));
    ASSERT_CU(d.cuStreamSynchronize(on));
    ASSERT_TRUE(get(to, kField / 4) == get(other, kField / 4))
        << "round " << round << ": " << copy.width_bytes << " x " << copy.height << " x "
        << copy.depth << " bytes";
  }
}

TEST_F(Transfers, FillsOfAnyShapeAndAlignmentAreTheDrivers) {
  const CuDevicePtr to = allocate(kField), other = allocate(kField);
  randomize(to, kField);
  for (int round = 0; round < 200; ++round) {
    put(other, get(to, kField / 4));
    CuMemsetNodeParams fill = random_fill();
    const std::uint64_t offset = fill.dst;
    fill.dst = to + offset;
    launch_kernel(fill_kernel(*code, fill));
    fill.dst = other + offset;
    run_fill(fill);
    ASSERT_TRUE(get(to, kField / 4) == get(other, kField / 4))
        << "round " << round << ": " << fill.width << " x " << fill.height << " elements of "
        << fill.element_bytes << " bytes";
  }
}

// More than all blocks take in one go, with a rest.
TEST_F(Transfers, LargeOnesAreDoneToTheLastByte) {
  ANABRANCH_SKIP_UNDER_TSAN();
  constexpr std::size_t kLarge = std::size_t{24} << 20;
  const CuDevicePtr from = allocate(kLarge), to = allocate(kLarge);
  randomize(from, kLarge);
  for (const std::uint64_t skipped : {0, 1, 4}) {
    fill(to, 0xA5, kLarge);
    CuMemcpy3D copy{};
    copy.src_memory_type = copy.dst_memory_type = CuMemoryType::kDevice;
    copy.src_device = from + skipped;
    copy.dst_device = to + 16;
    copy.width_bytes = kLarge - 32 - 3;
    copy.height = copy.depth = 1;
    launch_kernel(copy_kernel(*code, copy));
    std::vector<std::uint8_t> source(kLarge), copied(kLarge), expected(kLarge, 0xA5);
    ASSERT_CU(d.cuMemcpyDtoH(source.data(), from, kLarge));
    ASSERT_CU(d.cuMemcpyDtoH(copied.data(), to, kLarge));
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(skipped), copy.width_bytes,
                expected.begin() + 16);
    ASSERT_TRUE(copied == expected) << "from byte " << skipped;
  }
  for (const std::uint64_t skipped : {1, 16}) {
    fill(to, 0xA5, kLarge);
    launch_kernel(fill_kernel(*code, {to + skipped, 0, 0x5B, 1, kLarge - 32, 1}));
    std::vector<std::uint8_t> filled(kLarge), expected(kLarge, 0xA5);
    ASSERT_CU(d.cuMemcpyDtoH(filled.data(), to, kLarge));
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(skipped), kLarge - 32, 0x5B);
    ASSERT_TRUE(filled == expected) << "from byte " << skipped;
  }
}

TEST_F(Transfers, NoBytesAreNone) {
  const CuDevicePtr from = allocate(64), to = allocate(64);
  put(from, {1});
  put(to, {2});
  CuMemcpy3D copy{};
  copy.src_memory_type = copy.dst_memory_type = CuMemoryType::kDevice;
  copy.src_device = from;
  copy.dst_device = to;
  copy.height = copy.depth = 1;
  launch_kernel(copy_kernel(*code, copy));
  launch_kernel(fill_kernel(*code, {to, 0, 7, 4, 0, 1}));
  EXPECT_EQ(get(to, 1).front(), 2u);
}

}  // namespace
}  // namespace anabranch::cuda
