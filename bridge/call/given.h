// SPDX-License-Identifier: Apache-2.0
// What functions of the module are given, and how they answer no. For module.cpp, which chooses
// Python's API first.
// Ownership: borrows.
// Threads:   any that holds the interpreter's lock.
// Failure:   what is no sequence, or no bytes, sets an error of Python's.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace anabranch::call {

// A tuple or a list. Its items are borrowed; of anything else size and items are errors.
class Items {
 public:
  explicit Items(PyObject* sequence)
      : sequence_(sequence), is_tuple_(PyTuple_Check(sequence) != 0) {}
  Py_ssize_t size() const { return is_tuple_ ? PyTuple_Size(sequence_) : PyList_Size(sequence_); }
  PyObject* operator[](Py_ssize_t i) const {
    return is_tuple_ ? PyTuple_GetItem(sequence_, i) : PyList_GetItem(sequence_, i);
  }

 private:
  PyObject* sequence_;
  bool is_tuple_;
};

// Bytes that are numbers of 8 bytes each, or none.
struct Words {
  char* bytes = nullptr;
  Py_ssize_t size = 0;

  bool read(PyObject* from) {
    Py_ssize_t count = 0;
    if (PyBytes_AsStringAndSize(from, &bytes, &count)) return false;
    size = count / static_cast<Py_ssize_t>(sizeof(std::uint64_t));
    return true;
  }
  std::uint64_t operator[](Py_ssize_t i) const {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + static_cast<std::size_t>(i) * sizeof word, sizeof word);
    return word;
  }
  PyObject* object(Py_ssize_t i) const { return reinterpret_cast<PyObject*>((*this)[i]); }
};

// Numbers of 8 bytes each, of its own.
class OwnWords {
 public:
  bool read(PyObject* from) {
    Words some;
    if (!some.read(from)) return false;
    for (Py_ssize_t i = 0; i < some.size; ++i) words_.push_back(some[i]);
    return true;
  }
  void add(std::uint64_t word) { words_.push_back(word); }
  Words view() const {
    return {reinterpret_cast<char*>(const_cast<std::uint64_t*>(words_.data())),
            static_cast<Py_ssize_t>(words_.size())};
  }
  std::uint64_t operator[](std::size_t i) const { return words_[i]; }
  std::size_t size() const { return words_.size(); }

 private:
  std::vector<std::uint64_t> words_;
};

// Some of what a call has found, by the numbers of its registers. Borrowed.
struct Picked {
  PyObject* const* registers;
  Words which;

  PyObject* operator[](Py_ssize_t i) const { return registers[which[i]]; }
};

// False instead of an Exception that is set; null for anything else that is.
inline PyObject* no() {
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
    PyErr_Clear();
  }
  Py_RETURN_FALSE;
}

}  // namespace anabranch::call
