// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/updater.h"

#include <fmt/format.h>

#if ANABRANCH_WITH_UPDATER
extern "C" const unsigned char anabranch_updater_image[];
#endif

namespace anabranch::cuda {
namespace {

const void* embedded_image() {
#if ANABRANCH_WITH_UPDATER
  return anabranch_updater_image;
#else
  return nullptr;
#endif
}

Status no_updater(const std::string& why) {
  return Status(Code::kNotRecordable,
                fmt::format("record: addresses are set from the host, since {}", why));
}

}  // namespace

Result<std::unique_ptr<Updater>> Updater::load(const Driver& driver, const void* image) {
  if (!driver.has(Feature::kDeviceUpdates)) {
    return no_updater(driver.why_off(Feature::kDeviceUpdates));
  }
  if (!image) image = embedded_image();
  if (!image) return no_updater("the library was built without nvcc.");
  std::unique_ptr<Updater> made(new Updater(driver));
  if (Status loaded = recorded("cuModuleLoadData", driver.cuModuleLoadData(&made->module_, image));
      !loaded.ok()) {
    return loaded;
  }
  if (Status found =
          recorded("cuModuleGetFunction",
                   driver.cuModuleGetFunction(&made->function_, made->module_, "anabranch_update"));
      !found.ok()) {
    return found;
  }
  return made;
}

Updater::~Updater() {
  if (module_) driver_.cuModuleUnload(module_);
}

}  // namespace anabranch::cuda
