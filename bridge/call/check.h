// SPDX-License-Identifier: Apache-2.0
// One thing that a call looks at before it is launched, as data: a holder, where in it, a kind, and
// what is expected. For module.cpp, which chooses Python's API first.
// Ownership: a Check owns what it names. What is found is a new reference.
// Threads:   any that holds the interpreter's lock.
// Failure:   no, with or without an error of Python's.
// Edges:     kinds and places have the numbers of python/anabranch/_record/checks.py, which says
//            what each of them is, and evaluates them where this module is missing.
#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "ahead.h"
#include "given.h"
#include "standing.h"

namespace anabranch::call {

enum class Kind : std::uint8_t {
  kIs,
  kEquals,
  kType,
  kLength,
  kKeys,
  kValues,
  kLike,
  kAny,
  kFloat,
  kAnswers,
  kAlike,
  kGradients,
  kModes,
  kAbsent,
  kEnd
};
// kWord is no number of these: an attribute of a function, whose place in the object is known.
enum class At : std::uint8_t { kItself, kItem, kCell, kVars, kAttribute, kEnd, kWord };

// What functions of Python's are made of, by names, and at which byte of each the pointer lies.
// Each other way to these is told to whoever audits Python, as filelock does: it takes 0.3 us.
struct Functions {
  static constexpr std::size_t kParts = 3;
  PyTypeObject* type = nullptr;
  std::array<PyObject*, kParts> names{};
  std::array<std::size_t, kParts> offsets{};

  std::size_t offset_of(PyObject* thing, PyObject* name) const {
    if (Py_TYPE(thing) != type) return 0;
    for (std::size_t i = 0; i < kParts; ++i) {
      if (are_the_same(names[i], name)) return offsets[i];
    }
    return 0;
  }

 private:
  static bool are_the_same(PyObject* one, PyObject* other) {
    return one == other || (PyUnicode_Check(other) && PyUnicode_Compare(one, other) == 0);
  }
};
inline Functions functions;

struct Check {
  Kind kind;
  At at;
  std::int32_t from;   // register of the holder, if it is one
  std::int32_t to;     // register for what is found, or number of a float
  Py_ssize_t index;    // the key, or for kLength what is expected, as a number
  PyObject* holder;    // null: see `from`
  PyObject* key;       // or what a function is called with, or bytes that are registers
  PyObject* expected;  // may be null, where kind or index says all
  PyObject* name;      // for people

  // What stands there; null where nothing does.
  PyObject* find(PyObject* const* registers) const {
    PyObject* const of = holder ? holder : registers[from];
    if (!of) return nullptr;
    if (at == At::kItem) return item(of);
    if (at == At::kCell) return PyObject_GetAttr(of, kCellContents);
    if (at == At::kVars) return PyObject_GenericGetDict(of, nullptr);
    if (at == At::kAttribute) return PyObject_GenericGetAttr(of, key);
    if (at == At::kWord) {
      auto* const found = static_cast<PyObject*>(word_at(of, static_cast<std::size_t>(index)));
      return new_reference(found ? found : Py_None);
    }
    return new_reference(of);
  }

  // Whether what stands in a dictionary alone decides, so that it is so as long as that does not
  // change.
  bool is_of_content() const {
    if (at == At::kItself) {
      return kind == Kind::kLength || kind == Kind::kKeys || kind == Kind::kValues;
    }
    return at == At::kItem && (kind == Kind::kIs || kind == Kind::kEquals || kind == Kind::kLike ||
                               kind == Kind::kAbsent || (kind == Kind::kType && to < 0));
  }

 private:
  static PyObject* new_reference(PyObject* to) {
    Py_INCREF(to);
    return to;
  }

  PyObject* item(PyObject* of) const {
    PyObject* found = nullptr;
    if (PyDict_CheckExact(of)) {
      found = PyDict_GetItemWithError(of, key);
    } else if (PyList_CheckExact(of) && index >= 0) {
      found = PyList_GetItem(of, index);
    } else if (PyTuple_Check(of) && index >= 0) {
      found = PyTuple_GetItem(of, index);
    } else {
      return PyObject_GetItem(of, key);
    }
    Py_XINCREF(found);
    return found;
  }
};

// At which byte of each of some functions there is what it has by this name, null for None; 0 where
// that is at no one place.
inline std::size_t where_kept(const Items& functions_of, PyObject* name) {
  constexpr std::size_t kFirst = 2, kEnd = 16;  // in words
  std::size_t found = 0;
  for (std::size_t word = kFirst; word < kEnd; ++word) {
    bool is_here = true;
    for (Py_ssize_t i = 0; i < functions_of.size() && is_here; ++i) {
      PyObject* const there = PyObject_GetAttr(functions_of[i], name);
      Py_XDECREF(there);
      if (!there) return 0;
      is_here =
          word_at(functions_of[i], word * sizeof(void*)) == (there == Py_None ? nullptr : there);
    }
    if (is_here && found != 0) return 0;
    if (is_here) found = word * sizeof(void*);
  }
  return found;
}

// Whether two plain values are the same, of one type each: 1 is not True, and (1,) not (1.0,).
inline bool are_equal(PyObject* one, PyObject* other) {
  if (one == other) return true;
  if (Py_TYPE(one) != Py_TYPE(other)) return false;
  if (!PyTuple_Check(one)) return PyObject_RichCompareBool(one, other, Py_EQ) == 1;
  const Py_ssize_t size = PyTuple_Size(one);
  if (PyTuple_Size(other) != size) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!are_equal(PyTuple_GetItem(one, i), PyTuple_GetItem(other, i))) return false;
  }
  return true;
}

// Whether a dictionary has these keys, in this order.
inline bool has_keys(PyObject* dict, PyObject* keys) {
  if (!PyDict_Check(dict) || PyDict_Size(dict) != PyTuple_Size(keys)) return false;
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; PyDict_Next(dict, &at, &key, &value); ++i) {
    PyObject* const expected = PyTuple_GetItem(keys, i);
    // No Python runs meanwhile, which might change the dictionary.
    const bool may_be_equal = PyUnicode_CheckExact(key) || PyLong_CheckExact(key);
    if (key != expected && !(may_be_equal && expected && are_equal(key, expected))) return false;
  }
  return true;
}

// Whether a dictionary has these very values, in this order.
inline bool has_values(PyObject* dict, PyObject* values) {
  if (!PyDict_Check(dict) || PyDict_Size(dict) != PyTuple_Size(values)) return false;
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; PyDict_Next(dict, &at, &key, &value); ++i) {
    if (value != PyTuple_GetItem(values, i)) return false;
  }
  return true;
}

// Whether a function answers what is equal to that.
inline bool does_answer(PyObject* function, PyObject* arguments, PyObject* expected) {
  PyObject* const found = PyObject_Call(function, arguments, nullptr);
  const bool is_same =
      found && (found == expected || PyObject_RichCompareBool(found, expected, Py_EQ) == 1);
  Py_XDECREF(found);
  return is_same;
}

}  // namespace anabranch::call
