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

#include <cstddef>
#include <cstdint>

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
enum class At : std::uint8_t { kItself, kItem, kCell, kVars, kAttribute, kEnd };

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
    Py_INCREF(of);
    return of;
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
