// SPDX-License-Identifier: Apache-2.0
// A captured CUDA graph as plain data: what record compares, searches for addresses and re-makes.
// Read as soon as its capture has ended: pinned memory that it copies from may be used again.
// Ownership: values. Handles (graph nodes, functions, events) belong to the graph they were read
//            from, which must outlive their use.
// Threads:   values; read_graph() calls the driver for the current context.
// Failure:   read_graph() is a Status that names the node: one whose kind or layout cannot be read
//            is refused, never guessed.
// Edges:     an empty graph has an empty image. Nodes stand in an order in which they can run, the
//            order of their creation where that is one. Child graphs are images too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "anabranch/capture.h"
#include "anabranch/status.h"
#include "device/cuda/driver.h"

namespace anabranch::cuda {

// A parameter's bytes within the block that a kernel receives.
struct ParamField {
  std::uint32_t offset = 0;
  std::uint32_t bytes = 0;
  bool operator==(const ParamField&) const = default;
};

struct KernelImage {
  CuKernelNodeParams launch{};  // kernel_params and extra are null: see `params`
  std::string name;
  bool packed = false;             // the parameters came as one buffer (`extra`)
  std::vector<std::byte> params;   // as the device lays them out
  std::vector<ParamField> fields;  // by parameter; a packed buffer may be longer than they say
  std::vector<CuLaunchAttribute> attributes;  // cluster, priority, cooperative: as set on the node
};

// In dimension 0 (x), 1 or 2.
inline unsigned& blocks_of(CuKernelNodeParams& launch, std::uint32_t dimension) {
  return dimension == 0 ? launch.grid_x : dimension == 1 ? launch.grid_y : launch.grid_z;
}
inline unsigned blocks_of(const CuKernelNodeParams& launch, std::uint32_t dimension) {
  return dimension == 0 ? launch.grid_x : dimension == 1 ? launch.grid_y : launch.grid_z;
}

// Room for what the parameters of a kernel point to.
struct LaunchRoom {
  std::vector<void*> fields;
  std::size_t packed_bytes = 0;
  void* extra[5] = {};
};

// A kernel as drivers take it: points into the kernel and the room. Allocates only where the kernel
// has more fields than any that had this room before.
CuKernelNodeParams launch_of(KernelImage& kernel, LaunchRoom& room);

// A driver refuses nodes with more dynamic shared memory than their function may have at the time,
// and libraries set that for each launch of theirs (cuDNN's batch norms do). Raises it as far as
// the device lets it; false where that is not the reason. What the function is allowed here counts
// from then on, whatever the CUDA runtime allows its kernel (see cuKernelSetAttribute), so less
// than the most would break a library's next larger launch.
bool allow_shared_memory(const Driver& driver, const KernelImage& kernel);

struct GraphImage;

struct NodeImage {
  CuGraphNode handle = nullptr;
  CuGraphNode child_of = nullptr;  // whose graph it was taken from: see inline_children.h
  CuGraphNode captured() const { return child_of ? child_of : handle; }
  CuNodeType type = CuNodeType::kEmpty;
  bool is_ours = false;  // a kernel of ours, for the node with this handle; see transfer_kernels.h
  KernelImage kernel;
  CuMemcpy3D copy{};
  std::vector<std::byte> source_bytes;  // what a copy reads: see read_pinned_source()
  CuMemsetNodeParams fill{};
  CuHostNodeParams host{};
  CuEvent event = nullptr;
  std::shared_ptr<const GraphImage> child;
};

struct EdgeImage {
  std::uint32_t from = 0, to = 0;  // nodes; from < to
  CuEdgeData data{};
  bool is_ours = false;  // the captured graph has none there; see early_edges.h
};

// Whether the second may begin when the first has begun (a programmatic launch, or one behind
// another's begin). Then it may also end first: not every kernel waits that could.
inline bool is_early(const EdgeImage& edge) {
  return edge.data.type != kEdgeDefault || edge.data.from_port != kPortDefault;
}

struct GraphImage {
  std::vector<NodeImage> nodes;
  std::vector<EdgeImage> edges;  // sorted by `to`, then by `from`
};

// "kernel", "copy", "fill"
std::string_view type_text(CuNodeType type);
// "kernel 37 'triton_poi_fused_add_2'", "fill 4"
std::string describe_node(const GraphImage& image, std::uint32_t node);

// What copies read in `staying`, sorted ranges without overlaps, is not kept.
Result<GraphImage> read_graph(const Driver& driver, CuGraph graph,
                              std::span<const CaptureRange> staying = {});

}  // namespace anabranch::cuda
