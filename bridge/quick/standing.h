// SPDX-License-Identifier: Apache-2.0
// Whether things still stand where they stood. For module.cpp, which chooses Python's API first.
// Ownership: borrows; callers keep alive what addresses name.
// Threads:   any that holds the interpreter's lock.
// Failure:   False where it cannot be told.
// Edges:     Python 3.11 and 3.12 count each change of a dictionary in the object itself, so that
//            one that has not changed since it was looked through is not looked through again. The
//            package finds out whether that is so, before it says that it is.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ahead.h"
#include "given.h"

namespace anabranch::quick {

inline PyObject* kCellContents = nullptr;  // the name, for ever

inline bool names_are_made() {
  kCellContents = PyUnicode_InternFromString("cell_contents");
  return kCellContents != nullptr;
}

inline bool stands(PyObject* holder, PyObject* key, PyObject* thing) {
  if (PyDict_CheckExact(holder)) return PyDict_GetItemWithError(holder, key) == thing;
  if (PyList_CheckExact(holder) && PyLong_CheckExact(key)) {
    return PyList_GetItem(holder, PyLong_AsSsize_t(key)) == thing;
  }
  const bool is_cell = key == reinterpret_cast<PyObject*>(Py_TYPE(holder));
  PyObject* const found =
      is_cell ? PyObject_GetAttr(holder, kCellContents) : PyObject_GetItem(holder, key);
  Py_XDECREF(found);
  return found == thing;
}

// stand(holders, keys, things): whether the very same thing is still at each key of its holder, or
// in it, where that is a cell and the key the class of cells.
inline PyObject* stand(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return no();
  const Items holders(args[0]), keys(args[1]), things(args[2]);
  const Py_ssize_t size = things.size();
  if (size < 0 || holders.size() != size || keys.size() != size) return no();
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const thing = things[i];
    if (!thing || !stands(holders[i], keys[i], thing)) return no();
  }
  Py_RETURN_TRUE;
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

// What stands in a dictionary or a list, in words of the rows from `first` on: values in their
// order; the same, each behind its key; things behind the keys at which they are looked up; or, in
// a list, behind their numbers.
struct Standing {
  enum Kind : std::uint8_t { kValues, kItems, kLookups, kListed };

  PyObject* holder;
  std::uint64_t version;  // with which it was so last; 0: never
  std::uint64_t first;
  std::uint64_t count_and_kind;  // 8 times the one, 2 times the other, and whether it has a version

  bool is_known() const {
    return tells_changes && (count_and_kind & 1) != 0 && version == changes_of(holder);
  }
  bool is_so(const Words& rows) const {
    const auto kind = static_cast<Kind>(count_and_kind >> 1 & 3);
    const auto count = static_cast<Py_ssize_t>(count_and_kind >> 3);
    const auto begin = static_cast<Py_ssize_t>(first);
    if (rows.size - begin < count * (kind == kValues ? 1 : 2)) return false;
    if (kind == kListed) return are_in_list(rows, begin, count);
    return kind == kLookups ? are_at(rows, begin, count) : are_all(rows, begin, count, kind);
  }

 private:
  bool are_in_list(const Words& rows, Py_ssize_t i, Py_ssize_t count) const {
    for (; count > 0; --count, i += 2) {
      if (PyList_GetItem(holder, static_cast<Py_ssize_t>(rows[i])) != rows.object(i + 1)) {
        return false;
      }
    }
    return true;
  }
  bool are_at(const Words& rows, Py_ssize_t i, Py_ssize_t count) const {
    for (; count > 0; --count, i += 2) {
      if (PyDict_GetItemWithError(holder, rows.object(i)) != rows.object(i + 1)) return false;
    }
    return true;
  }
  bool are_all(const Words& rows, Py_ssize_t i, Py_ssize_t count, Kind kind) const {
    if (PyDict_Size(holder) != count) return false;
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; count > 0; --count) {
      if (!PyDict_Next(holder, &at, &key, &value)) return false;
      if (kind == kItems && rows.object(i++) != key) return false;
      if (rows.object(i++) != value) return false;
    }
    return true;
  }
};

// Whether some are so, of which those that are not known to be are looked through.
inline bool are_so(Standing* some, std::size_t size, const Words& rows) {
  for (std::size_t i = 0; i < size; ++i) fetch(some[i].holder, {kChanges});
  std::size_t changed[kAtOnce], count = 0;
  for (std::size_t i = 0; i < size; ++i) {
    if (some[i].is_known()) continue;
    changed[count++] = i;
    fetch(word_at(some[i].holder, kTable), {0, 64, 128});
  }
  for (std::size_t at = 0; at < count; ++at) {
    Standing& one = some[changed[at]];
    const std::uint64_t version = changes_of(one.holder);  // a key may run Python and change it
    if (!one.is_so(rows)) return false;
    one.version = version;
  }
  return true;
}

// all_stand(standing, rows, owners): whether each holder has what it had. `standing` is a
// bytearray of Standing, whose versions are replaced. The owners keep alive what both name.
inline PyObject* all_stand(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Words rows;
  if (count != 3 || !PyByteArray_Check(args[0]) || !rows.read(args[1])) return no();
  auto* const all = reinterpret_cast<Standing*>(PyByteArray_AsString(args[0]));
  const std::size_t size = static_cast<std::size_t>(PyByteArray_Size(args[0])) / sizeof(Standing);
  for (std::size_t begin = 0; begin < size; begin += kAtOnce) {
    const std::size_t some = std::min<std::size_t>(size - begin, kAtOnce);
    if (!are_so(all + begin, some, rows)) return no();
  }
  Py_RETURN_TRUE;
}

}  // namespace anabranch::quick
