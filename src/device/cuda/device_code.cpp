// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/device_code.h"

#include <fmt/format.h>

#if ANABRANCH_WITH_DEVICE_CODE
extern "C" const unsigned char anabranch_device_code[];
#endif

namespace anabranch::cuda {
namespace {

const void* embedded_image() {
#if ANABRANCH_WITH_DEVICE_CODE
  return anabranch_device_code;
#else
  return nullptr;
#endif
}

Status no_device_code(const std::string& why) {
  return Status(StatusCode::kNotRecordable,
                fmt::format("record: addresses are set from the host, since {}", why));
}

}  // namespace

Result<std::unique_ptr<DeviceCode>> DeviceCode::load(const Driver& driver, const void* image) {
  if (!driver.has(Feature::kDeviceUpdates)) {
    return no_device_code(driver.why_off(Feature::kDeviceUpdates));
  }
  if (!image) image = embedded_image();
  if (!image) return no_device_code("the library was built without nvcc.");
  std::unique_ptr<DeviceCode> made(new DeviceCode(driver));
  if (Status loaded = recorded("cuModuleLoadData", driver.cuModuleLoadData(&made->module_, image));
      !loaded.ok()) {
    return loaded;
  }
  Updater& updater = made->updater_;
  if (Status found = made->find(updater.fetch, "anabranch_fetch"); !found.ok()) return found;
  if (Status found = made->find(updater.update, "anabranch_update"); !found.ok()) return found;
  if (Status found = made->find(updater.repoint, "anabranch_repoint"); !found.ok()) return found;
  if (Status found = made->find(made->copy_, "anabranch_copy"); !found.ok()) return found;
  if (Status found = made->find(made->fill_, "anabranch_fill"); !found.ok()) return found;
  if (Status found = made->find(made->table_, "anabranch_table"); !found.ok()) return found;
  if (Status found = made->find(made->checksum_, "anabranch_checksum"); !found.ok()) return found;
  return made;
}

Status DeviceCode::find(CuFunction& function, const char* name) {
  return recorded("cuModuleGetFunction", driver_.cuModuleGetFunction(&function, module_, name));
}

DeviceCode::~DeviceCode() {
  if (module_) driver_.cuModuleUnload(module_);
}

}  // namespace anabranch::cuda
