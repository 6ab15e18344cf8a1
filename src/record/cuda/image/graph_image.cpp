// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/graph_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <queue>
#include <unordered_map>

#include "record/cuda/image/copy_box.h"
#include "record/cuda/image/driver_graph.h"

namespace anabranch::cuda {
namespace {

constexpr std::array kAttributes{CuLaunchAttributeId::kCooperative,
                                 CuLaunchAttributeId::kClusterDimension,
                                 CuLaunchAttributeId::kPriority};

Status refuse(const std::string& what, const std::string& why) {
  return Status(
      StatusCode::kNotRecordable,
      fmt::format("record: {} {}. The step runs unrecorded; strict=True raises.", what, why));
}

class Reader {
 public:
  Reader(const Driver& driver, CuGraph graph, std::span<const CaptureRange> staying)
      : driver_(driver), graph_(graph), staying_(staying) {}

  Result<GraphImage> run() {
    if (Status listed = list(); !listed.ok()) return listed;
    for (std::uint32_t i = 0; i < image_.nodes.size(); ++i) {
      if (Status read = read_node(i); !read.ok()) return read;
    }
    return std::move(image_);
  }

 private:
  // Also brings the nodes into an order in which they can run.
  Status list() {
    auto nodes = list_nodes(driver_, graph_);
    if (!nodes.ok()) return nodes.error();
    created_ = *std::move(nodes);
    const auto edges = list_edges(driver_, graph_);
    if (!edges.ok()) return edges.error();
    std::unordered_map<CuGraphNode, std::uint32_t> number;
    for (std::uint32_t i = 0; i < created_.size(); ++i) number[created_[i]] = i;
    for (const GraphEdge& edge : *edges) {
      image_.edges.push_back({number.at(edge.from), number.at(edge.to), edge.data});
    }
    number_in_order();
    return {};
  }

  // Of the nodes that can run, the one created first comes first.
  void number_in_order() {
    std::vector<std::uint32_t> open(created_.size());
    std::vector<std::vector<std::uint32_t>> after(created_.size());
    for (const EdgeImage& edge : image_.edges) {
      ++open[edge.to];
      after[edge.from].push_back(edge.to);
    }
    std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
    for (std::uint32_t i = 0; i < open.size(); ++i) {
      if (open[i] == 0) ready.push(i);
    }
    std::vector<std::uint32_t> number(created_.size());
    while (!ready.empty()) {
      const std::uint32_t next = ready.top();
      ready.pop();
      number[next] = static_cast<std::uint32_t>(image_.nodes.size());
      image_.nodes.emplace_back().handle = created_[next];
      for (const std::uint32_t follower : after[next]) {
        if (--open[follower] == 0) ready.push(follower);
      }
    }
    for (EdgeImage& edge : image_.edges) edge = {number[edge.from], number[edge.to], edge.data};
    std::sort(image_.edges.begin(), image_.edges.end(), [](const EdgeImage& a, const EdgeImage& b) {
      return std::pair(a.to, a.from) < std::pair(b.to, b.from);
    });
  }

  Status read_node(std::uint32_t i) {
    NodeImage& node = image_.nodes[i];
    if (Status type =
            recorded("cuGraphNodeGetType", driver_.cuGraphNodeGetType(node.handle, &node.type));
        !type.ok()) {
      return type;
    }
    switch (node.type) {
      case CuNodeType::kKernel:
        return read_kernel(i);
      case CuNodeType::kMemcpy:
        return read_copy(node);
      case CuNodeType::kMemset:
        return recorded("cuGraphMemsetNodeGetParams",
                        driver_.cuGraphMemsetNodeGetParams(node.handle, &node.fill));
      case CuNodeType::kHost:
        return recorded("cuGraphHostNodeGetParams",
                        driver_.cuGraphHostNodeGetParams(node.handle, &node.host));
      case CuNodeType::kEmpty:
        return {};
      case CuNodeType::kWaitEvent:
        return recorded("cuGraphEventWaitNodeGetEvent",
                        driver_.cuGraphEventWaitNodeGetEvent(node.handle, &node.event));
      case CuNodeType::kEventRecord:
        return recorded("cuGraphEventRecordNodeGetEvent",
                        driver_.cuGraphEventRecordNodeGetEvent(node.handle, &node.event));
      case CuNodeType::kGraph:
        return read_child(node);
      default:
        return refuse(describe_node(image_, i), "has addresses that cannot be changed");
    }
  }

