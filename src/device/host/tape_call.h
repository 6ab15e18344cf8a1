// SPDX-License-Identifier: Apache-2.0
// Calling a C function whose signature is known only at run time.
//
// The C calling conventions of x86-64 (System V) and AArch64 (AAPCS64) pass integers and pointers
// in one set of registers and then on the stack, an 8-byte slot each, and doubles in another set,
// whatever their order among each other. So a function can be called through a type with its words
// in order and its doubles in order, as long as nothing but words goes to the stack. The caller
// takes the arguments off again: more of them than the function reads do no harm. A form is such a
// type; a call takes the smallest form with room for its words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "anabranch/experimental/tape.h"

namespace anabranch::tape {

// Clang's sanitizer for function types objects to the very thing done here.
#if defined(__clang__)
#define ANABRANCH_CALLS_ANY_TYPE __attribute__((no_sanitize("function")))
#else
#define ANABRANCH_CALLS_ANY_TYPE
#endif

using Word = std::uint64_t;

// Words that go into registers on both machines (x86-64 has 6, AArch64 8).
inline constexpr std::uint32_t kRegisterWords = 6;

struct CallForm {
  std::uint32_t words = 0;    // read from the block of arguments: it must have as many
  std::uint32_t doubles = 0;  // as well
  // The function's int32 result; meaningless where it answers nothing.
  std::int32_t (*call)(void* function, const Word* words, const double* doubles) = nullptr;
};

template <std::size_t>
using WordAt = Word;
template <std::size_t>
using DoubleAt = double;

template <std::size_t... W, std::size_t... D>
constexpr CallForm make_call_form(std::index_sequence<W...>, std::index_sequence<D...>) {
  struct Caller {
    ANABRANCH_CALLS_ANY_TYPE static std::int32_t call(void* function,
                                                      [[maybe_unused]] const Word* words,
                                                      [[maybe_unused]] const double* doubles) {
      using Function = std::int32_t (*)(WordAt<W>..., DoubleAt<D>...);
      return reinterpret_cast<Function>(function)(words[W]..., doubles[D]...);
    }
  };
  return {sizeof...(W), sizeof...(D), &Caller::call};
}

template <std::size_t words, std::size_t doubles = 0>
inline constexpr CallForm kCallForm = make_call_form(std::make_index_sequence<words>(),
                                                     std::make_index_sequence<doubles>());

// By the stack they take; those with doubles keep every word in a register.
inline constexpr std::array kCallForms = {
    kCallForm<3>,
    kCallForm<kRegisterWords>,
    kCallForm<kRegisterWords, 2>,
    kCallForm<kRegisterWords, kMaxDoubleArguments>,
    kCallForm<8>,
    kCallForm<12>,
    kCallForm<16>,
    kCallForm<24>,
    kCallForm<32>,
    kCallForm<48>,
    kCallForm<kMaxWordArguments>,
};

// nullptr where the calling conventions cannot carry so many.
inline const CallForm* find_call_form(std::size_t words, std::size_t doubles) {
  for (const CallForm& form : kCallForms) {
    if (words <= form.words && doubles <= form.doubles) return &form;
  }
  return nullptr;
}

}  // namespace anabranch::tape
