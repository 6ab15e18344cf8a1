// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

namespace anabranch::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
// cuGetProcAddress itself has two versions; the second also says why it found nothing.
constexpr const char* kFinder = "cuGetProcAddress_v2";

struct FeatureFacts {
  std::string_view text;
  int oldest_version;
};
constexpr FeatureFacts kFeatures[] = {
#define ANABRANCH_CUDA_FEATURE(name, text, version) {text, version},
#include "device/cuda/driver_features.inc"
#undef ANABRANCH_CUDA_FEATURE
};

// 12040 -> "12.4"
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Status missing(std::string_view library, std::string_view why) {
  return Status(StatusCode::kDriverMissing,
                fmt::format("record: no CUDA driver: {}: {}. Install NVIDIA's driver, or use the "
                            "host device.",
                            library, why));
}

Status too_old(int version) {
  const int oldest = kFeatures[static_cast<std::size_t>(Feature::kCore)].oldest_version;
  return Status(StatusCode::kDriverTooOld,
                fmt::format("record: the CUDA driver is for CUDA {}, at least {} is needed. Update "
                            "the driver.",
                            version_text(version), version_text(oldest)));
}

// Fills one table from one library.
class Loader {
 public:
  Loader(const char* library, CuGetProcAddress finder) : library_(library), find_(finder) {}

  Result<Driver> load() {
    if (Status status = ask_version(); !status.ok()) return status;
    for (std::size_t i = 0; i < kFeatureCount; ++i) check_version(i);
#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) \
  find(driver_.name, #name, version, Feature::feature);
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION
    if (!driver_.has(Feature::kCore)) {
      return missing(library_, driver_.why_off(Feature::kCore));
    }
    clear_what_is_off();
    return std::move(driver_);
  }

 private:
  Status ask_version() {
    find(driver_.cuDriverGetVersion, "cuDriverGetVersion", 2020, Feature::kCore);
    if (!driver_.cuDriverGetVersion) return missing(library_, driver_.why_off(Feature::kCore));
    const CuResult result = driver_.cuDriverGetVersion(&driver_.version);
    if (result != CuResult::kSuccess) {
      return driver_status(Act::kRecord, "cuDriverGetVersion", result);
    }
    const int oldest = kFeatures[static_cast<std::size_t>(Feature::kCore)].oldest_version;
    return driver_.version < oldest ? too_old(driver_.version) : Status();
  }

  void check_version(std::size_t feature) {
    const int oldest = kFeatures[feature].oldest_version;
    if (driver_.version >= oldest) return;
    driver_.off[feature] = fmt::format("needs a driver for CUDA {}, this one is for {}",
                                       version_text(oldest), version_text(driver_.version));
  }

  template <typename Function>
  void find(Function*& function, const char* name, int version, Feature feature) {
    void* found = nullptr;
    CuProcStatus status = CuProcStatus::kNotFound;
    const CuResult result = find_(name, &found, version, 0, &status);
    const bool ok = result == CuResult::kSuccess && status == CuProcStatus::kFound && found;
    function = ok ? reinterpret_cast<Function*>(found) : nullptr;
    std::string& off = driver_.off[static_cast<std::size_t>(feature)];
    if (ok || !off.empty()) return;  // the first reason is the one to tell
    const char* why =
        status == CuProcStatus::kVersionTooOld ? " in the form of CUDA " : " of CUDA ";
    off = fmt::format("the driver (CUDA {}) has no {}{}{}", version_text(driver_.version), name,
                      why, version_text(version));
  }

  // A caller that forgets to ask has() fails at once and everywhere, not on some drivers only.
  void clear_what_is_off() {
#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) \
  if (!driver_.has(Feature::feature)) driver_.name = nullptr;
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION
  }

  const char* const library_;
  const CuGetProcAddress find_;
  Driver driver_;
};

// These come from work that was queued before the call that answers them, and stay.
bool may_be_earlier(CuResult result) {
  switch (result) {
    case CuResult::kIllegalAddress:
    case CuResult::kLaunchTimeout:
    case CuResult::kAssert:
    case CuResult::kHardwareStackError:
    case CuResult::kIllegalInstruction:
    case CuResult::kMisalignedAddress:
    case CuResult::kInvalidAddressSpace:
    case CuResult::kInvalidPc:
    case CuResult::kLaunchFailed:
    case CuResult::kEccUncorrectable:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string_view feature_text(Feature feature) {
  return kFeatures[static_cast<std::size_t>(feature)].text;
}

Result<Driver> open_driver(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = dlerror();
    return missing(library, why ? why : "dlopen gave no reason");
  }
  const auto find = reinterpret_cast<CuGetProcAddress>(dlsym(handle, kFinder));
  if (find) return Loader(library, find).load();
  dlclose(handle);
  return missing(library, fmt::format("it has no {}, so it is older than CUDA 12", kFinder));
}

Result<const Driver*> load_driver() {
  // The driver has threads of its own, so nothing of it is undone at exit.
  static const auto* const loaded = new Result<Driver>(open_driver(kLibrary));
  if (!*loaded) return loaded->error();
  return &**loaded;
}

std::string_view result_name(CuResult result) {
  switch (result) {
#define ANABRANCH_CUDA_CODE(name, driver_name, number) \
  case CuResult::name:                                 \
    return #driver_name;
#include "device/cuda/driver_codes.inc"
#undef ANABRANCH_CUDA_CODE
  }
  return "";
}

std::string result_text(CuResult result) {
  const std::string_view name = result_name(result);
  return fmt::format("{} ({})", name.empty() ? "an unknown code" : name, static_cast<int>(result));
}

Status driver_status(Act act, std::string_view call, CuResult result) {
  if (result == CuResult::kSuccess) return {};
  const bool launch = act == Act::kLaunch;
  return Status(
      launch ? StatusCode::kLaunchDriverFailed : StatusCode::kDriverFailed,
      fmt::format("{}: {} answered {}{}", launch ? "launch" : "record", call, result_text(result),
                  may_be_earlier(result)
                      ? "; it may stem from work queued earlier, and the context is lost"
                      : ""));
}

}  // namespace anabranch::cuda