  Status read_child(NodeImage& node) {
    CuGraph inside = nullptr;
    if (Status got = recorded("cuGraphChildGraphNodeGetGraph",
                              driver_.cuGraphChildGraphNodeGetGraph(node.handle, &inside));
        !got.ok()) {
      return got;
    }
    auto child = Reader(driver_, inside, staying_).run();
    if (!child.ok()) return child.error();
    node.child = std::make_shared<const GraphImage>(*std::move(child));
    return {};
  }

  Status read_copy(NodeImage& node) {
    if (Status got = recorded("cuGraphMemcpyNodeGetParams",
                              driver_.cuGraphMemcpyNodeGetParams(node.handle, &node.copy));
        !got.ok()) {
      return got;
    }
    if (stays(source_of(node.copy) + source_shift(node.copy))) return {};
    auto bytes = read_pinned_source(driver_, node.copy);
    if (!bytes.ok()) return bytes.error();
    node.source_bytes = *std::move(bytes);
    return {};
  }

  bool stays(std::uint64_t address) const {
    const auto behind = std::ranges::upper_bound(staying_, address, {}, &CaptureRange::begin);
    return behind != staying_.begin() && address - behind[-1].begin < behind[-1].size_bytes;
  }

  Status read_kernel(std::uint32_t i) {
    NodeImage& node = image_.nodes[i];
    KernelImage& kernel = node.kernel;
    if (Status got = recorded("cuGraphKernelNodeGetParams",
                              driver_.cuGraphKernelNodeGetParams(node.handle, &kernel.launch));
        !got.ok()) {
      return got;
    }
    if (!kernel.launch.func && kernel.launch.kernel) {
      if (Status got =
              recorded("cuKernelGetFunction",
                       driver_.cuKernelGetFunction(&kernel.launch.func, kernel.launch.kernel));
          !got.ok()) {
        return got;
      }
    }
    const char* name = nullptr;
    if (driver_.has(Feature::kFunctionNames) && kernel.launch.func &&
        driver_.cuFuncGetName(&name, kernel.launch.func) == CuResult::kSuccess && name) {
      kernel.name = name;
    }
    if (!kernel.launch.func) {
      return refuse(describe_node(image_, i),
                    "has no function whose parameters could be asked for");
    }
    if (Status fields = read_fields(i); !fields.ok()) return fields;
    if (Status params = read_params(i); !params.ok()) return params;
    kernel.launch.kernel_params = kernel.launch.extra = nullptr;
    return read_attributes(node);
  }

  // The driver ends the list with an invalid index.
  Status read_fields(std::uint32_t i) {
    KernelImage& kernel = image_.nodes[i].kernel;
    if (!driver_.has(Feature::kParamInfo)) {
      return refuse(describe_node(image_, i),
                    "cannot be read: " + driver_.why_off(Feature::kParamInfo));
    }
    for (;;) {
      std::size_t offset = 0, bytes = 0;
      const CuResult result =
          driver_.cuFuncGetParamInfo(kernel.launch.func, kernel.fields.size(), &offset, &bytes);
      if (result == CuResult::kInvalidValue) return {};
      if (Status got = recorded("cuFuncGetParamInfo", result); !got.ok()) return got;
      kernel.fields.push_back(
          {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(bytes)});
    }
  }

  Status read_params(std::uint32_t i) {
    KernelImage& kernel = image_.nodes[i].kernel;
    std::size_t size = 0;
    for (const ParamField& field : kernel.fields) {
      size = std::max<std::size_t>(size, field.offset + field.bytes);
    }
    if (kernel.launch.extra) return read_packed(i, size);
    kernel.params.resize(size);
    for (std::size_t p = 0; p < kernel.fields.size(); ++p) {
      const ParamField& field = kernel.fields[p];
      std::memcpy(kernel.params.data() + field.offset, kernel.launch.kernel_params[p], field.bytes);
    }
    return {};
  }

  Status read_packed(std::uint32_t i, std::size_t expected) {
    KernelImage& kernel = image_.nodes[i].kernel;
    const void* buffer = nullptr;
    std::size_t size = 0;
    for (void** pair = kernel.launch.extra; *pair != kParamsEnd; pair += 2) {
      if (pair[0] == params_buffer_key()) buffer = pair[1];
      if (pair[0] == params_size_key()) size = *static_cast<const std::size_t*>(pair[1]);
    }
    if (!buffer) {
      return refuse(describe_node(image_, i), "packs its parameters and does not say where");
    }
    kernel.packed = true;
    if (size < expected) clip_fields(kernel.fields, size);
    const auto* bytes = static_cast<const std::byte*>(buffer);
    kernel.params.assign(bytes, bytes + size);
    return {};
  }

