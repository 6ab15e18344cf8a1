// SPDX-License-Identifier: Apache-2.0
// What a finished tape holds and how it runs. All argument words of plain calls lie in one block
// and stay there between runs. A word that can change - an address in a buffer, a tensor's handle
// or data pointer - is a site of the thing it comes from, and is written when that thing changes.
// So a plain call costs the call alone, and a run at the addresses of the last one binds nothing.
// Ownership: tensors in registers; memory behind addresses is the caller's.
// Threads:   one run at a time.
// Failure:   run() answers a code and has written RegionCall::error; passing tensors are gone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "anabranch/experimental/tape.h"
#include "device/host/tape_boxed.h"
#include "device/host/tape_call.h"

namespace anabranch::tape {

struct Shape {
  std::int32_t dtype = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

// ---- the operations of a tape, in order

struct PlainCall {
  decltype(CallForm::call) form = nullptr;
  void* function = nullptr;
  std::uint32_t first_word = 0;
  std::uint32_t first_double = 0;
  bool fallible = false;
};
struct Dispatch {
  std::string op;
  std::string overload;
  std::vector<Value> arguments;
  std::vector<Register> results;
};
struct ViewOf {
  Register to{};
  Register base{};
  std::uint64_t offset_bytes = 0;
  Shape shape;
};
struct Expect {
  Register reg{};
  Shape shape;
};
struct Release {
  Register reg{};
};
struct Operation {
  std::uint32_t line = 0;  // of TapeData::lines
  std::variant<PlainCall, Release, std::unique_ptr<Dispatch>, std::unique_ptr<ViewOf>,
               std::unique_ptr<Expect>>
      what;
};

// ---- what changes, and where it is written

struct AddressSite {
  std::uint32_t word = 0;
  std::uint64_t offset_bytes = 0;
};
struct BufferView {
  std::uint32_t line = 0;
  Register to{};
  std::uint64_t offset_bytes = 0;
  Shape shape;
};
struct BufferSites {
  Word bound = ~Word{0};  // the address that sites and views are written for
  std::vector<AddressSite> addresses;
  std::vector<BufferView> views;
};
struct RegisterSites {
  std::vector<std::uint32_t> handles;
  std::vector<std::uint32_t> data;
};

class TapeData {
 public:
  using Handle = TensorLibrary::Handle;

  explicit TapeData(const TensorLibrary& tensors) : library(tensors) {}
  TapeData(const TapeData&) = delete;
  TapeData& operator=(const TapeData&) = delete;
  ~TapeData();

  std::int32_t run(const RegionCall& call);

  TensorLibrary library;
  std::vector<Operation> operations;
  std::vector<std::string> lines;  // for people: what was built, in order
  std::vector<Word> words;         // of all plain calls, padded to their forms
  std::vector<double> doubles;
  std::vector<std::vector<std::int64_t>> integers;  // that some of the words point to
  std::vector<BufferSites> buffers;                 // by access of the step
  std::vector<Handle> registers;
  std::vector<RegisterSites> register_sites;
  std::vector<Register> passing;  // whose tensors end with the run
  std::vector<Word> stack;        // of the largest boxed call
  BoxedArguments boxed;

 private:
  std::int32_t bind(const RegionCall& call);
  std::int32_t bind_buffer(BufferSites& buffer, Word address);
  std::int32_t replay();
  std::int32_t perform(const Operation& operation);
  std::int32_t perform(const Dispatch& dispatch);
  std::int32_t perform(const ViewOf& view);
  std::int32_t perform(const Expect& expect);
  std::int32_t make_view(Register to, const Shape& shape, Word address);
  std::int32_t write_sites(Register reg);
  void drop(Register reg);
  void tell(const RegionCall& call, std::int32_t code) const;

  Handle& tensor(Register reg) { return registers[static_cast<std::uint32_t>(reg)]; }

  std::uint32_t line_ = 0;  // what runs, for the error text
  std::string_view why_;    // where the library has no words for it
  char text_[128] = {};     // what why_ may point to
};

}  // namespace anabranch::tape
