// SPDX-License-Identifier: Apache-2.0
// Checksums on the simulated driver, against those that torch's operators make of the same bytes.
#include "device/cuda/checksums.h"

#include <thread>

#include "device/sim/device_code_kernels.h"
#include "device/sim/sim_testing.h"

namespace anabranch::cuda {

inline void PrintTo(const Checksum& sum, std::ostream* out) {
  *out << std::hex << sum.first << ' ' << sum.second << std::dec;
}

}  // namespace anabranch::cuda

namespace anabranch::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint64_t kPiece = kChecksumPiece;

// Of bytes that each tell where they are.
struct Golden {
  ByteRange range;  // from the beginning of the bytes
  Checksum sum;
};
constexpr Golden kGolden[] = {
    {{0, 0}, {0, 0}},
    {{0, 1}, {0x48218226ff3cd4bf, 0x33fe8bd4f9c57863}},
    {{0, 7}, {0xab863b480a5144eb, 0x6a3f2d3ff42e4ab8}},
    {{0, 8}, {0x031a7a56c2d9d365, 0x4687fa89cb60763b}},
    {{0, 9}, {0x37b1801e7b333193, 0xb205982667c39f3b}},
    {{3, 100}, {0xefca378cf7ec9b0a, 0x31084306231e410f}},
    {{0, 4096}, {0x9c551a803889b53a, 0x9e84eac51362195d}},
    {{5, kPiece + 5}, {0xf14342b8affa6d83, 0xa38c8eac20b25af1}},
    {{0, kPiece + 5}, {0x6514348160ce1a40, 0x0ab221c802c1eebf}},
    {{16, 2 * kPiece}, {0x39ae538bb72d8499, 0xfae0e7a47558d18d}},
    {{1, 3 * kPiece - 3}, {0xb136e80550386cb6, 0xd2b8e834221fc96f}},
};

std::vector<std::uint8_t> make_bytes(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(i) * 2654435761u >> 24);
  }
  return bytes;
}

class ChecksumsTest : public SimTest {
 protected:
  ChecksumsTest() {
    auto made = CudaDevice::make(*d, 0, image.c_str());
    EXPECT_TRUE(made.ok());
    device = *std::move(made);
    on = stream();
  }

  CuDevicePtr upload(const std::vector<std::uint8_t>& bytes) {
    const CuDevicePtr address = allocate(bytes.size());
    EXPECT_CU(d->cuMemcpyHtoD(address, bytes.data(), bytes.size()));
    return address;
  }
  std::vector<Checksum> sums_of(const std::vector<ByteRange>& ranges) {
    const auto sums = checksums(*device, on, ranges);
    EXPECT_TRUE(sums.ok()) << sums.error().message();
    return sums.ok() ? *sums : std::vector<Checksum>(ranges.size());
  }

  const std::string image = add_device_code(*sim);
  std::shared_ptr<CudaDevice> device;
  CuStream on = nullptr;
};

TEST_F(ChecksumsTest, AreThoseOfTheDefinition) {
  const CuDevicePtr at = upload(make_bytes(3 * kPiece));
  std::vector<ByteRange> ranges;
  std::vector<Checksum> expected;
  for (const Golden& golden : kGolden) {
    ranges.push_back({at + golden.range.begin, golden.range.bytes});
    expected.push_back(golden.sum);
  }
  EXPECT_EQ(sums_of(ranges), expected);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_THAT(sums_of({ranges[i]}), ElementsAre(expected[i]));
  }
}

TEST_F(ChecksumsTest, EqualBytesHaveEqualSumsWhereverTheyLie) {
  std::vector<std::uint8_t> bytes = make_bytes(1000), twice = bytes;
  twice.push_back(0);
  twice.insert(twice.end(), bytes.begin(), bytes.end());
  const CuDevicePtr at = upload(twice);
  const std::vector<Checksum> sums = sums_of({{at, 1000}, {at + 1001, 1000}, {at, 1000}});
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

TEST_F(ChecksumsTest, EachByteIsInBothSums) {
  std::vector<std::uint8_t> bytes = make_bytes(77);
  const CuDevicePtr at = upload(bytes);
  const Checksum before = sums_of({{at, bytes.size()}}).front();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= 1;
    ASSERT_CU(d->cuMemcpyHtoD(at, bytes.data(), bytes.size()));
    const Checksum after = sums_of({{at, bytes.size()}}).front();
    EXPECT_NE(after.first, before.first) << "byte " << i;
    EXPECT_NE(after.second, before.second) << "byte " << i;
    bytes[i] ^= 1;
  }
}

