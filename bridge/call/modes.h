// SPDX-License-Identifier: Apache-2.0
// torch's ambient state in this thread, asked of torch's C++ itself: settings, and who sees each
// operator. For module.cpp, which chooses Python's API first. Behind other work Python's functions
// for 17 of them take some 55 us, of which most is that they read texts, such as a device's name.
// Ownership: keeps addresses of torch's functions and of its context, which live for ever; and the
//            functions of Python that tell what C++ does not.
// Threads:   any that holds the interpreter's lock. Many states are the thread's own.
// Failure:   what Python raises; False where two are compared.
// Edges:     the package finds functions by their whole names, where it knows what they answer, and
//            compares what they say with what torch's Python says.
#pragma once

#include <Python.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ahead.h"
#include "given.h"
#include "standing.h"

namespace anabranch::call {

// Where the loader finds words that torch keeps for each thread.
struct OfThread {
  void* library = nullptr;
  char name[64] = {};
};
inline OfThread of_thread;

// Of this thread: they stay where they are as long as it lives.
inline const char* thread_words() {
  thread_local const char* found = nullptr;
  if (!found) found = static_cast<const char*>(dlsym(of_thread.library, of_thread.name));
  return found;
}

// What an answer tells a number by: itself; itself, where bit 32 says that there is one; the bit
// `at` behind it; how far two words there are apart; so many numbers in a row, 4 bits of each. Or
// there is no function, but words of the thread's, or a byte of torch's.
enum How : std::uint64_t { kAnswer, kOptional, kBehind, kBetween, kOrder, kOfThread, kThere };

// A function takes the first one, two or three of these, or none: what it does not take lies in
// registers that it does not read. `mask` leaves the number.
struct Mode {
  std::uint64_t function;  // std::uint64_t (*)(std::uint64_t, int, int)
  std::uint64_t first;
  std::uint64_t second;
  std::uint64_t third;
  std::uint64_t how;
  std::uint64_t at;
  std::uint64_t mask;
  std::uint64_t nobody;  // the number where nobody sees operators; kByValue: it does not say

  static constexpr std::uint64_t kByValue = ~std::uint64_t{0};
  static constexpr std::size_t kMostInOrder = 16;
  struct Order {
    std::int32_t of[kMostInOrder];
  };

  const void* address() const {
    return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(function));
  }
  template <typename Answer>
  Answer call() const {
    using Function = Answer (*)(std::uint64_t, int, int);
    return reinterpret_cast<Function>(static_cast<std::uintptr_t>(function))(
        first, static_cast<int>(second), static_cast<int>(third));
  }
  static std::uint64_t word(const char* from, std::uint64_t index) {
    std::uint64_t read = 0;
    if (from) std::memcpy(&read, from + index * sizeof read, sizeof read);
    return read;
  }
  std::uint64_t order() const {
    const Order answer = call<Order>();
    std::uint64_t told = 0;
    for (std::size_t i = 0; i < at; ++i) {
      told |= (static_cast<std::uint64_t>(answer.of[i]) & 15) << 4 * i;
    }
    return told;
  }
  std::uint64_t number() const {
    switch (how) {
      case kOptional: {
        const auto answer = call<std::uint64_t>();
        return answer >> 32 & 1 ? answer : 0;
      }
      case kBehind:
        return word(call<const char*>(), at / 64) >> at % 64;
      case kBetween: {
        const char* const from = call<const char*>();
        return word(from, at >> 8) - word(from, at & 0xFF);
      }
      case kOrder:
        return order();
      case kOfThread:
        return word(thread_words(), at);
      case kThere:
        return *static_cast<const unsigned char*>(address());
      default:
        return call<std::uint64_t>();
    }
  }
  std::uint64_t now() const { return number() & mask; }
};

// What Python is asked for: (function, arguments, (what it answers where nobody sees operators, who
// does else) or (), number of a mode of C++ or -1, what this one answers where that one's number is
// 0).
struct AskedMode {
  PyObject* function;
  PyObject* arguments;
  PyObject* nobody;  // null: it does not say
  Py_ssize_t unless;
  PyObject* without;

