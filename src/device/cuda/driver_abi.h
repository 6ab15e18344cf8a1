// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's ABI that we use, declared by ourselves: nothing of CUDA is needed
// to build, and the simulated driver speaks the same types.
// Ownership: handles belong to the driver that made them; structs are plain values.
// Threads:   these are types; nothing here runs.
// Failure:   none; CuResult is what every driver call answers.
// Edges:     x86-64 and aarch64 Linux. tests/gpu/driver_abi_test.cpp compares every number, size
//            and offset with CUDA's own header where there is one. Comments give the driver's
//            names.
#pragma once

#include <cstddef>
#include <cstdint>

namespace anabranch::cuda {

// CUresult
enum class CuResult : int {
#define ANABRANCH_CUDA_CODE(name, driver_name, number) name = number,
#include "device/cuda/driver_codes.inc"
#undef ANABRANCH_CUDA_CODE
};

// Handles. Null contexts and streams have a meaning; other null handles are errors.
using CuDevice = int;
using CuDevicePtr = unsigned long long;
using CuMemoryHandle = unsigned long long;  // CUmemGenericAllocationHandle
using CuContext = struct CuContextTag*;
using CuModule = struct CuModuleTag*;
using CuFunction = struct CuFunctionTag*;
using CuKernel = struct CuKernelTag*;
using CuArray = struct CuArrayTag*;
using CuStream = struct CuStreamTag*;
using CuEvent = struct CuEventTag*;
using CuGraph = struct CuGraphTag*;
using CuGraphNode = struct CuGraphNodeTag*;
using CuGraphExec = struct CuGraphExecTag*;
using CuDeviceNode = struct CuDeviceNodeTag*;  // CUgraphDeviceNode: what device code names it by
using CuHostFn = void (*)(void* user_data);

// The streams that are not made: 0 and CU_STREAM_LEGACY are one, CU_STREAM_PER_THREAD another.
inline CuStream legacy_stream() { return reinterpret_cast<CuStream>(std::uintptr_t{1}); }
inline CuStream per_thread_stream() { return reinterpret_cast<CuStream>(std::uintptr_t{2}); }

// How `extra` spells a packed block of parameters: key, value, key, value, end.
inline void* const kParamsEnd = nullptr;  // CU_LAUNCH_PARAM_END
inline void* params_buffer_key() { return reinterpret_cast<void*>(std::uintptr_t{1}); }
inline void* params_size_key() { return reinterpret_cast<void*>(std::uintptr_t{2}); }

enum class CuDeviceAttribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxSharedMemoryPerBlock = 8,
  kWarpSize = 10,
  kMultiprocessorCount = 16,
  kUnifiedAddressing = 41,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kCooperativeLaunch = 95,
  kMaxSharedMemoryPerBlockOptin = 97,
  kVirtualMemoryManagement = 102,
  kTensorMapAccess = 127,
};

enum class CuMemoryType : unsigned { kHost = 1, kDevice = 2, kArray = 3, kUnified = 4 };

enum class CuPointerAttribute : int {
  kContext = 1,
  kMemoryType = 2,
  kDevicePointer = 3,
  kHostPointer = 4,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kRangeStart = 11,
  kRangeSize = 12,
  kMapped = 13,
  kAccessFlags = 16,
  kMappingSize = 18,
  kMappingBase = 19,
};

enum class CuFunctionAttribute : int {
  kMaxThreadsPerBlock = 0,
  kSharedSizeBytes = 1,
  kNumRegs = 4,
  kBinaryVersion = 6,
  kMaxDynamicSharedSizeBytes = 8,
  kNonPortableClusterSizeAllowed = 14,
};

// Flags, as the calls take them.
inline constexpr unsigned kStreamDefault = 0, kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0, kEventBlockingSync = 1, kEventDisableTiming = 2;
inline constexpr unsigned kEventRecordDefault = 0, kEventRecordExternal = 1;
inline constexpr unsigned kEventWaitDefault = 0, kEventWaitExternal = 1;
inline constexpr unsigned kHostAllocPortable = 1, kHostAllocDeviceMap = 2;
inline constexpr unsigned kAddCaptureDependencies = 0, kSetCaptureDependencies = 1;
inline constexpr unsigned long long kInstantiateUpload = 2, kInstantiateDeviceLaunch = 4;
inline constexpr unsigned long long kInstantiateUseNodePriority = 8;

