// SPDX-License-Identifier: Apache-2.0
// Dictionaries of which Python tells each change: which have changed since when. For module.cpp,
// which chooses Python's API first.
// Ownership: none; a dictionary is an address here, which another one may have by now. Lives for
//            ever.
// Threads:   any that holds the interpreter's lock.
// Failure:   where there is no watcher, or none is free, nothing is watched.
// Edges:     Python 3.12 and newer have eight watchers a process, in no limited API, so they are
//            found by name. What is watched is watched as long as it lives: a change costs its
//            writer some 20 ns. The package finds out whether all changes are told, before it says
//            so.
//            Switches, items that are True or False, are told apart from all other changes: where
//            nothing but these has changed, and each is what it was, content() is what it was. That
//            it is so by chance has a chance of one in 2^64.
// Source:    PyDict_AddWatcher in Python's documentation of its C API; Zobrist's hashing of
//            positions for the switches.
#pragma once

#include <Python.h>
#include <dlfcn.h>

#include <array>
#include <cstdint>

#include "given.h"

namespace anabranch::call {

class Watched {
 public:
  // What all that is watched holds, as far as it has changed since some time.
  struct Content {
    std::uint64_t others = 0;    // changes but those of switches; 0 is no content's
    std::uint64_t switches = 0;  // which are not as they were then
    bool operator==(const Content&) const = default;
  };

  static Watched& all() {
    static Watched* const made = new Watched();
    return *made;
  }

  // Whether there is a watcher, which is trusted from now on.
  bool begin() {
    const auto add = named<int(Callback*)>("PyDict_AddWatcher");
    watch_ = named<int(int, PyObject*)>("PyDict_Watch");
    if (id_ < 0 && add && watch_) id_ = add(told);
    PyErr_Clear();  // all are taken
    return is_on_ = id_ >= 0;
  }
  bool is_on() const { return is_on_; }
  // It is trusted no more. It goes on to count.
  void end() { is_on_ = false; }

  // Goes up with what has changed. Never 0.
  std::uint64_t changes() {
    is_read_ = true;
    return changes_;
  }
  Content content() const { return content_; }
  // The dictionary of one change; of the last kKept alone.
  PyObject* changed(std::uint64_t number) const { return last_[number % kKept]; }
  static constexpr std::uint64_t kKept = 1024;

  // Whether the dictionary is watched from now on.
  bool watches(PyObject* dict) const {
    if (!is_on_) return false;
    if (watch_(id_, dict) == 0) return true;
    PyErr_Clear();
    return false;
  }

 private:
  using Callback = int(int event, PyObject* dict, PyObject* key, PyObject* value);
  template <typename Function>
  static Function* named(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }

  // Of a dictionary before the change. No code of Python's runs for a text that is a key.
  static bool is_switched(int event, PyObject* dict, PyObject* key, PyObject* value) {
    constexpr int kModified = 1;  // PyDict_EVENT_MODIFIED
    if (event != kModified || (value != Py_True && value != Py_False)) return false;
    if (!PyUnicode_CheckExact(key)) return false;
    return PyDict_GetItem(dict, key) == (value == Py_True ? Py_False : Py_True);
  }

  static std::uint64_t name_of(PyObject* dict, PyObject* key) {
    // Well mixed (splitmix64).
    std::uint64_t x = reinterpret_cast<std::uintptr_t>(dict) * 0x9e3779b97f4a7c15 +
                      static_cast<std::uint64_t>(PyObject_Hash(key));
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  // Several changes of one in a row, between which nobody has looked, are one.
  static int told(int event, PyObject* dict, PyObject* key, PyObject* value) {
    Watched& self = all();
    if (is_switched(event, dict, key, value)) {
      self.content_.switches ^= name_of(dict, key);
    } else {
      ++self.content_.others;
    }
    if (self.is_read_ || self.changed(self.changes_) != dict) {
      self.last_[++self.changes_ % kKept] = dict;
      self.is_read_ = false;
    }
    return 0;
  }

  int (*watch_)(int, PyObject*) = nullptr;
  int id_ = -1;
  bool is_on_ = false, is_read_ = true;
  std::uint64_t changes_ = 1;
  Content content_{1, 0};
  std::array<PyObject*, kKept> last_{};
};

// learn_watcher(is_so): whether plans rely on being told each change of a dictionary from now on.
inline PyObject* learn_watcher(PyObject*, PyObject* is_so) {
  if (is_so == Py_True) return PyBool_FromLong(Watched::all().begin());
  Watched::all().end();
  Py_RETURN_FALSE;
}

// watch(dictionary): whether each change of it counts from now on.
inline PyObject* watch(PyObject*, PyObject* dict) {
  return PyDict_CheckExact(dict) ? PyBool_FromLong(Watched::all().watches(dict)) : no();
}

// changes(): how many there were of what is watched, and some.
inline PyObject* changes(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(Watched::all().changes());
}

}  // namespace anabranch::call
