// SPDX-License-Identifier: Apache-2.0
// Checksums that device code makes against the definition, on the host.
#include <algorithm>
#include <memory>
#include <random>

#include "device/cuda/checksums.h"
#include "device/sim/device_code_kernels.h"
#include "differential.h"

namespace anabranch::cuda {
namespace {

class Checksums : public Differential {
 protected:
  Checksums() {
    auto made = CudaDevice::make(d, 0, device_code_image);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    device = *std::move(made);
    on = stream();
  }

  std::uint64_t random(std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(0, most)(random_);
  }
  void make_field(std::size_t bytes) {
    std::vector<std::uint32_t> words(bytes / 4);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random_());
    field = allocate(bytes);
    put(field, words);
    host.resize(bytes);
    std::copy_n(reinterpret_cast<const std::uint8_t*>(words.data()), bytes, host.begin());
  }
  // Ranges are counted from the beginning of the field.
  void expect_the_definition(const std::vector<ByteRange>& ranges) {
    std::vector<ByteRange> there = ranges;
    for (ByteRange& range : there) range.begin += field;
    const auto sums = checksums(*device, on, there);
    ASSERT_TRUE(sums.ok()) << sums.error().message();
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const Checksum expected =
          sim::checksum_of(std::span(host).subspan(ranges[i].begin, ranges[i].bytes));
      EXPECT_TRUE((*sums)[i] == expected)
          << ranges[i].bytes << " bytes from byte " << ranges[i].begin << " on";
    }
  }

  std::shared_ptr<CudaDevice> device;
  CuStream on = nullptr;
  CuDevicePtr field = 0;
  std::vector<std::uint8_t> host;

 private:
  std::mt19937 random_{7};
};

TEST_F(Checksums, OfManyRangesAreTheDefinitions) {
  constexpr std::uint64_t kField = std::uint64_t{4} << 20;
  make_field(kField);
  for (const std::uint64_t most : {std::uint64_t{40}, std::uint64_t{5000}, kField}) {
    std::vector<ByteRange> ranges;
    for (int i = 0; i < (most == kField ? 40 : 2000); ++i) {
      const std::uint64_t bytes = random(9) == 0 ? 0 : random(most);
      ranges.push_back({random(kField - bytes), bytes});
    }
    expect_the_definition(ranges);
  }
}

// Pieces are done four at a time, two at a time and one by one.
TEST_F(Checksums, OfLargeRangesOfAnyAlignmentAreTheDefinitions) {
  ANABRANCH_SKIP_UNDER_TSAN();
  make_field(7 * kChecksumPiece + 64);
  for (const std::uint64_t begin : {0, 8, 4, 2, 1, 15}) {
    expect_the_definition({{begin, 7 * kChecksumPiece + 13},
                           {begin, 4 * kChecksumPiece},
                           {begin + 16, 3 * kChecksumPiece - 1},
                           {begin, kChecksumPiece + 5},
                           {begin, kChecksumChunk},
                           {begin, kChecksumChunk + 1}});
  }
}

}  // namespace
}  // namespace anabranch::cuda
