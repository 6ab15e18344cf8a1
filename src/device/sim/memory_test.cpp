// SPDX-License-Identifier: Apache-2.0
#include "device/sim/memory.h"

#include "device/sim/sim_testing.h"

namespace anabranch::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SimMemory : public SimTest {
 protected:
  template <typename T>
  T attribute(CuPointerAttribute which, CuDevicePtr address) {
    T value{};
    EXPECT_CU(d->cuPointerGetAttribute(&value, which, address));
    return value;
  }
  CuMemAllocationProp prop() {
    CuMemAllocationProp prop{};
    prop.type = CuAllocationType::kPinned;
    prop.location = {CuLocationType::kDevice, 0};
    return prop;
  }
  CuMemoryHandle page() {
    const CuMemAllocationProp of = prop();
    CuMemoryHandle handle = 0;
    EXPECT_CU(d->cuMemCreate(&handle, kPageBytes, &of, 0));
    return handle;
  }
  void allow(CuDevicePtr address, std::size_t bytes) {
    const CuMemAccessDesc access{{CuLocationType::kDevice, 0}, CuAccess::kReadWrite};
    EXPECT_CU(d->cuMemSetAccess(address, bytes, &access, 1));
  }
  // A kernel that writes one byte at an address, whatever lies there.
  CuFunction poke() {
    return load({.name = "poke", .params = layout_of({8}), .run = [](const KernelCall& call) {
                   *reinterpret_cast<unsigned char*>(call.param<CuDevicePtr>(0)) = 1;
                 }});
  }
};

TEST_F(SimMemory, AllocationsAreAlignedPoisonedAndApart) {
  const CuDevicePtr a = allocate(100), b = allocate(1);
  EXPECT_EQ(a % kAllocationAlignment, 0u);
  EXPECT_GE(b, a + 256 + 2 * kRedZoneBytes);
  EXPECT_GT(a, std::uint64_t{1} << 32);
  EXPECT_LT(a, std::uint64_t{1} << 48);
  EXPECT_EQ(get(a), 0xcdcdcdcdu);
}

TEST_F(SimMemory, MemoryThatIsFullIsAnErrorAndFreeingGivesItBack) {
  start({.device_bytes = 1 << 20});
  const CuDevicePtr a = allocate(1 << 19);
  CuDevicePtr more = 0;
  EXPECT_EQ(d->cuMemAlloc(&more, (1 << 19) + 1), CuResult::kOutOfMemory);
  EXPECT_CU(d->cuMemFree(a));
  EXPECT_CU(d->cuMemAlloc(&more, 1 << 20));
  EXPECT_NE(more, a);
}

TEST_F(SimMemory, AnAllocationIsFreedOnce) {
  const CuDevicePtr a = allocate(64);
  EXPECT_CU(d->cuMemFree(a));
  EXPECT_EQ(d->cuMemFree(a), CuResult::kInvalidValue);
  EXPECT_THAT(sim->violations(), ElementsAre(HasSubstr("is no live allocation")));
  EXPECT_CU(d->cuCtxSynchronize());
}

TEST_F(SimMemory, AWriteBesideAnAllocationLosesTheContext) {
  CuDevicePtr past = allocate(100) + 100;
  ASSERT_CU(launch(poke(), nullptr, {&past}));
  EXPECT_EQ(d->cuCtxSynchronize(), CuResult::kIllegalAddress);
  EXPECT_THAT(sim->violations(), ElementsAre(HasSubstr("red zone after")));
  EXPECT_EQ(d->cuMemAlloc(&past, 1), CuResult::kIllegalAddress);
}

TEST_F(SimMemory, AWriteAfterFreeingLosesTheContext) {
  CuDevicePtr gone = allocate(100);
  const CuFunction function = poke();
  ASSERT_CU(d->cuMemFree(gone));
  ASSERT_CU(launch(function, nullptr, {&gone}));
  EXPECT_EQ(d->cuCtxSynchronize(), CuResult::kIllegalAddress);
  EXPECT_THAT(sim->violations(), ElementsAre(HasSubstr("written after it was freed")));
}

TEST_F(SimMemory, AKernelIsGivenNoMemoryThatIsNotAllLive) {
  const CuDevicePtr a = allocate(64), b = allocate(64);
  ASSERT_CU(add_one(nullptr, a, b, 17));
  EXPECT_EQ(d->cuCtxSynchronize(), CuResult::kIllegalAddress);
  EXPECT_THAT(sim->violations(), ElementsAre(HasSubstr("a kernel touched 68 bytes"),
                                             HasSubstr("a kernel touched 68 bytes")));
}

TEST_F(SimMemory, ACopyOfWhatIsNotTheDriversIsRefusedWhenItIsQueued) {
  const CuDevicePtr a = allocate(64);
  ASSERT_CU(d->cuMemFree(a));
  EXPECT_EQ(d->cuMemsetD8Async(a, 0, 64, nullptr), CuResult::kInvalidValue);
  EXPECT_EQ(d->cuMemcpyDtoDAsync(allocate(64), a, 64, nullptr), CuResult::kInvalidValue);
  EXPECT_CU(d->cuCtxSynchronize());
}