  void read(PyObject* row) {
    function = PyTuple_GetItem(row, 0), arguments = PyTuple_GetItem(row, 1);
    PyObject* const there = PyTuple_GetItem(row, 2);
    nobody = PyTuple_Size(there) > 0 ? PyTuple_GetItem(there, 0) : nullptr;
    unless = PyLong_AsSsize_t(PyTuple_GetItem(row, 3)), without = PyTuple_GetItem(row, 4);
  }
  // A new reference, or null with an error.
  PyObject* now(const std::uint64_t* words) const {
    return unless >= 0 && words[unless] == 0 ? Py_NewRef(without)
                                             : PyObject_Call(function, arguments, nullptr);
  }
};

// A switch in a variable of one of torch's modules of Python: told as the number of the value among
// those that it has had, which are kept. Variables that count their changes are looked up where
// they have one.
struct Switch {
  PyObject* variables;
  PyObject* name;
  PyObject* values;  // a list
  std::uint64_t changes;
  Py_ssize_t known;

  void read(PyObject* row) {
    variables = PyTuple_GetItem(row, 0), name = PyTuple_GetItem(row, 1);
    values = PyTuple_GetItem(row, 2);
    changes = 0, known = -1;
  }
  // Negative with an error.
  Py_ssize_t now() {
    if (!tells_changes) return looked_up();
    if (const std::uint64_t counted = changes_of(variables); counted != changes || known < 0) {
      known = looked_up();
      changes = counted;
    }
    return known;
  }

 private:
  Py_ssize_t looked_up() const {
    PyObject* found = PyDict_GetItemWithError(variables, name);
    if (!found && PyErr_Occurred()) return -1;
    if (!found) found = Py_None;
    for (Py_ssize_t i = 0; i < PyList_Size(values); ++i) {
      PyObject* const value = PyList_GetItem(values, i);
      if (found == value) return i;
      const int is_same = PyObject_RichCompareBool(found, value, Py_EQ);
      if (is_same != 0) return is_same > 0 ? i : -1;
    }
    return PyList_Append(values, found) == 0 ? PyList_Size(values) - 1 : -1;
  }
};

struct Modes {
  static constexpr std::size_t kMost = 96;
  static constexpr Py_ssize_t kMostAsked = kMost, kMostSwitches = 16;
  Mode of[kMost];
  std::size_t size = 0;  // of which these are compared
  std::size_t all = 0;
  AskedMode asked[kMostAsked];
  Py_ssize_t asked_count = 0;
  Switch switches[kMostSwitches];
  Py_ssize_t switch_count = 0;
  PyObject* rows = nullptr;  // owns what these borrow

  std::size_t word_count() const { return size + static_cast<std::size_t>(switch_count); }
  std::size_t bytes() const { return word_count() * sizeof(std::uint64_t); }
};
inline Modes modes;

// What all but Python's functions tell now.
struct ToldModes {
  std::uint64_t words[Modes::kMost + Modes::kMostSwitches];

  // False with an error.
  bool read() {
    if (!modes.rows) PyErr_SetString(PyExc_RuntimeError, "learn_modes() comes first");
    for (Py_ssize_t i = 0; i < modes.switch_count; ++i) fetch(modes.switches[i].variables);
    for (std::size_t i = 0; i < modes.size; ++i) words[i] = modes.of[i].now();
    for (Py_ssize_t i = 0; i < modes.switch_count; ++i) {
      const Py_ssize_t value = modes.switches[i].now();
      words[modes.size + static_cast<std::size_t>(i)] = static_cast<std::uint64_t>(value);
    }
    return PyErr_Occurred() == nullptr;
  }
};

