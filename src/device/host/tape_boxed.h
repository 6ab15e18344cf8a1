// SPDX-License-Identifier: Apache-2.0
// The arguments of a boxed call, in the form in which the tensor library takes them over: a word
// each; tensors, lists and optionals are made anew for every call and belong to the library as
// soon as it is called. Deleting a list does not delete what is in it, so all that was made is
// written down, and a call that is never reached gives back all of it.
#pragma once

#include <bit>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "anabranch/experimental/tape.h"

namespace anabranch::tape {

class BoxedArguments {
 public:
  using Handle = TensorLibrary::Handle;

  // Later encode() calls for these values allocate nothing of their own but the optionals.
  void reserve(std::span<const Value> values) {
    const std::size_t needed = count_made(values);
    if (needed > made_.capacity()) made_.reserve(needed);
  }

  // Writes a word for each value. Answers the code of the library's call that failed, and then
  // nothing is left behind.
  std::int32_t encode(const TensorLibrary& library, std::span<const Value> values,
                      std::span<const Handle> registers, std::uint64_t* words) {
    made_.clear();
    for (const Value& value : values) {
      if (const std::int32_t code = encode_one(library, value, registers, words++)) {
        give_back(library);
        return code;
      }
    }
    return 0;
  }

 private:
  using Kind = Value::Kind;
  struct Made {
    Kind kind;
    std::uint64_t word;
  };
  static constexpr std::int32_t kOutOfMemory = -1;

  static std::size_t count_made(std::span<const Value> values) {
    std::size_t count = 0;
    for (const Value& value : values) {
      count +=
          value.kind == Kind::kTensor || value.kind == Kind::kList || value.kind == Kind::kSome;
      count += count_made(value.items);
    }
    return count;
  }

  std::int32_t encode_one(const TensorLibrary& library, const Value& value,
                          std::span<const Handle> registers, std::uint64_t* word) {
    switch (value.kind) {
      case Kind::kNone:
        *word = 0;
        return 0;
      case Kind::kInt:
        *word = static_cast<std::uint64_t>(value.integer);
        return 0;
      case Kind::kDouble:
        *word = std::bit_cast<std::uint64_t>(value.real);
        return 0;
      case Kind::kTensor:
        return encode_tensor(library, registers[static_cast<std::uint32_t>(value.tensor)], word);
      case Kind::kList:
        return encode_list(library, value.items, registers, word);
      case Kind::kSome:
        return encode_some(library, value.items.front(), registers, word);
    }
    return 0;
  }

  std::int32_t encode_tensor(const TensorLibrary& library, Handle tensor, std::uint64_t* word) {
    Handle owner = nullptr;
    if (const std::int32_t code = library.new_handle(tensor, &owner)) return code;
    *word = keep(Kind::kTensor, owner);
    return 0;
  }

  std::int32_t encode_list(const TensorLibrary& library, std::span<const Value> items,
                           std::span<const Handle> registers, std::uint64_t* word) {
    void* list = nullptr;
    if (const std::int32_t code = library.new_list(items.size(), &list)) return code;
    *word = keep(Kind::kList, list);
    for (const Value& item : items) {
      std::uint64_t element = 0;
      std::int32_t code = encode_one(library, item, registers, &element);
      if (code == 0) code = library.list_push(list, element);
      if (code != 0) return code;
    }
    return 0;
  }

  // The library frees an optional with delete.
  std::int32_t encode_some(const TensorLibrary& library, const Value& inner,
                           std::span<const Handle> registers, std::uint64_t* word) {
    auto* some = new (std::nothrow) std::uint64_t(0);
    if (some == nullptr) return kOutOfMemory;
    *word = keep(Kind::kSome, some);
    return encode_one(library, inner, registers, some);
  }

  std::uint64_t keep(Kind kind, void* pointer) {
    const auto word = reinterpret_cast<std::uint64_t>(pointer);
    made_.push_back({kind, word});
    return word;
  }

  void give_back(const TensorLibrary& library) {
    for (const Made& made : made_) {
      auto* pointer = reinterpret_cast<void*>(made.word);
      if (made.kind == Kind::kTensor) library.delete_tensor(pointer);
      if (made.kind == Kind::kList) library.delete_list(pointer);
      if (made.kind == Kind::kSome) delete static_cast<std::uint64_t*>(pointer);
    }
    made_.clear();
  }

  std::vector<Made> made_;
};

}  // namespace anabranch::tape