enum class CuCaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum class CuCaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

// Virtual memory.
enum class CuAllocationType : int { kPinned = 1 };
enum class CuLocationType : int { kDevice = 1, kHost = 2 };
enum class CuGranularity : int { kMinimum = 0, kRecommended = 1 };
enum class CuAccess : int { kNone = 0, kRead = 1, kReadWrite = 3 };

struct CuMemLocation {  // CUmemLocation
  CuLocationType type;
  int id;
};
struct CuMemAllocationProp {  // CUmemAllocationProp
  CuAllocationType type;
  int requested_handle_types;
  CuMemLocation location;
  void* win32_handle_meta_data;
  unsigned char compression_type;
  unsigned char gpu_direct_rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};
struct CuMemAccessDesc {  // CUmemAccessDesc
  CuMemLocation location;
  CuAccess flags;
};
static_assert(sizeof(CuMemAllocationProp) == 32 && sizeof(CuMemAccessDesc) == 12);

// Copies and fills.
struct CuMemcpy3D {  // CUDA_MEMCPY3D
  std::size_t src_x_bytes, src_y, src_z, src_lod;
  CuMemoryType src_memory_type;
  const void* src_host;
  CuDevicePtr src_device;
  CuArray src_array;
  void* reserved0;
  std::size_t src_pitch, src_height;
  std::size_t dst_x_bytes, dst_y, dst_z, dst_lod;
  CuMemoryType dst_memory_type;
  void* dst_host;
  CuDevicePtr dst_device;
  CuArray dst_array;
  void* reserved1;
  std::size_t dst_pitch, dst_height;
  std::size_t width_bytes, height, depth;
};
struct CuMemcpy2D {  // CUDA_MEMCPY2D
  std::size_t src_x_bytes, src_y;
  CuMemoryType src_memory_type;
  const void* src_host;
  CuDevicePtr src_device;
  CuArray src_array;
  std::size_t src_pitch;
  std::size_t dst_x_bytes, dst_y;
  CuMemoryType dst_memory_type;
  void* dst_host;
  CuDevicePtr dst_device;
  CuArray dst_array;
  std::size_t dst_pitch;
  std::size_t width_bytes, height;
};
struct CuMemsetNodeParams {  // CUDA_MEMSET_NODE_PARAMS
  CuDevicePtr dst;
  std::size_t pitch;
  unsigned value;
  unsigned element_bytes;
  std::size_t width, height;
};
static_assert(sizeof(CuMemcpy3D) == 200 && offsetof(CuMemcpy3D, dst_memory_type) == 120);
static_assert(sizeof(CuMemcpy2D) == 128 && sizeof(CuMemsetNodeParams) == 40);

// Launches.
enum class CuLaunchAttributeId : int {
  kIgnore = 0,
  kCooperative = 2,
  kClusterDimension = 4,
  kProgrammaticStreamSerialization = 6,
  kProgrammaticEvent = 7,
  kPriority = 8,
  kDeviceUpdatableKernelNode = 13,
};
struct CuDim3 {
  unsigned x, y, z;
};
struct CuUpdatable {
  int device_updatable;
  CuDeviceNode dev_node;
};
union CuLaunchAttributeValue {  // CUlaunchAttributeValue
  char pad[64];
  int cooperative;
  CuDim3 cluster_dim;
  int programmatic_stream_serialization_allowed;
  int priority;
  CuUpdatable device_updatable_kernel_node;
};
struct CuLaunchAttribute {  // CUlaunchAttribute
  CuLaunchAttributeId id;
  char pad[4];
  CuLaunchAttributeValue value;
};
struct CuLaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  CuStream stream;
  CuLaunchAttribute* attrs;
  unsigned attr_count;
};
static_assert(sizeof(CuLaunchAttribute) == 72 && sizeof(CuLaunchConfig) == 56);