TEST_F(ChecksumsTest, WordsAndPiecesThatChangePlacesChangeThem) {
  std::vector<std::uint8_t> bytes = make_bytes(2 * kPiece);
  const CuDevicePtr at = upload(bytes);
  const Checksum before = sums_of({{at, bytes.size()}}).front();
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 8);
  ASSERT_CU(d->cuMemcpyHtoD(at, bytes.data(), bytes.size()));
  EXPECT_NE(sums_of({{at, bytes.size()}}).front().first, before.first);
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 8);
  std::swap_ranges(bytes.begin(), bytes.begin() + kPiece, bytes.begin() + kPiece);
  ASSERT_CU(d->cuMemcpyHtoD(at, bytes.data(), bytes.size()));
  EXPECT_NE(sums_of({{at, bytes.size()}}).front().first, before.first);
}

TEST_F(ChecksumsTest, ComeBehindWhatTheStreamHasQueued) {
  const CuDevicePtr at = upload(make_bytes(64)), other = upload(std::vector<std::uint8_t>(64));
  const Checksum expected = sums_of({{at, 64}}).front();
  ASSERT_CU(d->cuMemcpyDtoDAsync(other, at, 64, on));
  EXPECT_EQ(sums_of({{other, 64}}).front(), expected);
}

TEST_F(ChecksumsTest, OfNothingAreZeroAndAskForNothing) {
  const std::size_t before = sim->calls().size();
  EXPECT_THAT(sums_of({}), ElementsAre());
  EXPECT_THAT(sums_of({{0, 0}, {8, 0}}), ElementsAre(Checksum{}, Checksum{}));
  EXPECT_EQ(sim->calls().size(), before);
}

TEST_F(ChecksumsTest, LeaveCapturesOfOtherThreadsAndTheCallersContextAlone) {
  const CuDevicePtr at = upload(make_bytes(64));
  const CuStream captured = stream();
  std::thread([&] {
    ASSERT_CU(d->cuCtxSetCurrent(context));
    ASSERT_CU(d->cuStreamBeginCapture(captured, CuCaptureMode::kThreadLocal));
  }).join();
  ASSERT_CU(d->cuCtxSetCurrent(nullptr));
  EXPECT_NE(sums_of({{at, 64}}).front(), Checksum{});
  CuCaptureStatus status{};
  ASSERT_CU(d->cuStreamIsCapturing(captured, &status));
  EXPECT_EQ(status, CuCaptureStatus::kActive);
}

TEST_F(ChecksumsTest, AFailingCallIsToldAndLeavesNothingBehind) {
  const CuDevicePtr at = upload(make_bytes(300));
  const auto failed = fail_each_call([&] {
    const ByteRange ranges[] = {{at, 300}, {at + 1, 20}};
    return checksums(*device, on, ranges);
  });
  for (const char* call : {"cuMemAlloc", "cuMemcpyHtoDAsync", "cuLaunchKernel", "cuMemcpyDtoHAsync",
                           "cuStreamSynchronize", "cuMemFree"}) {
    EXPECT_EQ(failed.count(call), 1u) << call;
  }
  EXPECT_THAT(sim->violations(), ElementsAre());
}

TEST_F(ChecksumsTest, MoreThanAGridTakesAreRefused) {
  const auto sums = checksums(*device, on, std::vector<ByteRange>{{0, ~std::uint64_t{0}}});
  ASSERT_FALSE(sums.ok());
  EXPECT_THAT(sums.error().message(), HasSubstr("bytes at most at a time"));
}

TEST_F(ChecksumsTest, WithoutDeviceCodeSayWhy) {
  const auto other = CudaDevice::make(*d, 0, SimDriver::make_image({"add_one"}).c_str());
  ASSERT_TRUE(other.ok());
  const auto sums = checksums(**other, on, std::vector<ByteRange>{{0, 0}});
  ASSERT_FALSE(sums.ok());
  EXPECT_EQ(sums.error().code(), StatusCode::kNotRecordable);
  EXPECT_THAT(sums.error().message(), HasSubstr((*other)->why_no_device_code()));
}

}  // namespace
}  // namespace anabranch::sim
