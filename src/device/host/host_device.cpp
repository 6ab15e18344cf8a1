// SPDX-License-Identifier: Apache-2.0
#include "device/host/host_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/inside.h"

namespace anabranch {

Device Device::host(HostOptions options) { return host::make_device({options, {}}); }

namespace host {
namespace {

std::uint32_t lanes_from(const HostOptions& options) {
  if (options.max_lanes != 0) return std::min(options.max_lanes, kMaxStreams);
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

Device make_device(const DeviceOptions& options) {
  auto device = std::make_shared<HostDevice>(options);
  const std::uint32_t lanes = device->max_lanes();
  return detail::Inside::make<Device>(fmt::format("host, {} lane{}", lanes, lanes == 1 ? "" : "s"),
                                      std::move(device));
}

HostDevice::HostDevice(const DeviceOptions& options)
    : options_(options), max_lanes_(lanes_from(options)) {}

Status HostDevice::prepare_workers(std::uint32_t workers) {
  // A child's copy of the mutex may be held by a thread that it does not have.
  if (workers == 0 || is_forked()) return {};
  const std::lock_guard lock(growing_);
  const bool missed = crew_missed_.exchange(false, std::memory_order_relaxed);
  const std::uint32_t count = crew_count_.load(std::memory_order_relaxed);
  const std::uint32_t wanted = std::min(std::max(count, 1u) + (missed ? 1 : 0), kMaxCrews);
  crew_size_ = std::max(crew_size_, workers);
  for (std::uint32_t i = 0; i < wanted; ++i) {
    if (!crews_[i]) crews_[i] = std::make_unique<Crew>(max_lanes_ - 1, options_);
    if (Status grown = crews_[i]->grow(crew_size_); !grown.ok()) return grown;
    if (i >= count) crew_count_.store(i + 1, std::memory_order_release);
  }
  return {};
}

CrewLease HostDevice::lease(std::uint32_t workers) noexcept {
  if (is_forked()) return CrewLease(nullptr);
  Crew* crew = find_free_crew(workers);
  if (!crew) crew_missed_.store(true, std::memory_order_relaxed);
  return CrewLease(crew);
}

Crew* HostDevice::find_free_crew(std::uint32_t workers) noexcept {
  // A thread comes back to the crew whose workers are near it.
  static thread_local std::uint32_t last = 0;
  const std::uint32_t count = crew_count_.load(std::memory_order_acquire);
  for (std::uint32_t k = 0; k < count; ++k) {
    const std::uint32_t i = (last + k) % count;
    if (crews_[i]->size() < workers || !crews_[i]->try_lease()) continue;
    last = i;
    return crews_[i].get();
  }
  return nullptr;
}

}  // namespace host
}  // namespace anabranch
