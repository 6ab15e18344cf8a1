// SPDX-License-Identifier: Apache-2.0
// A library that looks like a driver to the loader, and lacks what its build says. Its functions
// must not be called, except for the version's.
#include <cstring>

#include "device/cuda/driver_abi.h"

namespace anabranch::cuda {
namespace {

#ifdef ANABRANCH_FAKE_LACKS_VERSION
constexpr int kVersion = 11080;
#else
constexpr int kVersion = 12020;
#endif

CuResult get_version(int* version) {
  *version = kVersion;
  return CuResult::kSuccess;
}
CuResult any_function() { return CuResult::kNotSupported; }

bool lacks(const char* symbol) {
#ifdef ANABRANCH_FAKE_LACKS_SYMBOL
  return std::strcmp(symbol, "cuTensorMapReplaceAddress") == 0;
#else
  return symbol == nullptr;
#endif
}

}  // namespace
}  // namespace anabranch::cuda

// A driver older than CUDA 12 has the function by its first name only.
#ifdef ANABRANCH_FAKE_LACKS_FINDER
#define cuGetProcAddress_v2 cuGetProcAddress
#endif
extern "C" anabranch::cuda::CuResult cuGetProcAddress_v2(const char* symbol, void** function,
                                                         int cuda_version, std::uint64_t,
                                                         anabranch::cuda::CuProcStatus* status) {
  using namespace anabranch::cuda;
  *function = nullptr;
  *status = lacks(symbol)             ? CuProcStatus::kNotFound
            : cuda_version > kVersion ? CuProcStatus::kVersionTooOld
                                      : CuProcStatus::kFound;
  if (*status != CuProcStatus::kFound) return CuResult::kSuccess;
  const bool version = std::strcmp(symbol, "cuDriverGetVersion") == 0;
  *function =
      version ? reinterpret_cast<void*>(get_version) : reinterpret_cast<void*>(any_function);
  return CuResult::kSuccess;
}
