// SPDX-License-Identifier: Apache-2.0
// Modules, functions and launches: kernels are host functions that see a block of parameters.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "device/sim/machine.h"

namespace anabranch::sim {
namespace {

constexpr unsigned kMaxThreads = 1024;
// A larger cluster has to be allowed on the function first.
constexpr unsigned kPortableCluster = 8, kMaxCluster = 16;

// The names after ".entry" in an image, which is PTX or looks like it.
std::vector<std::string> entries_of(std::string_view image) {
  constexpr std::string_view kEntry = ".entry";
  std::vector<std::string> names;
  for (std::size_t at = image.find(kEntry); at != image.npos; at = image.find(kEntry, at)) {
    at = image.find_first_not_of(" \t\n", at + kEntry.size());
    if (at == image.npos) break;
    const std::size_t end =
        std::find_if(image.begin() + static_cast<std::ptrdiff_t>(at), image.end(),
                     [](char c) { return !std::isalnum(c) && c != '_'; }) -
        image.begin();
    names.emplace_back(image.substr(at, end - at));
  }
  return names;
}

std::size_t block_bytes_of(const Kernel& kernel) {
  std::size_t bytes = 0;
  for (const auto& [offset, size] : kernel.params) bytes = std::max(bytes, offset + size);
  return bytes;
}

bool divides(CuDim3 part, CuDim3 whole) {
  return part.x && part.y && part.z && whole.x % part.x == 0 && whole.y % part.y == 0 &&
         whole.z % part.z == 0;
}

int attribute_of(const Function& function, CuFunctionAttribute attribute, int otherwise) {
  const auto it = function.attributes.find(attribute);
  return it == function.attributes.end() ? otherwise : it->second;
}

CuResult check_shape(const Function& function, const CuKernelNodeParams& p, CuDim3 cluster) {
  const std::uint64_t threads = std::uint64_t{p.block_x} * p.block_y * p.block_z;
  const auto shared_bytes = static_cast<unsigned>(attribute_of(
      function, CuFunctionAttribute::kMaxDynamicSharedSizeBytes, function.kernel_shared_bytes));
  if (threads == 0 || threads > kMaxThreads || p.shared_bytes > shared_bytes ||
      std::uint64_t{p.grid_x} * p.grid_y * p.grid_z == 0) {
    return CuResult::kInvalidValue;
  }
  const bool any_cluster =
      attribute_of(function, CuFunctionAttribute::kNonPortableClusterSizeAllowed, 0) != 0;
  const std::uint64_t blocks = std::uint64_t{cluster.x} * cluster.y * cluster.z;
  const bool fits = blocks <= (any_cluster ? kMaxCluster : kPortableCluster);
  return fits && divides(cluster, {p.grid_x, p.grid_y, p.grid_z}) ? CuResult::kSuccess
                                                                  : CuResult::kInvalidClusterSize;
}

// `extra` is a list of keys and values that ends with a null key.
bool read_extra(void** extra, const void** buffer, std::size_t* bytes) {
  *buffer = nullptr;
  *bytes = 0;
  for (; *extra != kParamsEnd; extra += 2) {
    if (*extra == params_buffer_key()) {
      *buffer = extra[1];
    } else if (*extra == params_size_key()) {
      *bytes = *static_cast<std::size_t*>(extra[1]);
    } else {
      return false;
    }
  }
  return *buffer != nullptr;
}

CuResult apply(const CuLaunchAttribute& attribute, KernelOp* op, bool* updatable) {
  switch (attribute.id) {
    case CuLaunchAttributeId::kIgnore:
      return CuResult::kSuccess;
    case CuLaunchAttributeId::kCooperative:
      op->cooperative = attribute.value.cooperative != 0;
      return CuResult::kSuccess;
    case CuLaunchAttributeId::kClusterDimension:
      op->cluster = attribute.value.cluster_dim;
      return CuResult::kSuccess;
    case CuLaunchAttributeId::kProgrammaticStreamSerialization:
      op->programmatic = attribute.value.programmatic_stream_serialization_allowed != 0;
      return CuResult::kSuccess;
    case CuLaunchAttributeId::kPriority:
      op->priority = attribute.value.priority;
      return CuResult::kSuccess;
    case CuLaunchAttributeId::kDeviceUpdatableKernelNode:
      *updatable = attribute.value.device_updatable_kernel_node.device_updatable != 0;
      return CuResult::kSuccess;
    default:
      return CuResult::kNotSupported;
  }
}

}  // namespace

void* KernelCall::check_memory(CuDevicePtr address, std::size_t bytes) const {
  return Machine::active->kernel_memory(address, bytes);
}

void* Machine::kernel_memory(CuDevicePtr address, std::size_t bytes) {
  if (memory_.is_live(address, bytes)) return reinterpret_cast<void*>(address);
  lose_context(
      CuResult::kIllegalAddress,
      fmt::format("a kernel touched {} bytes at {:#x}, which are not all live", bytes, address));
  return nullptr;
}

CuResult Machine::cuModuleLoadData(CuModule* module, const void* image) {
  if (!current_device()) return CuResult::kInvalidContext;
  const std::vector<std::string> names = entries_of(static_cast<const char*>(image));
  if (names.empty()) return CuResult::kInvalidImage;
  for (const std::string& name : names) {
    if (!kernel_of_name_.contains(name)) return CuResult::kNoBinaryForGpu;
  }
  Module& made = modules_.make();
  for (const std::string& name : names) {
    Function& function = functions_.make();
    function.module = made.handle;
    function.library_kernel = reinterpret_cast<CuKernel>(next_handle());
    library_kernels_[function.library_kernel] = function.handle;
    function.kernel = kernel_of_name_.at(name);
    function.block_bytes = block_bytes_of(*function.kernel);
    made.functions[name] = function.handle;
  }
  *module = made.handle;
  return CuResult::kSuccess;
}

CuResult Machine::cuModuleUnload(CuModule module) {
  const Module* const found = modules_.find(module);
  if (!found) return CuResult::kInvalidHandle;
  for (const auto& [name, function] : found->functions) {
    library_kernels_.erase(functions_.find(function)->library_kernel);
    functions_.erase(function);
  }
  modules_.erase(module);
  return CuResult::kSuccess;
}

CuResult Machine::cuModuleGetFunction(CuFunction* function, CuModule module, const char* name) {
  const Module* const found = modules_.find(module);
  if (!found) return CuResult::kInvalidHandle;
  const auto it = found->functions.find(std::string_view(name));
  if (it == found->functions.end()) return CuResult::kNotFound;
  *function = it->second;
  return CuResult::kSuccess;
}

CuResult Machine::cuKernelGetFunction(CuFunction* function, CuKernel kernel) {
  const auto it = library_kernels_.find(kernel);
  if (it == library_kernels_.end()) return CuResult::kInvalidHandle;
  *function = it->second;
  return CuResult::kSuccess;
}

// A node names a function or, without one, a kernel.
const Function* Machine::find_function(const CuKernelNodeParams& params) const {
  if (params.func) return functions_.find(params.func);
  const auto it = library_kernels_.find(params.kernel);
  return it == library_kernels_.end() ? nullptr : functions_.find(it->second);
}

CuResult Machine::cuFuncGetAttribute(int* value, CuFunctionAttribute attribute,
                                     CuFunction function) {
  const Function* const found = functions_.find(function);
  if (!found) return CuResult::kInvalidHandle;
  switch (attribute) {
    case CuFunctionAttribute::kMaxThreadsPerBlock:
      *value = static_cast<int>(kMaxThreads);
      break;
    case CuFunctionAttribute::kNumRegs:
      *value = 32;
      break;
    case CuFunctionAttribute::kBinaryVersion:
      *value = 90;
      break;
    case CuFunctionAttribute::kMaxDynamicSharedSizeBytes:
      *value = attribute_of(*found, attribute, found->kernel_shared_bytes);
      break;
    default:
      *value = attribute_of(*found, attribute, 0);
  }
  return CuResult::kSuccess;
}

CuResult Machine::cuFuncSetAttribute(CuFunction function, CuFunctionAttribute attribute,
                                     int value) {
  Function* const found = functions_.find(function);
  if (!found) return CuResult::kInvalidHandle;
  if (attribute != CuFunctionAttribute::kMaxDynamicSharedSizeBytes &&
      attribute != CuFunctionAttribute::kNonPortableClusterSizeAllowed) {
    return CuResult::kInvalidValue;
  }
  if (attribute == CuFunctionAttribute::kMaxDynamicSharedSizeBytes && value > kMostSharedBytes) {
    return CuResult::kInvalidValue;
  }
  found->attributes[attribute] = value;
  return CuResult::kSuccess;
}

CuResult Machine::cuFuncGetParamInfo(CuFunction function, std::size_t index, std::size_t* offset,
                                     std::size_t* bytes) {
  const Function* const found = functions_.find(function);
  if (!found) return CuResult::kInvalidHandle;
  if (index >= found->kernel->params.size()) return CuResult::kInvalidValue;
  if (offset) *offset = found->kernel->params[index].offset;
  if (bytes) *bytes = found->kernel->params[index].bytes;
  return CuResult::kSuccess;
}

CuResult Machine::cuFuncGetName(const char** name, CuFunction function) {
  const Function* const found = functions_.find(function);
  if (!found) return CuResult::kInvalidHandle;
  *name = found->kernel->name.c_str();
  return CuResult::kSuccess;
}

CuResult Machine::pack(const Function& function, void** params, void** extra, KernelOp* op) const {
  if (params && extra) return CuResult::kInvalidValue;
  op->params.assign(function.block_bytes, std::byte{0});
  op->packed = extra != nullptr;
  if (extra) {
    const void* buffer = nullptr;
    std::size_t bytes = 0;
    // A device refuses a longer block, by padding too, and takes a shorter one, of which its kernel
    // must not read the end.
    if (!read_extra(extra, &buffer, &bytes) || bytes > function.block_bytes) {
      return CuResult::kInvalidValue;
    }
    op->params.resize(bytes);
    std::memcpy(op->params.data(), buffer, bytes);
    return CuResult::kSuccess;
  }
  if (!params && !function.kernel->params.empty()) return CuResult::kInvalidValue;
  for (std::size_t i = 0; i < function.kernel->params.size(); ++i) {
    const auto& [offset, bytes] = function.kernel->params[i];
    std::memcpy(op->params.data() + offset, params[i], bytes);
  }
  return CuResult::kSuccess;
}

CuResult Machine::make_kernel_op(const CuKernelNodeParams& p, KernelOp* op) const {
  const Function* const function = find_function(p);
  if (!function) return CuResult::kInvalidHandle;
  if (const CuResult result = check_shape(*function, p, op->cluster);
      result != CuResult::kSuccess) {
    return result;
  }
  op->function = function->handle;
  op->kernel = function->kernel;
  op->grid = {p.grid_x, p.grid_y, p.grid_z};
  op->block = {p.block_x, p.block_y, p.block_z};
  op->shared_bytes = p.shared_bytes;
  return pack(*function, p.kernel_params, p.extra, op);
}

void Machine::run_kernel(const KernelOp& op) {
  KernelCall call;
  call.grid = op.grid;
  call.block = op.block;
  call.cluster = op.cluster;
  call.shared_bytes = op.shared_bytes;
  call.priority = op.priority;
  call.params = op.params;
  running_ = kernel_running_ = unchecked_ = true;
  if (op.kernel->run) op.kernel->run(call);
  running_ = kernel_running_ = false;
}

CuResult Machine::cuLaunchKernel(CuFunction function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned shared_bytes, CuStream stream,
                                 void** params, void** extra) {
  const CuLaunchConfig config{grid_x,  grid_y,       grid_z, block_x, block_y,
                              block_z, shared_bytes, stream, nullptr, 0};
  return cuLaunchKernelEx(&config, function, params, extra);
}

CuResult Machine::cuLaunchKernelEx(const CuLaunchConfig* config, CuFunction function, void** params,
                                   void** extra) {
  if (!config) return CuResult::kInvalidValue;
  KernelOp op;
  CuLaunchAttribute* updatable = nullptr;
  for (unsigned i = 0; i < config->attr_count; ++i) {
    bool update = false;
    const CuResult result = apply(config->attrs[i], &op, &update);
    if (result != CuResult::kSuccess) return result;
    if (update) updatable = &config->attrs[i];
  }
  const CuKernelNodeParams p{
      function,        config->grid_x,  config->grid_y,  config->grid_z,
      config->block_x, config->block_y, config->block_z, config->shared_bytes,
      params,          extra,           nullptr,         nullptr};
  Stream* stream = nullptr;
  CuResult result = make_kernel_op(p, &op);
  if (result == CuResult::kSuccess) result = find_stream(config->stream, &stream);
  if (result != CuResult::kSuccess) return result;
  op.priority = op.priority ? op.priority : stream->priority;
  if (updatable && !stream->capture) return CuResult::kNotSupported;  // it is for graphs only
  result = submit(config->stream, std::move(op));
  if (!updatable || result != CuResult::kSuccess) return result;
  const CuGraphNode node = stream->capture_after.front().node;
  result = cuGraphKernelNodeSetAttribute(node, updatable->id, &updatable->value);
  updatable->value.device_updatable_kernel_node.dev_node = nodes_.find(node)->device_node;
  return result;
}

}  // namespace anabranch::sim
