// SPDX-License-Identifier: Apache-2.0
// What src/device/cuda declares of the driver's ABI, against CUDA's own header (12.4 or newer). It
// is compiled where CMake finds that header; compiling it is the test.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

#include "device/cuda/driver_abi.h"

namespace anabranch::cuda {
namespace {

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(::theirs))
#define SAME_PLACE(ours, member, theirs, their_member) \
  static_assert(offsetof(ours, member) == offsetof(::theirs, their_member))
#define SAME_NUMBER(ours, theirs) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs))

// The codes are those of CUDA 13.0; an older header lacks the last of them.
#if CUDA_VERSION >= 13000
#define ANABRANCH_CUDA_CODE(name, driver_name, number) SAME_NUMBER(CuResult::name, driver_name);
#include "device/cuda/driver_codes.inc"
#undef ANABRANCH_CUDA_CODE
#endif

SAME_NUMBER(CuDeviceAttribute::kMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_NUMBER(CuDeviceAttribute::kMaxSharedMemoryPerBlock,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
SAME_NUMBER(CuDeviceAttribute::kWarpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
SAME_NUMBER(CuDeviceAttribute::kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_NUMBER(CuDeviceAttribute::kUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME_NUMBER(CuDeviceAttribute::kComputeCapabilityMajor,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_NUMBER(CuDeviceAttribute::kComputeCapabilityMinor,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_NUMBER(CuDeviceAttribute::kCooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
SAME_NUMBER(CuDeviceAttribute::kVirtualMemoryManagement,
            CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_NUMBER(CuDeviceAttribute::kTensorMapAccess, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED);
SAME_NUMBER(CuMemoryType::kHost, CU_MEMORYTYPE_HOST);
SAME_NUMBER(CuMemoryType::kDevice, CU_MEMORYTYPE_DEVICE);
SAME_NUMBER(CuMemoryType::kArray, CU_MEMORYTYPE_ARRAY);
SAME_NUMBER(CuMemoryType::kUnified, CU_MEMORYTYPE_UNIFIED);
SAME_NUMBER(CuPointerAttribute::kContext, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME_NUMBER(CuPointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_NUMBER(CuPointerAttribute::kDevicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME_NUMBER(CuPointerAttribute::kHostPointer, CU_POINTER_ATTRIBUTE_HOST_POINTER);
SAME_NUMBER(CuPointerAttribute::kBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME_NUMBER(CuPointerAttribute::kIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME_NUMBER(CuPointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_NUMBER(CuPointerAttribute::kRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME_NUMBER(CuPointerAttribute::kRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME_NUMBER(CuPointerAttribute::kMapped, CU_POINTER_ATTRIBUTE_MAPPED);
SAME_NUMBER(CuPointerAttribute::kAccessFlags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS);
SAME_NUMBER(CuPointerAttribute::kMappingSize, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
SAME_NUMBER(CuPointerAttribute::kMappingBase, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
SAME_NUMBER(CuFunctionAttribute::kMaxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_NUMBER(CuFunctionAttribute::kSharedSizeBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME_NUMBER(CuFunctionAttribute::kNumRegs, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME_NUMBER(CuFunctionAttribute::kBinaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION);
SAME_NUMBER(CuFunctionAttribute::kMaxDynamicSharedSizeBytes,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_NUMBER(CuFunctionAttribute::kNonPortableClusterSizeAllowed,
            CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
SAME_NUMBER(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME_NUMBER(kEventBlockingSync, CU_EVENT_BLOCKING_SYNC);
SAME_NUMBER(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME_NUMBER(kEventRecordExternal, CU_EVENT_RECORD_EXTERNAL);
SAME_NUMBER(kEventWaitExternal, CU_EVENT_WAIT_EXTERNAL);
SAME_NUMBER(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
SAME_NUMBER(kHostAllocDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP);
SAME_NUMBER(kAddCaptureDependencies, CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
SAME_NUMBER(kSetCaptureDependencies, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
SAME_NUMBER(kInstantiateUpload, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
SAME_NUMBER(kInstantiateDeviceLaunch, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
SAME_NUMBER(kInstantiateUseNodePriority, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
SAME_NUMBER(kPortProgrammatic, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
SAME_NUMBER(kPortLaunchOrder, CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER);
SAME_NUMBER(kEdgeProgrammatic, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
SAME_NUMBER(CuCaptureMode::kGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME_NUMBER(CuCaptureMode::kThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_NUMBER(CuCaptureMode::kRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_NUMBER(CuCaptureStatus::kNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_NUMBER(CuCaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_NUMBER(CuCaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME_NUMBER(CuAllocationType::kPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_NUMBER(CuLocationType::kDevice, CU_MEM_LOCATION_TYPE_DEVICE);
SAME_NUMBER(CuLocationType::kHost, CU_MEM_LOCATION_TYPE_HOST);
SAME_NUMBER(CuGranularity::kMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME_NUMBER(CuGranularity::kRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME_NUMBER(CuAccess::kRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME_NUMBER(CuAccess::kReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_NUMBER(CuLaunchAttributeId::kIgnore, CU_LAUNCH_ATTRIBUTE_IGNORE);
SAME_NUMBER(CuLaunchAttributeId::kCooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME_NUMBER(CuLaunchAttributeId::kClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME_NUMBER(CuLaunchAttributeId::kProgrammaticStreamSerialization,
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME_NUMBER(CuLaunchAttributeId::kProgrammaticEvent, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
SAME_NUMBER(CuLaunchAttributeId::kPriority, CU_LAUNCH_ATTRIBUTE_PRIORITY);
SAME_NUMBER(CuLaunchAttributeId::kDeviceUpdatableKernelNode,
            CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE);
SAME_NUMBER(CuNodeType::kKernel, CU_GRAPH_NODE_TYPE_KERNEL);
SAME_NUMBER(CuNodeType::kMemcpy, CU_GRAPH_NODE_TYPE_MEMCPY);
SAME_NUMBER(CuNodeType::kMemset, CU_GRAPH_NODE_TYPE_MEMSET);
SAME_NUMBER(CuNodeType::kHost, CU_GRAPH_NODE_TYPE_HOST);
SAME_NUMBER(CuNodeType::kGraph, CU_GRAPH_NODE_TYPE_GRAPH);
SAME_NUMBER(CuNodeType::kEmpty, CU_GRAPH_NODE_TYPE_EMPTY);
SAME_NUMBER(CuNodeType::kWaitEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
SAME_NUMBER(CuNodeType::kEventRecord, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
SAME_NUMBER(CuNodeType::kExternalSemaphoreSignal, CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL);
SAME_NUMBER(CuNodeType::kExternalSemaphoreWait, CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT);
SAME_NUMBER(CuNodeType::kMemAlloc, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
SAME_NUMBER(CuNodeType::kMemFree, CU_GRAPH_NODE_TYPE_MEM_FREE);
SAME_NUMBER(CuNodeType::kBatchMemOp, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
SAME_NUMBER(CuNodeType::kConditional, CU_GRAPH_NODE_TYPE_CONDITIONAL);
SAME_NUMBER(CuInstantiateResult::kSuccess, CUDA_GRAPH_INSTANTIATE_SUCCESS);
SAME_NUMBER(CuInstantiateResult::kError, CUDA_GRAPH_INSTANTIATE_ERROR);
SAME_NUMBER(CuInstantiateResult::kInvalidStructure, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
SAME_NUMBER(CuInstantiateResult::kNodeOperationNotSupported,
            CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED);
SAME_NUMBER(CuInstantiateResult::kMultipleContexts,
            CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED);
SAME_NUMBER(CuTensorType::kUint8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
SAME_NUMBER(CuTensorType::kUint16, CU_TENSOR_MAP_DATA_TYPE_UINT16);
SAME_NUMBER(CuTensorType::kUint32, CU_TENSOR_MAP_DATA_TYPE_UINT32);
SAME_NUMBER(CuTensorType::kInt32, CU_TENSOR_MAP_DATA_TYPE_INT32);
SAME_NUMBER(CuTensorType::kUint64, CU_TENSOR_MAP_DATA_TYPE_UINT64);
SAME_NUMBER(CuTensorType::kInt64, CU_TENSOR_MAP_DATA_TYPE_INT64);
SAME_NUMBER(CuTensorType::kFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME_NUMBER(CuTensorType::kFloat32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME_NUMBER(CuTensorType::kFloat64, CU_TENSOR_MAP_DATA_TYPE_FLOAT64);
SAME_NUMBER(CuTensorType::kBfloat16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME_NUMBER(CuTensorInterleave::k32B, CU_TENSOR_MAP_INTERLEAVE_32B);
SAME_NUMBER(CuTensorSwizzle::k128B, CU_TENSOR_MAP_SWIZZLE_128B);
SAME_NUMBER(CuTensorL2Promotion::k256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME_NUMBER(CuTensorOobFill::kNanRequestZeroFma, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
SAME_NUMBER(CuProcStatus::kNotFound, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
SAME_NUMBER(CuProcStatus::kVersionTooOld, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);

SAME_SIZE(CuKernelNodeParams, CUDA_KERNEL_NODE_PARAMS_v2);
SAME_PLACE(CuKernelNodeParams, func, CUDA_KERNEL_NODE_PARAMS_v2, func);
SAME_PLACE(CuKernelNodeParams, grid_x, CUDA_KERNEL_NODE_PARAMS_v2, gridDimX);
SAME_PLACE(CuKernelNodeParams, grid_z, CUDA_KERNEL_NODE_PARAMS_v2, gridDimZ);
SAME_PLACE(CuKernelNodeParams, block_x, CUDA_KERNEL_NODE_PARAMS_v2, blockDimX);
SAME_PLACE(CuKernelNodeParams, block_z, CUDA_KERNEL_NODE_PARAMS_v2, blockDimZ);
SAME_PLACE(CuKernelNodeParams, shared_bytes, CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes);
SAME_PLACE(CuKernelNodeParams, kernel_params, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
SAME_PLACE(CuKernelNodeParams, extra, CUDA_KERNEL_NODE_PARAMS_v2, extra);
SAME_PLACE(CuKernelNodeParams, kernel, CUDA_KERNEL_NODE_PARAMS_v2, kern);
SAME_PLACE(CuKernelNodeParams, context, CUDA_KERNEL_NODE_PARAMS_v2, ctx);
SAME_SIZE(CuMemcpy3D, CUDA_MEMCPY3D);
SAME_PLACE(CuMemcpy3D, src_x_bytes, CUDA_MEMCPY3D, srcXInBytes);
SAME_PLACE(CuMemcpy3D, src_y, CUDA_MEMCPY3D, srcY);
SAME_PLACE(CuMemcpy3D, src_z, CUDA_MEMCPY3D, srcZ);
SAME_PLACE(CuMemcpy3D, src_lod, CUDA_MEMCPY3D, srcLOD);
SAME_PLACE(CuMemcpy3D, src_memory_type, CUDA_MEMCPY3D, srcMemoryType);
SAME_PLACE(CuMemcpy3D, src_host, CUDA_MEMCPY3D, srcHost);
SAME_PLACE(CuMemcpy3D, src_device, CUDA_MEMCPY3D, srcDevice);
SAME_PLACE(CuMemcpy3D, src_array, CUDA_MEMCPY3D, srcArray);
SAME_PLACE(CuMemcpy3D, src_pitch, CUDA_MEMCPY3D, srcPitch);
SAME_PLACE(CuMemcpy3D, src_height, CUDA_MEMCPY3D, srcHeight);
SAME_PLACE(CuMemcpy3D, dst_x_bytes, CUDA_MEMCPY3D, dstXInBytes);
SAME_PLACE(CuMemcpy3D, dst_y, CUDA_MEMCPY3D, dstY);
SAME_PLACE(CuMemcpy3D, dst_z, CUDA_MEMCPY3D, dstZ);
SAME_PLACE(CuMemcpy3D, dst_lod, CUDA_MEMCPY3D, dstLOD);
SAME_PLACE(CuMemcpy3D, dst_memory_type, CUDA_MEMCPY3D, dstMemoryType);
SAME_PLACE(CuMemcpy3D, dst_host, CUDA_MEMCPY3D, dstHost);
SAME_PLACE(CuMemcpy3D, dst_device, CUDA_MEMCPY3D, dstDevice);
SAME_PLACE(CuMemcpy3D, dst_array, CUDA_MEMCPY3D, dstArray);
SAME_PLACE(CuMemcpy3D, dst_pitch, CUDA_MEMCPY3D, dstPitch);
SAME_PLACE(CuMemcpy3D, dst_height, CUDA_MEMCPY3D, dstHeight);
SAME_PLACE(CuMemcpy3D, width_bytes, CUDA_MEMCPY3D, WidthInBytes);
SAME_PLACE(CuMemcpy3D, height, CUDA_MEMCPY3D, Height);
SAME_PLACE(CuMemcpy3D, depth, CUDA_MEMCPY3D, Depth);
SAME_SIZE(CuMemcpy2D, CUDA_MEMCPY2D);
SAME_PLACE(CuMemcpy2D, src_x_bytes, CUDA_MEMCPY2D, srcXInBytes);
SAME_PLACE(CuMemcpy2D, src_y, CUDA_MEMCPY2D, srcY);
SAME_PLACE(CuMemcpy2D, src_memory_type, CUDA_MEMCPY2D, srcMemoryType);
SAME_PLACE(CuMemcpy2D, src_host, CUDA_MEMCPY2D, srcHost);
SAME_PLACE(CuMemcpy2D, src_device, CUDA_MEMCPY2D, srcDevice);
SAME_PLACE(CuMemcpy2D, src_array, CUDA_MEMCPY2D, srcArray);
SAME_PLACE(CuMemcpy2D, src_pitch, CUDA_MEMCPY2D, srcPitch);
SAME_PLACE(CuMemcpy2D, dst_x_bytes, CUDA_MEMCPY2D, dstXInBytes);
SAME_PLACE(CuMemcpy2D, dst_memory_type, CUDA_MEMCPY2D, dstMemoryType);
SAME_PLACE(CuMemcpy2D, dst_host, CUDA_MEMCPY2D, dstHost);
SAME_PLACE(CuMemcpy2D, dst_device, CUDA_MEMCPY2D, dstDevice);
SAME_PLACE(CuMemcpy2D, dst_pitch, CUDA_MEMCPY2D, dstPitch);
SAME_PLACE(CuMemcpy2D, width_bytes, CUDA_MEMCPY2D, WidthInBytes);
SAME_PLACE(CuMemcpy2D, height, CUDA_MEMCPY2D, Height);
SAME_SIZE(CuMemsetNodeParams, CUDA_MEMSET_NODE_PARAMS_v1);
SAME_PLACE(CuMemsetNodeParams, dst, CUDA_MEMSET_NODE_PARAMS_v1, dst);
SAME_PLACE(CuMemsetNodeParams, pitch, CUDA_MEMSET_NODE_PARAMS_v1, pitch);
SAME_PLACE(CuMemsetNodeParams, value, CUDA_MEMSET_NODE_PARAMS_v1, value);
SAME_PLACE(CuMemsetNodeParams, element_bytes, CUDA_MEMSET_NODE_PARAMS_v1, elementSize);
SAME_PLACE(CuMemsetNodeParams, width, CUDA_MEMSET_NODE_PARAMS_v1, width);
SAME_PLACE(CuMemsetNodeParams, height, CUDA_MEMSET_NODE_PARAMS_v1, height);
SAME_SIZE(CuMemsetNodeParams2, CUDA_MEMSET_NODE_PARAMS_v2);
SAME_PLACE(CuMemsetNodeParams2, context, CUDA_MEMSET_NODE_PARAMS_v2, ctx);
SAME_SIZE(CuHostNodeParams, CUDA_HOST_NODE_PARAMS_v1);
SAME_PLACE(CuHostNodeParams, fn, CUDA_HOST_NODE_PARAMS_v1, fn);
SAME_PLACE(CuHostNodeParams, user_data, CUDA_HOST_NODE_PARAMS_v1, userData);
SAME_SIZE(CuMemcpyNodeParams, CUDA_MEMCPY_NODE_PARAMS);
SAME_PLACE(CuMemcpyNodeParams, flags, CUDA_MEMCPY_NODE_PARAMS, flags);
SAME_PLACE(CuMemcpyNodeParams, context, CUDA_MEMCPY_NODE_PARAMS, copyCtx);
SAME_PLACE(CuMemcpyNodeParams, copy, CUDA_MEMCPY_NODE_PARAMS, copyParams);
SAME_SIZE(CuChildGraphNodeParams, CUDA_CHILD_GRAPH_NODE_PARAMS);
SAME_PLACE(CuChildGraphNodeParams, graph, CUDA_CHILD_GRAPH_NODE_PARAMS, graph);
SAME_PLACE(CuChildGraphNodeParams, ownership, CUDA_CHILD_GRAPH_NODE_PARAMS, ownership);
SAME_SIZE(CuGraphNodeParams, CUgraphNodeParams);
SAME_PLACE(CuGraphNodeParams, type, CUgraphNodeParams, type);
SAME_PLACE(CuGraphNodeParams, kernel, CUgraphNodeParams, kernel);
SAME_PLACE(CuGraphNodeParams, memcpy, CUgraphNodeParams, memcpy);
SAME_PLACE(CuGraphNodeParams, memset, CUgraphNodeParams, memset);
SAME_PLACE(CuGraphNodeParams, host, CUgraphNodeParams, host);
SAME_PLACE(CuGraphNodeParams, graph, CUgraphNodeParams, graph);
SAME_PLACE(CuGraphNodeParams, reserved2, CUgraphNodeParams, reserved2);
SAME_SIZE(CuInstantiateParams, CUDA_GRAPH_INSTANTIATE_PARAMS);
SAME_PLACE(CuInstantiateParams, flags, CUDA_GRAPH_INSTANTIATE_PARAMS, flags);
SAME_PLACE(CuInstantiateParams, upload_stream, CUDA_GRAPH_INSTANTIATE_PARAMS, hUploadStream);
SAME_PLACE(CuInstantiateParams, error_node, CUDA_GRAPH_INSTANTIATE_PARAMS, hErrNode_out);
SAME_PLACE(CuInstantiateParams, result, CUDA_GRAPH_INSTANTIATE_PARAMS, result_out);
SAME_SIZE(CuLaunchConfig, CUlaunchConfig);
SAME_PLACE(CuLaunchConfig, grid_x, CUlaunchConfig, gridDimX);
SAME_PLACE(CuLaunchConfig, block_x, CUlaunchConfig, blockDimX);
SAME_PLACE(CuLaunchConfig, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_PLACE(CuLaunchConfig, stream, CUlaunchConfig, hStream);
SAME_PLACE(CuLaunchConfig, attrs, CUlaunchConfig, attrs);
SAME_PLACE(CuLaunchConfig, attr_count, CUlaunchConfig, numAttrs);
SAME_SIZE(CuLaunchAttribute, CUlaunchAttribute);
SAME_PLACE(CuLaunchAttribute, id, CUlaunchAttribute, id);
SAME_PLACE(CuLaunchAttribute, value, CUlaunchAttribute, value);
SAME_SIZE(CuLaunchAttributeValue, CUlaunchAttributeValue);
SAME_SIZE(CuEdgeData, CUgraphEdgeData);
SAME_PLACE(CuEdgeData, from_port, CUgraphEdgeData, from_port);
SAME_PLACE(CuEdgeData, to_port, CUgraphEdgeData, to_port);
SAME_PLACE(CuEdgeData, type, CUgraphEdgeData, type);
SAME_SIZE(CuMemLocation, CUmemLocation);
SAME_PLACE(CuMemLocation, type, CUmemLocation, type);
SAME_PLACE(CuMemLocation, id, CUmemLocation, id);
SAME_SIZE(CuMemAllocationProp, CUmemAllocationProp);
SAME_PLACE(CuMemAllocationProp, type, CUmemAllocationProp, type);
SAME_PLACE(CuMemAllocationProp, requested_handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(CuMemAllocationProp, location, CUmemAllocationProp, location);
SAME_PLACE(CuMemAllocationProp, compression_type, CUmemAllocationProp, allocFlags);
SAME_PLACE(CuMemAllocationProp, usage, CUmemAllocationProp, allocFlags.usage);
SAME_SIZE(CuMemAccessDesc, CUmemAccessDesc);
SAME_PLACE(CuMemAccessDesc, location, CUmemAccessDesc, location);
SAME_PLACE(CuMemAccessDesc, flags, CUmemAccessDesc, flags);
SAME_SIZE(CuTensorMap, CUtensorMap);
SAME_SIZE(CuDevicePtr, CUdeviceptr);
SAME_SIZE(CuMemoryHandle, CUmemGenericAllocationHandle);
SAME_SIZE(CuDevice, CUdevice);

// The union's members lie at its start, in ours as in the driver's.
SAME_PLACE(CuUpdatable, dev_node, CUlaunchAttributeValue, deviceUpdatableKernelNode.devNode);
SAME_PLACE(CuLaunchAttributeValue, cluster_dim, CUlaunchAttributeValue, clusterDim);

// A function of ours and the one that cuGetProcAddress gives for its version take parameters of the
// same number, and each of the same size and kind: a number for a number, a pointer for a pointer.
template <typename Ours, typename Theirs>
constexpr bool kSameKind =
    sizeof(Ours) == sizeof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>&& std::is_floating_point_v<Ours> ==
        std::is_floating_point_v<Theirs>;
template <typename Ours, typename Theirs>
constexpr bool kSameCall = false;
template <typename... Ours, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) constexpr bool kSameCall<CuResult(Ours...), ::CUresult(Theirs...)> =
    (kSameKind<Ours, Theirs> && ... && true);

#define ANABRANCH_CUDA_FUNCTION(name, version, feature, params) \
  static_assert(kSameCall<CuResult params, std::remove_pointer_t<::PFN_##name##_v##version>>);
#include "device/cuda/driver_functions.inc"
#undef ANABRANCH_CUDA_FUNCTION

}  // namespace
}  // namespace anabranch::cuda
