// SPDX-License-Identifier: Apache-2.0
// Whether a dictionary has changed. For module.cpp, which chooses Python's API first.
// Ownership: borrows.
// Threads:   any that holds the interpreter's lock.
// Failure:   none.
// Edges:     Python 3.11 and 3.12 count each change of a dictionary in the object itself, so that
//            one that has not changed since it was looked through is not looked through again. The
//            package finds out whether that is so, before it says that it is.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "ahead.h"
#include "given.h"

namespace anabranch::call {

inline PyObject* kCellContents = nullptr;  // the name, for ever

inline bool names_are_made() {
  kCellContents = PyUnicode_InternFromString("cell_contents");
  return kCellContents != nullptr;
}

// Where a dictionary counts its changes, and where it keeps its table, as Python builds it. The
// latter is only asked for ahead.
inline constexpr std::size_t kChanges = 24, kTable = 32;
inline bool tells_changes = false;

inline std::uint64_t changes_of(PyObject* dict) {
  return reinterpret_cast<std::uint64_t>(word_at(dict, kChanges));
}

// version_of(dictionary): what counts its changes, if anything does.
inline PyObject* version_of(PyObject*, PyObject* dict) {
  return PyDict_CheckExact(dict) ? PyLong_FromUnsignedLongLong(changes_of(dict)) : no();
}

// learn_versions(is_so): whether that has another value behind each change of a dictionary, which
// no other one has.
inline PyObject* learn_versions(PyObject*, PyObject* is_so) {
  tells_changes = is_so == Py_True;
  Py_RETURN_NONE;
}

}  // namespace anabranch::call
