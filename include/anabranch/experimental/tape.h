// SPDX-License-Identifier: Apache-2.0
// A tape: a region as a straight list of C calls, replayed without an interpreter of anything else.
// It is to a host region what a graph is to a device: the calls never change, their addresses do.
// Ownership: a Tape owns its views and intermediate tensors; functions, the tensor library and the
//            memory behind addresses belong to the caller and must outlive it.
// Threads:   one run at a time; different tapes are independent.
// Failure:   finish() answers all that is wrong at once; a failing call stops the run, which says
//            why in RegionCall::error and can be run again.
// Edges:     an empty tape runs and does nothing. Made for the Python package, and may change with
//            any version.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "anabranch/device.h"
#include "anabranch/export.h"
#include "anabranch/status.h"

namespace anabranch::tape {

// The C functions of a tensor library (by default none: a tape of plain kernels needs no tensors).
// Handles are opaque; every function answers 0 for success. The shapes are those of the stable C
// ABI that PyTorch publishes for ahead-of-time compiled code, resolved by name at run time. A
// function may be null as long as nothing on the tape needs it.
struct TensorLibrary {
  using Handle = void*;
  std::int32_t (*create_view)(void* data, std::int64_t dims, const std::int64_t* sizes,
                              const std::int64_t* strides, std::int64_t storage_offset,
                              std::int32_t dtype, std::int32_t device_type,
                              std::int32_t device_index, Handle* out, std::int32_t layout,
                              const std::uint8_t* opaque, std::int64_t opaque_bytes) = nullptr;
  std::int32_t (*delete_tensor)(Handle) = nullptr;
  std::int32_t (*new_handle)(Handle, Handle* out) = nullptr;  // another owner of the same tensor
  std::int32_t (*data_pointer)(Handle, void** out) = nullptr;
  std::int32_t (*strides)(Handle, std::int64_t** out) = nullptr;
  std::int32_t (*copy)(Handle to, Handle from, std::int32_t non_blocking) = nullptr;
  // Boxed call: takes the arguments in `stack`, whether it fails or not, and leaves the results
  // there. Optionals are words made with new.
  std::int32_t (*dispatch)(const char* op, const char* overload, std::uint64_t* stack,
                           std::uint64_t version) = nullptr;
  std::int32_t (*new_list)(std::size_t size, void** out) = nullptr;
  std::int32_t (*list_push)(void* list, std::uint64_t value) = nullptr;
  std::int32_t (*delete_list)(void* list) = nullptr;
  const char* (*last_error)() = nullptr;  // never needed; words for a failure if it is there
  std::uint64_t version = 0;
  std::int32_t device_type = 0;
  std::int32_t layout = 0;
};

// A place for a tensor handle while a tape runs.
enum class Register : std::uint32_t {};

// Bytes of the buffer of access `access` of the step, from `offset_bytes` on.
struct Address {
  std::uint32_t access = 0;
  std::uint64_t offset_bytes = 0;
};
struct DataOf {  // the data pointer of the tensor in a register, as it was when made
  Register from{};
};
struct HandleOf {  // the tensor itself, borrowed
  Register from{};
};
struct Integers {  // a pointer to these numbers, which the tape owns
  std::vector<std::int64_t> values;
};
// An argument of a plain call: one machine word, or a double.
using Argument = std::variant<std::int64_t, double, Address, DataOf, HandleOf, Integers>;

// An argument of a boxed call.
struct Value {
  enum class Kind : std::uint8_t { kNone, kInt, kDouble, kTensor, kList, kSome };
  Kind kind = Kind::kNone;
  std::int64_t integer = 0;  // also booleans, and what the library codes as integers
  double real = 0;
  Register tensor{};
  std::vector<Value> items;  // of a list; of kSome the one value
};

inline constexpr std::uint32_t kMaxWordArguments = 64;
// Beside doubles, words fit in registers only: 6. finish() refuses what goes beyond.
inline constexpr std::uint32_t kMaxDoubleArguments = 8;
inline constexpr std::uint32_t kMaxTapeAccesses = 1u << 20;

class Tape;

class ANABRANCH_API TapeBuilder {
 public:
  explicit TapeBuilder(TensorLibrary library = {});
  ~TapeBuilder();
  TapeBuilder(TapeBuilder&&) noexcept;

  // A tensor over memory of a buffer; made again only when the buffer's address has changed.
  Register view(Address at, std::int32_t dtype, std::span<const std::int64_t> sizes,
                std::span<const std::int64_t> strides);
  // A tensor over memory of another tensor, made in every run; unusable once `base` is released.
  Register view_of(Register base, std::uint64_t offset_bytes, std::int32_t dtype,
                   std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides);
  // Calls `function` with integer and pointer words in order and, beside them, the doubles in
  // order, as the C calling conventions of x86-64 and AArch64 pass them. `fallible`: it answers an
  // int32 that is 0 for success.
  void call(std::string name, void* function, std::vector<Argument> arguments, bool fallible);
  // A boxed call. `results` is how many results the operator has: all of them tensors.
  std::vector<Register> dispatch(std::string op, std::string overload, std::vector<Value> arguments,
                                 std::uint32_t results);
  // Fails the run unless the tensor in `reg` has these strides (a dim of one element may have any).
  // Code compiled for an operator's result relies on the layout the operator was said to answer.
  void expect(Register reg, std::span<const std::int64_t> sizes,
              std::span<const std::int64_t> strides);
  void copy(Register to, Register from);
  // Ends the tensor of `reg` here and not with the run; later calls may not name it.
  void release(Register reg);

  // The builder is empty afterwards and has the same library. kTapeInvalid, with a line an error.
  Result<std::unique_ptr<Tape>> finish();

 private:
  struct Data;
  std::unique_ptr<Data> data_;
};

class ANABRANCH_API Tape {
 public:
  ~Tape();
  std::int32_t run(const RegionCall& call);
  // run() as a RegionFunction; `tape` is a Tape*.
  static std::int32_t run_region(void* tape, const RegionCall* call);
  std::string dump() const;  // a line for each thing the builder was asked
  std::size_t call_count() const;

 private:
  friend class TapeBuilder;
  struct Data;
  explicit Tape(std::unique_ptr<Data> data);
  std::unique_ptr<Data> data_;
};

}  // namespace anabranch::tape
