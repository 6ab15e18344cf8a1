// SPDX-License-Identifier: Apache-2.0
// Dictionaries of which Python tells each change, so that one number says whether any has changed.
// For module.cpp, which chooses Python's API first.
// Ownership: borrows the dictionaries, and forgets each when it is gone. Lives for ever.
// Threads:   any that holds the interpreter's lock.
// Failure:   where there is no watcher, or none is free, nothing is watched.
// Edges:     Python 3.12 and newer have eight watchers a process, in no limited API, so they are
//            found by name. A dictionary that changes again and again is watched no more, and
//            whoever relied on that is told by one more change. The package finds out whether all
//            changes are told, before it says so.
// Source:    PyDict_AddWatcher in Python's documentation of its C API.
#pragma once

#include <Python.h>
#include <dlfcn.h>

#include <cstdint>
#include <unordered_map>

#include "given.h"

namespace anabranch::call {

class Watched {
 public:
  static Watched& all() {
    static Watched* const made = new Watched();
    return *made;
  }

  // Whether there is a watcher, which is trusted from now on.
  bool begin() {
    const auto add = named<int(Callback*)>("PyDict_AddWatcher");
    watch_ = named<int(int, PyObject*)>("PyDict_Watch");
    unwatch_ = named<int(int, PyObject*)>("PyDict_Unwatch");
    if (id_ < 0 && add && watch_ && unwatch_) id_ = add(told);
    PyErr_Clear();  // all are taken
    return is_on_ = id_ >= 0;
  }
  bool is_on() const { return is_on_; }
  // It is trusted no more. It goes on to count.
  void end() { is_on_ = false; }

  // Goes up with each change of a dictionary that is watched. Never 0.
  std::uint64_t changes() const { return changes_; }

  // Whether the dictionary is watched from now on. `is_often`: what is watched has changed so often
  // of late that what it was is to be watched no more.
  bool watches(PyObject* dict, bool is_often) {
    if (!is_on_) return false;
    const auto [known, is_new] = known_.try_emplace(dict, 0);
    if (is_new && watch_(id_, dict) != 0) {
      PyErr_Clear();
      known_.erase(known);
      return false;
    }
    if (!is_often && known->second != kGivenUp) known->second = 0;
    if (known->second < kMostChanges) return true;
    if (known->second != kGivenUp) {
      known->second = kGivenUp;
      if (unwatch_(id_, dict) != 0) PyErr_Clear();
      ++changes_;
    }
    return false;
  }

 private:
  using Callback = int(int event, PyObject* dict, PyObject* key, PyObject* value);
  static constexpr std::uint32_t kMostChanges = 4, kGivenUp = ~std::uint32_t{0};
  static constexpr int kGone = 5;  // PyDict_EVENT_DEALLOCATED

  template <typename Function>
  static Function* named(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }

  static int told(int event, PyObject* dict, PyObject*, PyObject*) {
    Watched& self = all();
    const auto known = self.known_.find(dict);
    if (known == self.known_.end()) return 0;
    ++self.changes_;
    if (event == kGone) {
      self.known_.erase(known);
    } else if (known->second < kMostChanges) {
      ++known->second;
    }
    return 0;
  }

  int (*watch_)(int, PyObject*) = nullptr;
  int (*unwatch_)(int, PyObject*) = nullptr;
  int id_ = -1;
  bool is_on_ = false;
  std::uint64_t changes_ = 1;
  std::unordered_map<PyObject*, std::uint32_t> known_;  // how often each has changed
};

// learn_watcher(is_so): whether plans rely on being told each change of a dictionary from now on.
inline PyObject* learn_watcher(PyObject*, PyObject* is_so) {
  if (is_so == Py_True) return PyBool_FromLong(Watched::all().begin());
  Watched::all().end();
  Py_RETURN_FALSE;
}

// watch(dictionary): whether each change of it counts from now on.
inline PyObject* watch(PyObject*, PyObject* dict) {
  return PyDict_CheckExact(dict) ? PyBool_FromLong(Watched::all().watches(dict, false)) : no();
}

// changes(): how many there were of what is watched, and some.
inline PyObject* changes(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(Watched::all().changes());
}

}  // namespace anabranch::call
