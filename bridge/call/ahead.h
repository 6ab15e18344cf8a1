// SPDX-License-Identifier: Apache-2.0
// Memory that is asked for before it is read. For module.cpp, which chooses Python's API first.
// Ownership: borrows.
// Threads:   any that holds the interpreter's lock.
// Failure:   none; what cannot be read is left.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace anabranch::call {

inline void* word_at(const void* thing, std::size_t offset) {
  void* word = nullptr;
  std::memcpy(&word, static_cast<const char*>(thing) + offset, sizeof word);
  return word;
}

// Asks for memory that is read soon. Where other work came between two calls, what they look at is
// in no near cache, and a processor waits for one piece of it after the other unless it is asked
// for many. It may be any address: one that cannot be read is left.
inline void fetch(const void* at, std::initializer_list<std::size_t> offsets = {0}) {
  for (const std::size_t offset : offsets) {
    __builtin_prefetch(
        reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(at) + offset));
  }
}

inline constexpr Py_ssize_t kAtOnce = 32;  // objects whose memory is asked for together

}  // namespace anabranch::call
