// SPDX-License-Identifier: Apache-2.0
// In which of torch's modes a thread is, asked of torch's C++ itself. For module.cpp, which chooses
// Python's API first. Behind other work Python's functions for it take some 55 us, of which most is
// that they read texts, such as a device's name.
// Ownership: keeps addresses of torch's functions and of its context, which live for ever.
// Threads:   any that holds the interpreter's lock. Some modes are the thread's own.
// Failure:   None, or False, before the functions are known.
// Edges:     the package finds functions by their whole names, where it knows what they answer, and
//            compares what they say with what torch's Python says.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace anabranch::quick {

// A function takes the first one, two or three of these, or none: what it does not take lies in
// registers that it does not read. It answers a number of one byte or two: `mask` leaves these.
struct Mode {
  std::uint64_t function;  // std::uint16_t (*)(std::uint64_t, int, int)
  std::uint64_t first;
  std::uint64_t second;
  std::uint64_t third;
  std::uint64_t mask;

  std::uint16_t now() const {
    using Function = std::uint16_t (*)(std::uint64_t, int, int);
    const auto call = reinterpret_cast<Function>(static_cast<std::uintptr_t>(function));
    return static_cast<std::uint16_t>(
        call(first, static_cast<int>(second), static_cast<int>(third)) & mask);
  }
};

struct Modes {
  static constexpr std::size_t kMost = 32;
  Mode of[kMost];
  std::size_t size = 0;
};
inline Modes modes;

// learn_modes(rows): functions and what each is called with, as a Mode has them, 40 bytes each.
inline PyObject* learn_modes(PyObject*, PyObject* rows) {
  char* at = nullptr;
  Py_ssize_t bytes = 0;
  if (PyBytes_AsStringAndSize(rows, &at, &bytes)) return nullptr;
  const std::size_t size = static_cast<std::size_t>(bytes) / sizeof(Mode);
  modes.size = size <= Modes::kMost ? size : 0;
  std::memcpy(modes.of, at, modes.size * sizeof(Mode));
  Py_RETURN_NONE;
}

// modes_told(): what they answer now, two bytes each.
inline PyObject* modes_told(PyObject*, PyObject*) {
  if (modes.size == 0) Py_RETURN_NONE;
  std::uint16_t told[Modes::kMost];
  for (std::size_t i = 0; i < modes.size; ++i) told[i] = modes.of[i].now();
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(told),
                                   static_cast<Py_ssize_t>(modes.size * sizeof told[0]));
}

// modes_are(told): whether they still answer that.
inline PyObject* modes_are(PyObject*, PyObject* told) {
  char* at = nullptr;
  Py_ssize_t bytes = 0;
  if (PyBytes_AsStringAndSize(told, &at, &bytes)) {
    PyErr_Clear();
    Py_RETURN_FALSE;
  }
  std::uint16_t then = 0;
  if (modes.size == 0 || static_cast<std::size_t>(bytes) != modes.size * sizeof then) {
    Py_RETURN_FALSE;
  }
  for (std::size_t i = 0; i < modes.size; ++i) {
    std::memcpy(&then, at + i * sizeof then, sizeof then);
    if (modes.of[i].now() != then) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

}  // namespace anabranch::quick
