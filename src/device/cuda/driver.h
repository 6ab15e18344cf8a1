// SPDX-License-Identifier: Apache-2.0
// The CUDA driver as a table of functions, found at run time: no CUDA library is linked, and a
// machine without a driver is a normal one.
// Ownership: the table is a value; the library behind a loaded one stays open until the process
//            ends.
// Threads:   a table never changes once made; load_driver() from any thread, the first call loads.
// Failure:   no library, or a driver older than the core needs, is a Status. A feature that is off
//            has its reason, and its functions are null.
// Edges:     loading calls nothing that touches a GPU; cuInit() is the caller's, and may still say
//            that there is no device.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "anabranch/status.h"
#include "device/cuda/driver_abi.h"

namespace anabranch::cuda {

enum class Feature : std::uint8_t {
#define ANABRANCH_CUDA_FEATURE(name, text, version) name,
#include "device/cuda/driver_features.inc"
#undef ANABRANCH_CUDA_FEATURE
};
#define ANABRANCH_CUDA_FEATURE(name, text, version) +1
inline constexpr std::size_t kFeatureCount = 0
#include "device/cuda/driver_features.inc"
    ;
#undef ANABRANCH_CUDA_FEATURE

// "edge data"
std::string_view feature_text(Feature feature);

struct Driver {
#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) CuResult(*name) params = nullptr;
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION

  int version = 0;                             // 13000 for CUDA 13.0
  std::array<std::string, kFeatureCount> off;  // why a feature is off; empty where it is on

  bool has(Feature feature) const { return why_off(feature).empty(); }
  const std::string& why_off(Feature feature) const {
    return off[static_cast<std::size_t>(feature)];
  }
};

// The system's driver, loaded once. The pointer is never null and holds for the process's life.
Result<const Driver*> load_driver();
// The driver in `library`, a file name or path for dlopen().
Result<Driver> open_driver(const char* library);

// "CUDA_ERROR_INVALID_VALUE"; empty for a number that is not known here.
std::string_view result_name(CuResult result);
// The code with this name in the driver's ABI, and its number: "CUDA_ERROR_INVALID_VALUE (1)".
std::string result_text(CuResult result);

// That a driver will not do this here: whoever asked goes on another way.
inline bool is_refused(CuResult result) {
  return result == CuResult::kNotSupported || result == CuResult::kInvalidValue;
}

// The stage that made a call, which is where its failure belongs.
enum class Act : std::uint8_t { kRecord, kLaunch };
// "record: cuGraphCreate answered CUDA_ERROR_OUT_OF_MEMORY (2)", or ok for kSuccess. Codes that
// tell of work queued earlier say so.
Status driver_status(Act act, std::string_view call, CuResult result);
inline Status recorded(std::string_view call, CuResult result) {
  return driver_status(Act::kRecord, call, result);
}
inline Status launched(std::string_view call, CuResult result) {
  return driver_status(Act::kLaunch, call, result);
}

}  // namespace anabranch::cuda