  // A caller may leave out the end of a large parameter that its kernel does not read (NCCL does).
  static void clip_fields(std::vector<ParamField>& fields, std::size_t size) {
    for (ParamField& field : fields) {
      const std::size_t there = size > field.offset ? size - field.offset : 0;
      field.bytes = static_cast<std::uint32_t>(std::min<std::size_t>(field.bytes, there));
    }
    std::erase_if(fields, [](const ParamField& field) { return field.bytes == 0; });
  }

  Status read_attributes(NodeImage& node) {
    for (const CuLaunchAttributeId id : kAttributes) {
      CuLaunchAttribute attribute{};
      attribute.id = id;
      if (Status got =
              recorded("cuGraphKernelNodeGetAttribute",
                       driver_.cuGraphKernelNodeGetAttribute(node.handle, id, &attribute.value));
          !got.ok()) {
        return got;
      }
      node.kernel.attributes.push_back(attribute);
    }
    return {};
  }

  const Driver& driver_;
  const CuGraph graph_;
  const std::span<const CaptureRange> staying_;
  std::vector<CuGraphNode> created_;
  GraphImage image_;
};

// What a function may have of the current device at most; 0 where that is not told.
int most_shared_bytes(const Driver& driver, CuFunction function) {
  CuDevice device = 0;
  int of_block = 0, own = 0;
  const bool is_told =
      driver.cuCtxGetDevice(&device) == CuResult::kSuccess &&
      driver.cuDeviceGetAttribute(&of_block, CuDeviceAttribute::kMaxSharedMemoryPerBlockOptin,
                                  device) == CuResult::kSuccess &&
      driver.cuFuncGetAttribute(&own, CuFunctionAttribute::kSharedSizeBytes, function) ==
          CuResult::kSuccess;
  return is_told ? of_block - own : 0;
}

}  // namespace

CuKernelNodeParams launch_of(KernelImage& kernel, LaunchRoom& room) {
  CuKernelNodeParams launch = kernel.launch;
  if (kernel.packed) {
    room.packed_bytes = kernel.params.size();
    void* const extra[] = {params_buffer_key(), kernel.params.data(), params_size_key(),
                           &room.packed_bytes, kParamsEnd};
    std::copy(std::begin(extra), std::end(extra), room.extra);
    launch.extra = room.extra;
    return launch;
  }
  if (room.fields.size() < kernel.fields.size()) room.fields.resize(kernel.fields.size());
  for (std::size_t i = 0; i < kernel.fields.size(); ++i) {
    room.fields[i] = kernel.params.data() + kernel.fields[i].offset;
  }
  launch.kernel_params = room.fields.data();
  return launch;
}

bool allow_shared_memory(const Driver& driver, const KernelImage& kernel) {
  constexpr auto kMost = CuFunctionAttribute::kMaxDynamicSharedSizeBytes;
  const CuFunction function = kernel.launch.func;
  const auto needed = static_cast<int>(kernel.launch.shared_bytes);
  int allowed = 0;
  if (driver.cuFuncGetAttribute(&allowed, kMost, function) != CuResult::kSuccess ||
      allowed >= needed) {
    return false;
  }
  const auto allow = [&](int bytes) {
    return driver.cuFuncSetAttribute(function, kMost, bytes) == CuResult::kSuccess;
  };
  return allow(std::max(needed, most_shared_bytes(driver, function))) || allow(needed);
}

std::string_view type_text(CuNodeType type) {
  switch (type) {
    case CuNodeType::kKernel:
      return "kernel";
    case CuNodeType::kMemcpy:
      return "copy";
    case CuNodeType::kMemset:
      return "fill";
    case CuNodeType::kHost:
      return "host call";
    case CuNodeType::kGraph:
      return "child graph";
    case CuNodeType::kEmpty:
      return "empty node";
    case CuNodeType::kWaitEvent:
      return "event wait";
    case CuNodeType::kEventRecord:
      return "event record";
    case CuNodeType::kMemAlloc:
    case CuNodeType::kMemFree:
      return "memory node";
    case CuNodeType::kConditional:
      return "conditional node";
    default:
      return "node of another kind";
  }
}

std::string describe_node(const GraphImage& image, std::uint32_t node) {
  const NodeImage& there = image.nodes[node];
  if (there.type != CuNodeType::kKernel) return fmt::format("{} {}", type_text(there.type), node);
  const std::string& name = there.kernel.name;
  return fmt::format("kernel {} '{}'", node, name.empty() ? "(unnamed)" : name);
}

Result<GraphImage> read_graph(const Driver& driver, CuGraph graph,
                              std::span<const CaptureRange> staying) {
  if (!driver.has(Feature::kEdgeData)) {
    return refuse("the graph", "cannot be read: " + driver.why_off(Feature::kEdgeData));
  }
  return Reader(driver, graph, staying).run();
}

}  // namespace anabranch::cuda