TEST_F(SimMemory, ACopyThatReachesTooFarLosesTheContextWhenItRuns) {
  const CuDevicePtr a = allocate(64), b = allocate(128);
  ASSERT_CU(d->cuMemcpyDtoDAsync(b, a, 65, nullptr));
  EXPECT_EQ(d->cuStreamSynchronize(nullptr), CuResult::kIllegalAddress);
}

TEST_F(SimMemory, SeveralRangesShareOnePhysicalPage) {
  CuDevicePtr range = 0;
  ASSERT_CU(d->cuMemAddressReserve(&range, 3 * kPageBytes, 0, 0, 0));
  const CuMemoryHandle handle = page();
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_CU(d->cuMemMap(range + i * kPageBytes, kPageBytes, 0, handle, 0));
  }
  ASSERT_CU(d->cuMemRelease(handle));  // the mappings keep it
  allow(range, 3 * kPageBytes);
  put(range + 8, 42);
  EXPECT_EQ(get(range + kPageBytes + 8), 42u);
  EXPECT_EQ(get(range + 2 * kPageBytes + 8), 42u);
  EXPECT_EQ(sim->live_objects(), 4u);  // three mappings and a range
  ASSERT_CU(d->cuMemUnmap(range, 3 * kPageBytes));
  ASSERT_CU(d->cuMemAddressFree(range, 3 * kPageBytes));
  EXPECT_EQ(sim->live_objects(), 0u);
}

TEST_F(SimMemory, MappedMemoryIsDeadUntilAccessIsGiven) {
  CuDevicePtr range = 0;
  ASSERT_CU(d->cuMemAddressReserve(&range, kPageBytes, 0, 0, 0));
  EXPECT_EQ(d->cuMemsetD8Async(range, 0, 1, nullptr), CuResult::kInvalidValue);
  ASSERT_CU(d->cuMemMap(range, kPageBytes, 0, page(), 0));
  ASSERT_CU(d->cuMemsetD8Async(range, 0, 1, nullptr));
  EXPECT_EQ(d->cuStreamSynchronize(nullptr), CuResult::kIllegalAddress);
}

TEST_F(SimMemory, VirtualMemoryComesInPagesAndIsGivenBackUnmapped) {
  const CuMemAllocationProp of = prop();
  std::size_t granularity = 0;
  ASSERT_CU(d->cuMemGetAllocationGranularity(&granularity, &of, CuGranularity::kMinimum));
  EXPECT_EQ(granularity, kPageBytes);
  CuMemoryHandle handle = 0;
  EXPECT_EQ(d->cuMemCreate(&handle, 4096, &of, 0), CuResult::kInvalidValue);
  CuDevicePtr range = 0;
  ASSERT_CU(d->cuMemAddressReserve(&range, kPageBytes, 0, 0, 0));
  ASSERT_CU(d->cuMemMap(range, kPageBytes, 0, page(), 0));
  EXPECT_EQ(d->cuMemMap(range, kPageBytes, 0, page(), 0), CuResult::kInvalidValue);
  EXPECT_EQ(d->cuMemAddressFree(range, kPageBytes), CuResult::kInvalidValue);
}

TEST_F(SimMemory, APointerTellsWhatItBelongsTo) {
  const CuDevicePtr a = allocate(100);
  EXPECT_EQ(attribute<CuMemoryType>(CuPointerAttribute::kMemoryType, a + 99),
            CuMemoryType::kDevice);
  EXPECT_EQ(attribute<CuDevicePtr>(CuPointerAttribute::kRangeStart, a + 99), a);
  EXPECT_EQ(attribute<std::size_t>(CuPointerAttribute::kRangeSize, a), 100u);
  EXPECT_EQ(attribute<CuContext>(CuPointerAttribute::kContext, a), context);
  CuMemoryType type{};
  EXPECT_EQ(d->cuPointerGetAttribute(&type, CuPointerAttribute::kMemoryType, a + 100),
            CuResult::kInvalidValue);
  const CuDevicePtr here = reinterpret_cast<CuDevicePtr>(&type);
  EXPECT_EQ(d->cuPointerGetAttribute(&type, CuPointerAttribute::kMemoryType, here),
            CuResult::kInvalidValue);
}

TEST_F(SimMemory, AllocationsHaveIdsThatAreNotUsedAgain) {
  const CuDevicePtr a = allocate(64);
  const auto first = attribute<std::uint64_t>(CuPointerAttribute::kBufferId, a);
  ASSERT_CU(d->cuMemFree(a));
  EXPECT_NE(attribute<std::uint64_t>(CuPointerAttribute::kBufferId, allocate(64)), first);
}

