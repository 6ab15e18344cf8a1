// SPDX-License-Identifier: Apache-2.0
// Devices: where a plan is made real.
// Ownership: a Device is a shared handle; recordings keep theirs alive.
// Threads:   all functions may be called from any thread.
// Failure:   a device that cannot be had is a Status with its reason, a normal state.
// Edges:     after fork() the host device of the child runs launches on the calling thread; a CUDA
//            device cannot be used in the child.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "anabranch/cuda_handles.h"
#include "anabranch/export.h"
#include "anabranch/status.h"

namespace anabranch {

// What a region is given: the address of the buffer of each of its accesses, in the order in which
// the step declares them (the start of the buffer, not of the view). That of a number or a grid is
// one of the host's, on every device, and good until the region returns. That of a table is one of
// the device's, like that of an input.
struct RegionCall {
  void* const* buffers = nullptr;
  std::uint32_t buffer_count = 0;
  char* error = nullptr;  // where a failing region may write a text, NUL-terminated
  std::uint32_t error_bytes = 0;
  CudaStream stream{};  // null on the host
};

// On the host a region runs in every launch and finds its buffers' bytes at their addresses.
//
// On CUDA it runs twice, while the plan is recorded, and queues its kernels on `stream`, which is
// being captured: `buffers` are addresses on the device, good for kernels' arguments alone. What it
// queues is what every launch does, at the addresses of that launch. So it must queue the same both
// times, must not wait for the device, and keep no address. It may give kernels a number by value,
// as it is and of its own kind, and launch them with the blocks of a grid, each dimension as it is;
// what it computes from these, or decides by them, is the same in all launches or refused. Where
// there are numbers or grids it runs four times. What it queues on another stream, the default one
// say, is no part of the recording, unless that stream waits for `stream` first and `stream` for it
// at last.
//
// Answers 0, or any other number as failure. It may throw; that is a failure too.
using RegionFunction = std::int32_t (*)(void* context, const RegionCall* call);

struct Region {
  RegionFunction function = nullptr;
  void* context = nullptr;
};

struct HostOptions {
  // Threads a launch may use, the caller's included. 0: as many as the machine has cores.
  std::uint32_t max_lanes = 0;
  // How long a waiting thread spins before it sleeps.
  std::uint64_t spin_ns = 50'000;
  // Sleeps a random time below 200 us before every step, the same for the same seed: no result
  // may depend on it. A tool for finding races, not for speed.
  std::optional<std::uint64_t> delays_seed;
};

struct CudaOptions {
  int ordinal = 0;  // as the driver numbers the devices that the process may see
};

namespace host {
class HostDevice;  // src/device/host/host_device.h
}
namespace cuda {
class CudaDevice;  // src/device/cuda/cuda_device.h
class StreamTies;  // src/device/cuda/stream_ties.h
}  // namespace cuda
namespace detail {
struct Inside;  // src/base/inside.h
}

class Device {
 public:
  ANABRANCH_API static Device host(HostOptions options = {});
  // By the device's primary context, the one that the CUDA runtime uses. kDriverMissing,
  // kDriverTooOld or kDriverFailed where there is no driver or no such device.
  ANABRANCH_API static Result<Device> cuda(CudaOptions options = {});

  std::string name() const { return name_; }

 private:
  friend struct detail::Inside;
  Device(std::string name, std::shared_ptr<host::HostDevice> host)
      : name_(std::move(name)), host_(std::move(host)) {}
  explicit Device(std::shared_ptr<cuda::CudaDevice> cuda);
  std::string name_;
  std::shared_ptr<host::HostDevice> host_;  // one of the two is null
  std::shared_ptr<cuda::CudaDevice> cuda_;
};

// Ties a stream of a CUDA device to others of the same device: work on the one then stands for work
// on all. Streams are of the primary context.
// The stream itself among the others is passed over. So is, if the stream is captured, any that is
// in no capture: it has queued nothing that the capture could wait for, and would not be joined to
// it again. A capture that is being made elsewhere is left alone.
class StreamTies {
 public:
  // Keeps the device. kStreamRefused for the host device, which has no streams.
  ANABRANCH_API static Result<StreamTies> make(const Device& device);

  // What is queued on `stream` from now on begins behind all that `others` have queued so far. One
  // that is idle is not waited for.
  ANABRANCH_API Status join(CudaStream stream, std::span<const CudaStream> others) const;
  // What is queued on `others` from now on begins behind all that `stream` has queued so far.
  ANABRANCH_API Status fork(CudaStream stream, std::span<const CudaStream> others) const;

 private:
  explicit StreamTies(std::shared_ptr<cuda::StreamTies> ties) : ties_(std::move(ties)) {}
  std::shared_ptr<cuda::StreamTies> ties_;
};

// What a machine has for CUDA, for people to read.
struct CudaFeature {
  std::string name;     // "edge data"
  std::string why_off;  // empty: it is on
};
struct CudaFacts {
  int driver_version = 0;  // 13000 for CUDA 13.0
  std::vector<CudaFeature> features;
  std::vector<std::string> gpus;  // "NVIDIA H200, 139 GiB", by ordinal
  std::string why_no_gpus;        // empty where there is one
};
// kDriverMissing or kDriverTooOld where there is no driver that serves. Takes no memory of a GPU.
ANABRANCH_API Result<CudaFacts> describe_cuda();

}  // namespace anabranch
