// SPDX-License-Identifier: Apache-2.0
// Where an object of Python's keeps its tensor, and many tensors at once. For module.cpp, which
// chooses Python's API first.
// Ownership: keeps the types of torch's tensors and one function of the package for ever; else
//            borrows.
// Threads:   any that holds the interpreter's lock.
// Failure:   what cannot be told is null.
// Edges:     torch is not linked. Its functions come as pointers. Where the tensor is, is found out
//            from tensors that say it; nothing is told before.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "ahead.h"
#include "given.h"

namespace anabranch::call {

// aoti_torch_get_data_ptr of torch's stable C interface. A handle is the address of a tensor of
// C++, and that is one pointer to what all its copies share.
using GetDataPtr = std::int32_t (*)(void* handle, void** address);
struct Tensors {
  PyTypeObject* type = nullptr;
  PyTypeObject* plain = nullptr;   // the class of tensors
  PyTypeObject* common = nullptr;  // the class of parameters
  GetDataPtr get_data_ptr = nullptr;
  std::size_t offset = 0;      // of that pointer in an object of Python's; 0 while it is not known
  PyObject* others = nullptr;  // the same as addresses(), of what is told otherwise
};
inline Tensors tensors;

inline constexpr std::size_t kFirstWord = 2, kEndWord = 8;  // where it is looked for

// Of one of torch's own two classes, as nearly all are.
inline bool is_ordinary(PyObject* thing) {
  return thing && (Py_TYPE(thing) == tensors.plain || Py_TYPE(thing) == tensors.common);
}

inline bool is_tensor(PyObject* thing) {
  return is_ordinary(thing) || (thing && PyType_IsSubtype(Py_TYPE(thing), tensors.type));
}

// Where what the copies of a tensor share has pointers, as torch builds it. Only what is asked for
// ahead follows them.
inline constexpr std::size_t kStorage = 16, kAutograd = 24, kVersion = 40;

// Some tensors of many, and what the copies of each share; null where it is none.
struct Batch {
  PyObject* things[kAtOnce];
  void* shared[kAtOnce];
  Py_ssize_t size = 0;

  // Those from `begin` on, of `end`; by the numbers `which`, where there are any. Asks for what
  // they share.
  template <typename All>
  void read(const All& all, Py_ssize_t begin, Py_ssize_t end, const Words* which) {
    size = std::min(end - begin, kAtOnce);
    for (Py_ssize_t i = 0; i < size; ++i) {
      const Py_ssize_t at = begin + i;
      fetch(things[i] = all[which ? static_cast<Py_ssize_t>((*which)[at]) : at]);
    }
    for (Py_ssize_t i = 0; i < size; ++i) {
      const bool is_known = tensors.offset != 0 && is_tensor(things[i]);
      shared[i] = is_known ? word_at(things[i], tensors.offset) : nullptr;
      if (shared[i]) fetch(shared[i], {0, 64, 128});
    }
  }
  void fetch_behind(std::size_t pointer, std::initializer_list<std::size_t> offsets) const {
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (shared[i]) fetch(word_at(shared[i], pointer), offsets);
    }
  }
};

// At which byte of each sample its pointer lies; 0 where that is not told. Null for what is set.
inline std::size_t where_shared(const Items& sample, const Items& shared_by) {
  for (std::size_t word = kFirstWord; word < kEndWord; ++word) {
    bool is_here = true;
    for (Py_ssize_t i = 0; i < sample.size() && is_here; ++i) {
      void* const shared = PyLong_AsVoidPtr(shared_by[i]);
      is_here = shared && word_at(sample[i], word * sizeof(void*)) == shared;
    }
    if (is_here) return word * sizeof(void*);
  }
  return 0;
}

}  // namespace anabranch::call