TEST_F(SimMemory, WhatIsToldOfMappedPagesIsATestsToChoose) {
  for (const MappedIds ids : {MappedIds::kOfPages, MappedIds::kOfRange, MappedIds::kNone}) {
    start({.mapped_ids = ids});
    MappedPages pages(*d, 2);
    std::uint64_t first = 0, second = 0, again = 0;
    const auto ask = [&](std::uint64_t& id, CuDevicePtr address) {
      EXPECT_EQ(d->cuPointerGetAttribute(&id, CuPointerAttribute::kBufferId, address),
                ids == MappedIds::kNone ? CuResult::kInvalidValue : CuResult::kSuccess);
    };
    ask(first, pages.address());
    ask(second, pages.address() + kPageBytes);
    pages.map_anew(0);
    ask(again, pages.address());
    EXPECT_EQ(first == second, ids != MappedIds::kOfPages);
    EXPECT_EQ(first == again, ids != MappedIds::kOfPages);
  }
}

TEST_F(SimMemory, PinnedMemoryIsTheHostsAndTheDevices) {
  void* host = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&host, 64, kHostAllocPortable));
  const auto address = reinterpret_cast<CuDevicePtr>(host);
  EXPECT_EQ(attribute<CuMemoryType>(CuPointerAttribute::kMemoryType, address), CuMemoryType::kHost);
  static_cast<std::uint32_t*>(host)[0] = 6;
  const CuDevicePtr out = allocate(64);
  ASSERT_CU(add_one(nullptr, address, out));
  EXPECT_EQ(get(out), 7u);
  EXPECT_CU(d->cuMemFreeHost(host));
  EXPECT_EQ(d->cuMemFreeHost(host), CuResult::kInvalidValue);
}

TEST_F(SimMemory, PageableMemoryIsReadWhenACopyIsQueuedAndPinnedWhenItRuns) {
  void* pinned = nullptr;
  ASSERT_CU(d->cuMemHostAlloc(&pinned, 4, 0));
  const CuDevicePtr a = allocate(4), b = allocate(4);
  std::uint32_t pageable = 1;
  *static_cast<std::uint32_t*>(pinned) = 1;
  const CuStream on = stream();
  ASSERT_CU(d->cuMemcpyHtoDAsync(a, &pageable, 4, on));
  ASSERT_CU(d->cuMemcpyHtoDAsync(b, pinned, 4, on));
  pageable = *static_cast<std::uint32_t*>(pinned) = 2;
  ASSERT_CU(d->cuStreamSynchronize(on));
  EXPECT_EQ(get(a), 1u);
  EXPECT_EQ(get(b), 2u);
}

TEST_F(SimMemory, CopiesOfTwoAndThreeDimensionsMoveTheirBoxAlone) {
  const CuDevicePtr a = allocate(4 * 3 * 2), b = allocate(8 * 4 * 2);
  for (unsigned i = 0; i < 6; ++i) put(a + 4 * i, i + 1);
  ASSERT_CU(d->cuMemsetD8(b, 0, 64));
  CuMemcpy3D copy{};
  copy.src_memory_type = copy.dst_memory_type = CuMemoryType::kDevice;
  copy.src_device = a;
  copy.src_pitch = 4;
  copy.src_height = 3;
  copy.dst_device = b;
  copy.dst_x_bytes = 4;
  copy.dst_y = 1;
  copy.dst_pitch = 8;
  copy.dst_height = 4;
  copy.width_bytes = 4;
  copy.height = 3;
  copy.depth = 2;
  ASSERT_CU(d->cuMemcpy3DAsync(&copy, nullptr));
  std::vector<std::uint32_t> words(16);
  ASSERT_CU(d->cuMemcpyDtoH(words.data(), b, 64));
  EXPECT_THAT(words, ElementsAre(0, 0, 0, 1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 5, 0, 6));
}

TEST_F(SimMemory, FillsOfTwoDimensionsLeaveThePaddingAlone) {
  const CuDevicePtr a = allocate(24);
  ASSERT_CU(d->cuMemsetD8(a, 0, 24));
  ASSERT_CU(d->cuMemsetD2D32Async(a, 12, 7, 2, 2, nullptr));
  std::vector<std::uint32_t> words(6);
  ASSERT_CU(d->cuMemcpyDtoH(words.data(), a, 24));
  EXPECT_THAT(words, ElementsAre(7, 7, 0, 7, 7, 0));
  EXPECT_EQ(d->cuMemsetD32Async(a + 2, 0, 1, nullptr), CuResult::kInvalidValue);
}

TEST_F(SimMemory, MemoryThatIsFreedAndTakenForLongDoesNotFillTheMachine) {
  for (int i = 0; i < 2000; ++i) ASSERT_CU(d->cuMemFree(allocate(100'000)));
  EXPECT_THAT(sim->violations(), IsEmpty());
}

}  // namespace
}  // namespace anabranch::sim
