// SPDX-License-Identifier: Apache-2.0
// A simulated CUDA driver behind the table of the real one: kernels are host functions, time is
// virtual, and what may happen in any order happens in an order chosen by a seed.
// Ownership: a SimDriver owns all that was made through its table; its destructor frees it.
// Threads:   the table from any thread, one call at a time. Table functions carry no context, so
//            one SimDriver lives in a process at a time: making a second one aborts.
// Failure:   as the driver's: a code. fail_call() makes any call fail; violations() says what the
//            memory checks found.
// Edges:     work runs when something synchronises, queries, or calls run_until_idle(), on the
//            thread that does so and under the simulator's lock: kernels and host functions must
//            not wait for another thread. Addresses and handles are never given out twice,
//            but for reuse_addresses().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/driver.h"

namespace anabranch::sim {

class Machine;

// What is told of mapped memory that is asked for its id (CU_POINTER_ATTRIBUTE_BUFFER_ID).
enum class MappedIds : std::uint8_t {
  kOfPages,  // another one for other pages, as on an H200
  kOfRange,  // the same whatever is mapped there
  kNone      // nothing: CUDA_ERROR_INVALID_VALUE
};

struct SimOptions {
  std::uint64_t seed = 1;
  int device_count = 1;
  int driver_version = 13000;
  std::size_t device_bytes = std::size_t{256} << 20;
  // Kernel nodes show a kernel and a null function, as nodes that the CUDA runtime captured may.
  bool nodes_show_kernels = false;
  std::uint64_t jitter_ns = 0;  // up to this much, by the seed, is added to each piece of work
  MappedIds mapped_ids = MappedIds::kOfPages;
};

// Where a parameter lies in the block that a kernel is given.
struct ParamLayout {
  std::size_t offset, bytes;
};
// Parameters of these sizes, each aligned to its own size, 8 bytes at most.
std::vector<ParamLayout> layout_of(std::initializer_list<std::size_t> sizes);

// What a kernel sees of one launch.
class KernelCall {
 public:
  cuda::CuDim3 grid, block, cluster;
  unsigned shared_bytes = 0;
  int priority = 0;                   // that it runs with
  std::span<const std::byte> params;  // the block, in device-side layout

  template <typename T>
  T param(std::size_t offset) const {
    T value;
    std::memcpy(&value, params.data() + offset, sizeof value);
    return value;
  }
  // Device memory that really can be read and written, or null: then the access was illegal, and
  // the context is lost, as on a device.
  template <typename T>
  T* memory(cuda::CuDevicePtr address, std::size_t count) const {
    return static_cast<T*>(check_memory(address, count * sizeof(T)));
  }

 private:
  void* check_memory(cuda::CuDevicePtr address, std::size_t bytes) const;
};

struct Kernel {
  std::string name;
  std::vector<ParamLayout> params;
  std::function<void(const KernelCall&)> run;
  std::uint64_t duration_ns = 1000;
  bool device_updatable = true;  // some functions are refused by the driver
  // Where it is launched before those ahead of it have ended (programmatic edges), whether it waits
  // for them before it touches memory (griddepcontrol.wait).
  bool waits = true;
};

// One piece of work that has run.
struct WorkRecord {
  std::string name;
  cuda::CuStream stream;
  std::uint64_t start_ns, end_ns;
};

class SimDriver {
 public:
  explicit SimDriver(const SimOptions& options = {});
  ~SimDriver();
  SimDriver(const SimDriver&) = delete;
  SimDriver& operator=(const SimDriver&) = delete;

  const cuda::Driver& table() const;

  // Kernels are found by name when a module that names them is loaded: an image is text with a line
  // ".entry name" for each, which PTX is too. A second kernel of a name is for later modules.
  void add_kernel(Kernel kernel);
  // An image for cuModuleLoadData that names these kernels.
  static std::string make_image(std::initializer_list<std::string_view> names);

  void run_until_idle();
  std::uint64_t now_ns() const;
  // What has run, in the order in which it ran; the first million pieces.
  std::vector<WorkRecord> work() const;

  // What device code calls, so only from a kernel that runs. `size` bytes at `offset` of the block.
  static cuda::CuResult update_param(cuda::CuDeviceNode node, std::size_t offset, const void* value,
                                     std::size_t size);
  static cuda::CuResult set_enabled(cuda::CuDeviceNode node, bool enabled);
  static cuda::CuResult set_grid(cuda::CuDeviceNode node, cuda::CuDim3 grid);

  // The n-th call from now (1 is the next), of those named `function` if one is named, answers
  // `code`. It has no effect, unless it frees something: that is freed, as the driver does when it
  // answers with an earlier error. A code that loses the context loses it.
  void fail_call(std::uint64_t n, cuda::CuResult code, std::string_view function = {});
  // The call that fail_call() made fail; empty while it has not come.
  std::string failed_call() const;
  // From now on memory is given out again at the address of what was freed last, if that was as
  // large. Whoever touches what is freed is then not found out.
  void reuse_addresses();
  // Names of all calls so far.
  std::vector<std::string_view> calls() const;

  // What was made and not yet freed: allocations, mappings, streams, events, modules, graphs and
  // executable graphs. Contexts do not count.
  std::size_t live_objects() const;
  // "cuMemFree of 0x...", "the red zone after 0x... (64 bytes) was written": why a context was
  // lost.
  std::vector<std::string> violations() const;

  // As the CUDA runtime allows a kernel shared memory (cuKernelSetAttribute): without effect where
  // cuFuncSetAttribute says it, before or afterwards.
  void allow_shared_memory(cuda::CuFunction function, int bytes);

  // A node of a type that the table cannot make (memory, conditional, ...), so that it can be met.
  cuda::CuGraphNode add_opaque_node(cuda::CuGraph graph, cuda::CuNodeType type);

 private:
  std::unique_ptr<Machine> machine_;
};

}  // namespace anabranch::sim