// Graphs.
enum class CuNodeType : int {
  kKernel = 0,
  kMemcpy = 1,
  kMemset = 2,
  kHost = 3,
  kGraph = 4,
  kEmpty = 5,
  kWaitEvent = 6,
  kEventRecord = 7,
  kExternalSemaphoreSignal = 8,
  kExternalSemaphoreWait = 9,
  kMemAlloc = 10,
  kMemFree = 11,
  kBatchMemOp = 12,
  kConditional = 13,
};

// When an edge lets its second node start: the first has ended, has triggered, has begun.
inline constexpr unsigned char kPortDefault = 0, kPortProgrammatic = 1, kPortLaunchOrder = 2;
inline constexpr unsigned char kEdgeDefault = 0, kEdgeProgrammatic = 1;
struct CuEdgeData {  // CUgraphEdgeData
  unsigned char from_port, to_port, type;
  unsigned char reserved[5];
};

struct CuKernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2 and, inside CuGraphNodeParams, _v3
  CuFunction func;
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void** kernel_params;
  void** extra;
  CuKernel kernel;
  CuContext context;
};
struct CuHostNodeParams {  // CUDA_HOST_NODE_PARAMS
  CuHostFn fn;
  void* user_data;
};
struct CuMemcpyNodeParams {  // CUDA_MEMCPY_NODE_PARAMS
  int flags;
  int reserved;
  CuContext context;
  CuMemcpy3D copy;
};
struct CuMemsetNodeParams2 {  // CUDA_MEMSET_NODE_PARAMS_v2
  CuMemsetNodeParams memset;
  CuContext context;
};
struct CuChildGraphNodeParams {  // CUDA_CHILD_GRAPH_NODE_PARAMS
  CuGraph graph;
  int ownership;
};
struct CuGraphNodeParams {  // CUgraphNodeParams: any node, for the generic calls
  CuNodeType type;
  int reserved0[3];
  union {
    long long reserved1[29];
    CuKernelNodeParams kernel;
    CuMemcpyNodeParams memcpy;
    CuMemsetNodeParams2 memset;
    CuHostNodeParams host;
    CuChildGraphNodeParams graph;
    CuEvent event;
  };
  long long reserved2;
};
enum class CuInstantiateResult : int {
  kSuccess = 0,
  kError = 1,
  kInvalidStructure = 2,
  kNodeOperationNotSupported = 3,
  kMultipleContexts = 4,
};
struct CuInstantiateParams {  // CUDA_GRAPH_INSTANTIATE_PARAMS
  unsigned long long flags;
  CuStream upload_stream;
  CuGraphNode error_node;
  CuInstantiateResult result;
};
static_assert(sizeof(CuEdgeData) == 8 && sizeof(CuKernelNodeParams) == 72);
static_assert(offsetof(CuKernelNodeParams, kernel_params) == 40);
static_assert(sizeof(CuMemcpyNodeParams) == 216 && sizeof(CuMemsetNodeParams2) == 48);
static_assert(sizeof(CuGraphNodeParams) == 256 && offsetof(CuGraphNodeParams, kernel) == 16);
static_assert(sizeof(CuInstantiateParams) == 32);

// Tensor maps: 128 opaque bytes, passed to kernels by value.
struct alignas(128) CuTensorMap {  // CUtensorMap
  std::uint64_t opaque[16];
};
enum class CuTensorType : int {
  kUint8 = 0,
  kUint16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
};
enum class CuTensorInterleave : int { kNone = 0, k16B, k32B };
enum class CuTensorSwizzle : int { kNone = 0, k32B, k64B, k128B };
enum class CuTensorL2Promotion : int { kNone = 0, k64B, k128B, k256B };
enum class CuTensorOobFill : int { kNone = 0, kNanRequestZeroFma };

// CUdriverProcAddressQueryResult
enum class CuProcStatus : int { kFound = 0, kNotFound = 1, kVersionTooOld = 2 };
using CuGetProcAddress = CuResult (*)(const char* symbol, void** function, int cuda_version,
                                      std::uint64_t flags, CuProcStatus* status);

}  // namespace anabranch::cuda
