// SPDX-License-Identifier: Apache-2.0
// Call sequences written once against the driver's table, with what the driver answers: they run on
// the simulated driver in every test run, and on a real one where there is one. Where the two
// differ, the simulation is wrong.
// Ownership: a fixture frees what it made, and ends the captures on its streams.
// Threads:   one; in_thread() makes another for a single call and waits for it.
// Failure:   an answer that is not expected fails its case and ends it only if nothing that follows
//            would make sense.
// Edges:     no case may lose the context, since all cases on a real driver share it.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "device/cuda/driver.h"

namespace anabranch::cuda {

inline void PrintTo(CuResult result, std::ostream* out) { *out << result_text(result); }

#define ASSERT_CU(call) ASSERT_EQ(call, ::anabranch::cuda::CuResult::kSuccess)
#define EXPECT_CU(call) EXPECT_EQ(call, ::anabranch::cuda::CuResult::kSuccess)

// For cases that one thread does over much memory: ThreadSanitizer has nothing to find there, and
// takes minutes.
#ifdef __SANITIZE_THREAD__
#define ANABRANCH_SKIP_UNDER_TSAN() GTEST_SKIP() << "one thread, over much memory"
#else
#define ANABRANCH_SKIP_UNDER_TSAN() static_cast<void>(0)
#endif

// PTX of the kernels, which the simulated driver reads for their names:
//   add_one(in, out, u32 count)        out[i] = in[i] + 1 on 32-bit words
//   store(u32 count, {out, u32 value}) out[i] = value
//   foreach_add_one(table, u32 count)  *table[count + i] = *table[i] + 1 on 32-bit words
//   keep_numbers(out, u64, u32, u16)   stores them: 8 bytes, and two words of 32 bits
//   nothing()
extern const char* const kKernels;

// A struct by value, as the kernel `store` takes it.
struct Target {
  CuDevicePtr out;
  std::uint32_t value, padding;
};

class Differential : public ::testing::Test {
 public:
  // The driver under test and its device 0; set once by main().
  static const Driver* driver;
  // The image of device code for this driver; null for the one embedded in the library.
  static const void* device_code_image;

 protected:
  Differential();
  ~Differential() override;

  CuStream stream(unsigned flags = kStreamNonBlocking, int priority = 0);
  CuEvent event();
  CuDevicePtr allocate(std::size_t bytes);
  void* allocate_host(std::size_t bytes);
  // Both are done when they return: the driver's own calls may return before, and streams of these
  // tests wait for nothing that is queued on the default one.
  void put(CuDevicePtr address, std::vector<std::uint32_t> words);
  void fill(CuDevicePtr address, std::uint8_t byte, std::size_t bytes);
  std::vector<std::uint32_t> get(CuDevicePtr address, std::size_t count);
  CuResult launch(CuFunction function, CuStream on, std::vector<void*> params = {});
  CuResult launch_add_one(CuStream on, CuDevicePtr in, CuDevicePtr out);
  void begin(CuStream on, CuCaptureMode mode = CuCaptureMode::kRelaxed);
  CuGraph end(CuStream on);
  // The graph of what `work` queues.
  CuGraph capture(const std::function<void(CuStream)>& work);
  std::vector<CuGraphNode> nodes_of(CuGraph graph);
  CuGraphExec instantiate(CuGraph graph);
  void run(CuGraphExec exec);
  // The answer of a call made by another thread in the same context.
  CuResult in_thread(const std::function<CuResult()>& call);

  const Driver& d = *driver;
  CuContext context = nullptr;
  CuModule module = nullptr;
  CuFunction add_one = nullptr, store = nullptr, nothing = nullptr, foreach_add_one = nullptr;
  CuFunction keep_numbers = nullptr;

 private:
  std::vector<CuStream> streams_;
  std::vector<CuEvent> events_;
  std::vector<CuDevicePtr> memory_;
  std::vector<void*> host_memory_;
  std::vector<CuGraph> graphs_;
  std::vector<CuGraphExec> execs_;
};

// A few pages of mapped memory, for one case.
class Mapped {
 public:
  static constexpr std::size_t kPage = std::size_t{2} << 20;

  explicit Mapped(const Driver& driver, std::size_t pages = 1) : d(driver), bytes_(pages * kPage) {
    EXPECT_CU(d.cuMemAddressReserve(&address, bytes_, 0, 0, 0));
    for (std::size_t page = 0; page < pages; ++page) map(page);
  }
  ~Mapped() {
    EXPECT_CU(d.cuMemUnmap(address, bytes_));
    EXPECT_CU(d.cuMemAddressFree(address, bytes_));
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  void unmap(std::size_t page) { EXPECT_CU(d.cuMemUnmap(address + page * kPage, kPage)); }
  // Other memory than there was.
  void map(std::size_t page) {
    CuMemAllocationProp prop{};
    prop.type = CuAllocationType::kPinned;
    prop.location = {CuLocationType::kDevice, 0};
    const CuMemAccessDesc access{prop.location, CuAccess::kReadWrite};
    CuMemoryHandle handle = 0;
    EXPECT_CU(d.cuMemCreate(&handle, kPage, &prop, 0));
    EXPECT_CU(d.cuMemMap(address + page * kPage, kPage, 0, handle, 0));
    EXPECT_CU(d.cuMemRelease(handle));  // the mapping keeps it
    EXPECT_CU(d.cuMemSetAccess(address + page * kPage, kPage, &access, 1));
  }
  CuDevicePtr address = 0;

 private:
  const Driver& d;
  const std::size_t bytes_;
};

}  // namespace anabranch::cuda
