// SPDX-License-Identifier: Apache-2.0
#include "anabranch/device.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "base/inside.h"
#include "device/cuda/handles.h"
#include "device/cuda/stream_ties.h"

namespace anabranch {
namespace {

std::string name_of(const cuda::CudaDevice& device) {
  const cuda::Driver& driver = device.driver();
  cuda::CuDevice number = 0;
  std::array<char, 128> text{};
  const bool known =
      driver.cuDeviceGet(&number, device.ordinal()) == cuda::CuResult::kSuccess &&
      driver.cuDeviceGetName(text.data(), text.size() - 1, number) == cuda::CuResult::kSuccess;
  return fmt::format("cuda {}, {}", device.ordinal(), known ? text.data() : "of unknown name");
}

std::vector<cuda::CuStream> streams_of(std::span<const CudaStream> streams) {
  std::vector<cuda::CuStream> all;
  all.reserve(streams.size());
  for (const CudaStream stream : streams) all.push_back(cuda::stream_of(stream));
  return all;
}

}  // namespace

Result<Device> Device::cuda(CudaOptions options) {
  const auto driver = cuda::load_driver();
  if (!driver.ok()) return driver.error();
  auto device = cuda::CudaDevice::make(**driver, options.ordinal);
  if (!device.ok()) return device.error();
  return Device(*std::move(device));
}

Device::Device(std::shared_ptr<cuda::CudaDevice> cuda)
    : name_(name_of(*cuda)), cuda_(std::move(cuda)) {}

Result<StreamTies> StreamTies::make(const Device& device) {
  const auto& on = detail::Inside::cuda(device);
  if (!on) {
    return Status(StatusCode::kStreamRefused,
                  "tie: the host device has no streams. Open a GPU: Device::cuda().");
  }
  return StreamTies(std::make_shared<cuda::StreamTies>(on));
}

Status StreamTies::join(CudaStream stream, std::span<const CudaStream> others) const {
  return ties_->join(cuda::stream_of(stream), streams_of(others));
}

Status StreamTies::fork(CudaStream stream, std::span<const CudaStream> others) const {
  return ties_->fork(cuda::stream_of(stream), streams_of(others));
}

}  // namespace anabranch
