// SPDX-License-Identifier: Apache-2.0
// What the simulated driver's handles stand for.
// Ownership: a Registry owns its objects; a handle that is gone finds nothing, ever after.
// Threads:   one at a time; the Machine's lock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "device/sim/engine.h"
#include "device/sim/memory.h"

namespace anabranch::sim {

// Handles are numbers that look like addresses of the driver's own memory and are never reused.
std::uintptr_t next_handle();

template <typename Handle, typename Object>
class Registry {
 public:
  Object& make() {
    const auto handle = reinterpret_cast<Handle>(next_handle());
    auto object = std::make_shared<Object>();
    object->handle = handle;
    return *objects_.emplace(handle, std::move(object)).first->second;
  }
  Object* find(Handle handle) const {
    const auto it = objects_.find(handle);
    return it == objects_.end() ? nullptr : it->second.get();
  }
  // Work that is queued may need an object longer than its handle lives.
  std::shared_ptr<Object> share(Handle handle) const { return objects_.at(handle); }
  void erase(Handle handle) { objects_.erase(handle); }
  std::size_t size() const { return objects_.size(); }
  auto begin() const { return objects_.begin(); }
  auto end() const { return objects_.end(); }

 private:
  std::map<Handle, std::shared_ptr<Object>> objects_;  // in order, so that runs repeat
};

struct Device {
  CuContext handle = nullptr;
  int ordinal = 0;
  int retained = 0;
};

// Shared memory of a block: what any may have, and the most that one may be allowed.
inline constexpr int kPlainSharedBytes = 49'152, kMostSharedBytes = 232'448;

struct Function {
  CuFunction handle = nullptr;
  CuModule module = nullptr;
  CuKernel library_kernel = nullptr;  // its other name
  const Kernel* kernel = nullptr;
  std::size_t block_bytes = 0;  // of parameters
  std::map<CuFunctionAttribute, int> attributes;
  int kernel_shared_bytes = kPlainSharedBytes;  // what counts where no attribute says it
};

struct Module {
  CuModule handle = nullptr;
  std::map<std::string, CuFunction, std::less<>> functions;
};

// What one piece of work does; the same for a stream, a graph's node and an executable's node.
struct EmptyOp {};
struct KernelOp {
  CuFunction function = nullptr;
  const Kernel* kernel = nullptr;  // outlives its module: kernels are the test's
  CuDim3 grid{1, 1, 1}, block{1, 1, 1}, cluster{1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<std::byte> params;
  bool packed = false;  // given as `extra`, and shown as such
  bool programmatic = false, cooperative = false;
  int priority = 0;
};
struct CopyOp {
  CuMemcpy3D copy;
  std::shared_ptr<std::vector<std::byte>> staged;  // pageable source, read when it was queued
  // In an executable: what it was given memory of, from and to; 0 where that is not known. A copy
  // means an allocation and not an address: another one there is not touched.
  std::array<std::uint64_t, 2> allocations{};
};
struct FillOp {
  CuMemsetNodeParams params;
};
struct HostOp {
  CuHostFn fn = nullptr;
  void* user_data = nullptr;
};
struct RecordOp {
  CuEvent event = nullptr;
};
struct WaitOp {
  CuEvent event = nullptr;
};
struct ChildOp {
  CuGraph graph = nullptr;
};
struct OpaqueOp {
  CuNodeType type;
};
using Op =
    std::variant<EmptyOp, KernelOp, CopyOp, FillOp, HostOp, RecordOp, WaitOp, ChildOp, OpaqueOp>;

CuNodeType type_of(const Op& op);
std::string name_of(const Op& op);

struct Dependency {
  CuGraphNode node = nullptr;
  CuEdgeData data{};
};

struct Capture;

struct Stream {
  CuStream handle = nullptr;
  unsigned flags = 0;
  int priority = 0;
  Device* device = nullptr;
  bool legacy = false;
  WorkRef tail;
  std::vector<After> waits;  // for the next work
  std::shared_ptr<Capture> capture;
  std::vector<Dependency> capture_after;  // what the next captured node depends on
  std::vector<CuGraphNode> shown_nodes;   // what cuStreamGetCaptureInfo points to
  std::vector<CuEdgeData> shown_edges;

  bool blocking() const { return !legacy && (flags & kStreamNonBlocking) == 0; }
};

struct Event {
  CuEvent handle = nullptr;
  unsigned flags = 0;
  bool recorded = false;
  WorkRef mark;
  std::shared_ptr<Capture> capture;  // of the stream in which it was last recorded
  std::vector<Dependency> capture_after;
};

// begin: kActive      -> nodes are added by its streams
// break: kInvalidated -> only ending it is left; it gives no graph, and its events are nothing
// until
//                        they are recorded anew
// end:   kNone        -> streams are free again; its events are nothing likewise
struct Capture {
  std::uint64_t id = 0;
  CuCaptureMode mode = CuCaptureMode::kGlobal;
  CuCaptureStatus status = CuCaptureStatus::kActive;
  std::thread::id owner;
  Stream* origin = nullptr;
  CuGraph graph = nullptr;
  std::set<CuGraphNode> captured;  // must be joined at the end
  std::set<CuGraphNode> released;  // taken from a stream's set by hand, so that they need not
};

struct Node {
  CuGraphNode handle = nullptr;
  CuGraph graph = nullptr;
  Op op;
  CuDeviceNode device_node = nullptr;  // set for device-updatable nodes
  CuGraphNode cloned_from = nullptr;
  // What GetParams shows; it holds until the node changes.
  std::vector<void*> param_pointers;
  std::size_t packed_bytes = 0;
  void* extra[5] = {};
};

struct Edge {
  CuGraphNode from = nullptr, to = nullptr;
  CuEdgeData data{};
};

struct Graph {
  CuGraph handle = nullptr;
  std::vector<CuGraphNode> nodes;  // in order of making
  std::vector<Edge> edges;         // likewise
  CuGraph cloned_from = nullptr;
  CuGraphNode owner = nullptr;  // the child-graph node that owns it
  bool captured_into = false;
  int execs = 0;  // those that exist, if it has device-updatable nodes
};

// The device's copy of an updatable node.
struct DeviceCopy {
  std::vector<std::byte> params;
  CuDim3 grid{1, 1, 1};
  bool enabled = true;
};

// How device memory came to be. A copy node of an executable keeps the kinds of its two operands.
enum class MemoryKind : std::uint8_t { kUnknown, kAllocated, kMapped };

struct ExecNode {
  CuGraphNode source = nullptr;
  std::shared_ptr<const Op> op;  // a setter puts another one in its place, so launches keep theirs
  bool enabled = true;
  CuDeviceNode device_node = nullptr;
  struct After {
    std::size_t index;
    bool at_start, may_wait;  // may_wait: for its end, once it has begun
  };
  std::vector<After> after;
  std::array<MemoryKind, 2> copied{};  // from, to; as they were when it was instantiated
};

struct Exec {
  CuGraphExec handle = nullptr;
  CuGraph source = nullptr;
  std::vector<ExecNode> nodes;  // child graphs laid flat; each after what it depends on
  std::map<CuGraphNode, std::size_t> index;
  std::map<std::size_t, DeviceCopy> copies;  // of updatable nodes
  WorkRef tail;                              // its latest launch or upload
  bool uploaded = false;                     // no launch has to upload first
  bool uploading_itself = false;             // the launch that runs does
  bool by_node = false;                      // kernels run with the priorities of their nodes
};

}  // namespace anabranch::sim
