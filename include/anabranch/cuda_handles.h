// SPDX-License-Identifier: Apache-2.0
// Streams and graphs of CUDA as types of their own: neither is taken for the other, nor for any
// other pointer. No header of CUDA is needed: the driver's and the runtime's handles are pointers.
// Ownership: none; a handle names what its owner keeps.
// Threads:   values.
// Failure:   none.
// Edges:     a null stream is the legacy default stream. A null graph is none, and is refused where
//            one is needed.
#pragma once

#include <cstddef>

namespace anabranch {

// Tag: what it is a handle of.
template <typename Tag>
class CudaHandle {
 public:
  constexpr CudaHandle() = default;
  constexpr CudaHandle(std::nullptr_t) {}
  // Of the driver's handle, or the runtime's, which is the same.
  explicit constexpr CudaHandle(void* handle) : handle_(handle) {}
  constexpr void* get() const { return handle_; }
  explicit constexpr operator bool() const { return handle_ != nullptr; }
  friend constexpr bool operator==(CudaHandle, CudaHandle) = default;

 private:
  void* handle_ = nullptr;
};

using CudaStream = CudaHandle<struct CudaStreamTag>;  // a CUstream, which is a cudaStream_t
using CudaGraph = CudaHandle<struct CudaGraphTag>;    // a CUgraph, which is a cudaGraph_t

}  // namespace anabranch