// learn_modes(rows, count, asked, switches, library, name): functions and what each is called with,
// as a Mode has them, 64 bytes each, of which so many are compared, for where others change the
// first ones do, too; tuples of what Python is asked for, as an AskedMode has it, and of switches;
// and where words of a thread's are.
inline PyObject* learn_modes(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) return PyErr_Format(PyExc_TypeError, "learn_modes() takes six arguments");
  char *rows = nullptr, *name = nullptr;
  Py_ssize_t bytes = 0, length = 0;
  if (PyBytes_AsStringAndSize(args[0], &rows, &bytes) ||
      PyBytes_AsStringAndSize(args[5], &name, &length)) {
    return nullptr;
  }
  const std::size_t all = static_cast<std::size_t>(bytes) / sizeof(Mode);
  const std::size_t size = PyLong_AsSize_t(args[1]);
  const Py_ssize_t asked = PyTuple_Size(args[2]), switches = PyTuple_Size(args[3]);
  if (PyErr_Occurred()) return nullptr;
  if (all > Modes::kMost || size > all || asked > Modes::kMostAsked ||
      switches > Modes::kMostSwitches ||
      static_cast<std::size_t>(length) >= sizeof of_thread.name) {
    return PyErr_Format(PyExc_ValueError, "learn_modes() was given too much");
  }
  PyObject* const kept = PyTuple_Pack(2, args[2], args[3]);
  if (!kept) return nullptr;
  Py_XDECREF(modes.rows);
  modes.rows = kept;
  of_thread.library = PyLong_AsVoidPtr(args[4]);
  std::memcpy(of_thread.name, name, static_cast<std::size_t>(length) + 1);
  std::memcpy(modes.of, rows, all * sizeof(Mode));
  modes.size = size, modes.all = all, modes.asked_count = asked, modes.switch_count = switches;
  for (Py_ssize_t i = 0; i < asked; ++i) modes.asked[i].read(PyTuple_GetItem(args[2], i));
  for (Py_ssize_t i = 0; i < switches; ++i) modes.switches[i].read(PyTuple_GetItem(args[3], i));
  Py_RETURN_NONE;
}

// modes_told(): a tuple of what all tell now: words as bytes, then what Python answers.
inline PyObject* modes_told(PyObject*, PyObject*) {
  ToldModes now;
  if (!now.read()) return nullptr;
  PyObject* const told = PyTuple_New(1 + modes.asked_count);
  PyObject* const bytes = told ? PyBytes_FromStringAndSize(reinterpret_cast<const char*>(now.words),
                                                           static_cast<Py_ssize_t>(modes.bytes()))
                               : nullptr;
  bool is_made = bytes && PyTuple_SetItem(told, 0, bytes) == 0;
  for (Py_ssize_t i = 0; is_made && i < modes.asked_count; ++i) {
    PyObject* const answer = modes.asked[i].now(now.words);
    is_made = answer && PyTuple_SetItem(told, 1 + i, answer) == 0;
  }
  if (is_made) return told;
  Py_XDECREF(told);
  return nullptr;
}

// Whether they still tell that; with or without an error where not.
inline bool are_modes(PyObject* told) {
  ToldModes now;
  char* then = nullptr;
  Py_ssize_t bytes = 0;
  if (!now.read() || !PyTuple_Check(told) || PyTuple_Size(told) != 1 + modes.asked_count ||
      PyBytes_AsStringAndSize(PyTuple_GetItem(told, 0), &then, &bytes) ||
      static_cast<std::size_t>(bytes) != modes.bytes() ||
      std::memcmp(now.words, then, modes.bytes()) != 0) {
    return false;
  }
  for (Py_ssize_t i = 0; i < modes.asked_count; ++i) {
    PyObject* const answer = modes.asked[i].now(now.words);
    PyObject* const before = PyTuple_GetItem(told, 1 + i);
    const bool is_same =
        answer && (answer == before || PyObject_RichCompareBool(answer, before, Py_EQ) == 1);
    Py_XDECREF(answer);
    if (!is_same) return false;
  }
  return true;
}

// modes_are(told): the same.
inline PyObject* modes_are(PyObject*, PyObject* told) {
  if (!are_modes(told)) return no();
  Py_RETURN_TRUE;
}

// is_intercepted(): whether somebody sees each operator that this thread runs.
inline PyObject* is_intercepted(PyObject*, PyObject*) {
  ToldModes now;
  if (!now.read()) return nullptr;
  for (std::size_t i = 0; i < modes.all; ++i) {
    const Mode& one = modes.of[i];
    if (one.nobody == Mode::kByValue) continue;
    if ((i < modes.size ? now.words[i] : one.now()) != one.nobody) Py_RETURN_TRUE;
  }
  for (Py_ssize_t i = 0; i < modes.asked_count; ++i) {
    if (!modes.asked[i].nobody) continue;
    PyObject* const answer = modes.asked[i].now(now.words);
    if (!answer) return nullptr;
    const int is_nobody = PyObject_RichCompareBool(answer, modes.asked[i].nobody, Py_EQ);
    Py_DECREF(answer);
    if (is_nobody < 0) return nullptr;
    if (!is_nobody) Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

}  // namespace anabranch::call
