// SPDX-License-Identifier: Apache-2.0
// A call plan: what a call is checked for, and the launch behind that. For module.cpp, which
// chooses Python's API first. Ownership: owns what its checks name, and the tensors that stood at
// their places last. What a call
//            finds in its arguments it lets go of when it ends.
// Threads:   any that holds the interpreter's lock; several calls at once, since Python's code may
//            run in the middle of one. What a call has replaced lives until none is in progress.
// Failure:   a miss, which notes the check; what is no Exception passes through.
// Edges:     a dictionary that has not changed since its checks were made is not looked through
//            again. So all of them are of its content alone, or are made each time. Those that are
//            watched are not even looked at.
#pragma once

#include <Python.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "ahead.h"
#include "autograd.h"
#include "check.h"
#include "given.h"
#include "launch.h"
#include "modes.h"
#include "standing.h"
#include "tensors.h"
#include "watched.h"

namespace anabranch::call {

inline PyObject* kMissed = nullptr;  // in place of an answer, for ever

// Checks one after the other, of one dictionary where they are of content.
struct Run {
  PyObject* dict;  // borrowed of the checks; null where they are not
  std::uint64_t version = 0;
  std::size_t begin, end;

  bool is_known() const { return dict && tells_changes && version == changes_of(dict); }
};

class Plan;

// How a plan launches without a function of Python's in between. It owns objects; `launch` and
// `when` are those of the first two.
struct Direct {
  const Launch* launch = nullptr;
  Plan* when = nullptr;
  PyObject *of_launch = nullptr, *of_when = nullptr, *allocate = nullptr, *layouts = nullptr,
           *stream = nullptr, *device = nullptr, *before = nullptr, *finish = nullptr;
  OwnWords offsets, mutated, let_go, rows;
  Py_ssize_t answer = -1;  // which base, if that is all
};

// What one call has found.
class Look {
 public:
  explicit Look(const Plan& plan);
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;
  ~Look() {
    for (std::size_t i = 0; i < own_; ++i) Py_DECREF(owned()[i]);
  }

  PyObject** registers() { return large_.empty() ? small_.data() : large_.data(); }
  double* numbers() { return numbers_.data(); }
  // Takes over the reference.
  void put(std::int32_t to, PyObject* found) {
    registers()[to] = found;
    owned()[own_++] = found;
  }

 private:
  PyObject** owned() { return registers() + registers_; }

  static constexpr std::size_t kSmall = 64;
  std::size_t registers_, own_ = 0;
  std::array<PyObject*, kSmall> small_;
  std::vector<PyObject*> large_;
  std::vector<double> numbers_;
};

class Plan {
 public:
  std::vector<Check> checks;
  std::vector<Run> runs;
  std::vector<PyObject*> kept;  // by register: what stood there last; null of what a call finds
  std::size_t found_count = 0;  // registers of what a call finds
  std::size_t numbers = 0;
  OwnWords given, owners;
  PyObject *words_of = nullptr, *otherwise = nullptr, *calls = nullptr;
  PyObject *last_words = nullptr, *last_numbers = nullptr;
  bool is_direct = false;
  Direct direct;
  PyObject* missed = nullptr;  // the name of the check, borrowed

  // The answer, or kMissed, or null with an error.
  PyObject* call(PyObject* args, PyObject* kwargs, PyObject* guarded) {
    ++active_;
    PyObject* answer = nullptr;
    {
      Look look(*this);
      PyObject** const registers = look.registers();
      registers[0] = args, registers[1] = kwargs, registers[2] = guarded;
      answer = holds(look) ? launched(look) : miss();
    }
    let_go_of_replaced();
    return answer;
  }

  // 1, 0, or -1 with an error.
  int holds_now() {
    ++active_;
    bool is_so = false;
    {
      Look look(*this);
      is_so = holds(look);
    }
    PyObject* const missed_now = is_so ? nullptr : miss();
    let_go_of_replaced();
    if (is_so) return 1;
    Py_XDECREF(missed_now);
    return missed_now ? 0 : -1;
  }

  int visit_all(visitproc visit, void* arg) const {
    for (const Check& one : checks) {
      Py_VISIT(one.holder);
      Py_VISIT(one.key);
      Py_VISIT(one.expected);
    }
    for (PyObject* const one : kept) Py_VISIT(one);
    for (PyObject* const one : others()) Py_VISIT(one);
    return 0;
  }

  // Lets go of all. What that runs may look at the plan, which has nothing by then.
  void clear() {
    std::vector<PyObject*> gone(kept);
    for (const Check& one : checks) {
      gone.insert(gone.end(), {one.holder, one.key, one.expected, one.name});
    }
    for (PyObject* const one : others()) gone.push_back(one);
    gone.insert(gone.end(), replaced_.begin(), replaced_.end());
    checks.clear(), runs.clear(), replaced_.clear(), others_.clear();
    watched_.clear();
    unchanged_since_ = 0;
    std::fill(kept.begin(), kept.end(), nullptr);
    words_of = otherwise = calls = last_words = last_numbers = missed = nullptr;
    direct = {}, is_direct = false;
    for (PyObject* const one : gone) Py_XDECREF(one);
  }

 private:
  std::array<PyObject*, 13> others() const {
    return {words_of,         otherwise,      calls,           last_words,     last_numbers,
            direct.of_launch, direct.of_when, direct.allocate, direct.layouts, direct.stream,
            direct.device,    direct.before,  direct.finish};
  }

  // What came of a launch. No answer: a code where it was refused with that, or an error behind a
  // launch, or nothing was launched, but gradients may be gone.
  struct Outcome {
    PyObject* answer = nullptr;
    std::int32_t code = 0;
    bool is_queued = false;
  };

  static PyObject* miss() {
    if (PyErr_Occurred()) {
      if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
      PyErr_Clear();
    }
    Py_INCREF(kMissed);
    return kMissed;
  }

  void let_go_of_replaced() {
    if (--active_ > 0 || replaced_.empty()) return;
    std::vector<PyObject*> gone;
    gone.swap(replaced_);
    for (PyObject* const one : gone) Py_DECREF(one);
  }

  // Of dictionaries that are watched those alone are looked at that have changed since all were as
  // they are to be, and none where all are again what they were then.
  bool holds(Look& look) {
    Watched& watched = Watched::all();
    const std::uint64_t changes = watched.changes(), count = changes - unchanged_since_;
    const Watched::Content content = watched.content();
    if (watched.is_on() && unchanged_since_ != 0) {
      // Where many have changed it is quicker to look at all, one after the other.
      const bool is_as_held = content == held_;
      const bool are_few = is_as_held || (count < Watched::kKept && count < watched_.size() / 4);
      if (!is_as_held && !(are_few ? changed_hold(look, changes) : all_hold(look))) return false;
      note_held(changes, content);
      return !are_few || std::all_of(others_.begin(), others_.end(), [&](std::size_t i) {
        return runs[i].is_known() || is_so(runs[i], look);
      });
    }
    if (held_before_) watch_runs();
    const std::uint64_t before = watched.changes();
    if (!all_hold(look)) return false;
    if (held_before_) note_held(before, content);
    held_before_ = true;
    return true;
  }

  // `content`: before the checks, in which code of Python's may have changed some.
  void note_held(std::uint64_t changes, const Watched::Content& content) {
    unchanged_since_ = changes;
    held_ = Watched::all().content() == content ? content : Watched::Content();
  }

  // Not of a plan that never holds, which would watch for nobody.
  void watch_runs() {
    others_.clear(), watched_.clear();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].dict && Watched::all().watches(runs[i].dict)) {
        watched_.emplace_back(runs[i].dict, i);
      } else {
        others_.push_back(i);
      }
    }
    std::sort(watched_.begin(), watched_.end());
  }

  bool changed_hold(Look& look, std::uint64_t until) {
    for (std::uint64_t number = unchanged_since_ + 1; number <= until; ++number) {
      PyObject* const dict = Watched::all().changed(number);
      auto at = std::lower_bound(watched_.begin(), watched_.end(), std::pair(dict, std::size_t{0}));
      for (; at != watched_.end() && at->first == dict; ++at) {
        if (!runs[at->second].is_known() && !is_so(runs[at->second], look)) return false;
      }
    }
    return true;
  }

  bool all_hold(Look& look) {
    constexpr auto kMost = static_cast<std::size_t>(kAtOnce);
    for (std::size_t begin = 0; begin < runs.size(); begin += kMost) {
      const std::size_t end = std::min(begin + kMost, runs.size());
      for (std::size_t i = begin; i < end; ++i) {
        if (runs[i].dict) fetch(runs[i].dict, {kChanges});
      }
      for (std::size_t i = begin; i < end; ++i) {
        if (runs[i].dict && !runs[i].is_known()) {
          fetch(word_at(runs[i].dict, kTable), {0, 64, 128});
        }
      }
      for (std::size_t i = begin; i < end; ++i) {
        if (!runs[i].is_known() && !is_so(runs[i], look)) return false;
      }
    }
    return true;
  }

  bool is_so(Run& run, Look& look) {
    // A key may run Python's code, which changes the dictionary.
    const std::uint64_t version = run.dict ? changes_of(run.dict) : 0;
    for (std::size_t i = run.begin; i < run.end; ++i) {
      if (!is_so(checks[i], look)) {
        missed = checks[i].name;
        return false;
      }
    }
    run.version = version;
    return true;
  }

  bool is_so(const Check& check, Look& look) {
    if (check.kind == Kind::kGradients) return are_gradients(check, look);
    if (check.kind == Kind::kAlike) return are_alike(check, look);
    if (check.kind == Kind::kModes) {
      return are_modes(check.expected);
    }
    PyObject* const found = check.find(look.registers());
    if (!found) return check.kind == Kind::kAbsent && !PyErr_Occurred();
    if (!(check.kind == Kind::kLike ? stands_alike(check, found, look)
                                    : is_it(check, found, look))) {
      Py_DECREF(found);
      return false;
    }
    if (check.to >= 0 && (check.kind == Kind::kType || check.kind == Kind::kAny)) {
      look.put(check.to, found);
    } else {
      Py_DECREF(found);
    }
    return true;
  }

  static bool is_it(const Check& check, PyObject* found, Look& look) {
    switch (check.kind) {
      case Kind::kIs:
        return found == check.expected;
      case Kind::kEquals:
        return are_equal(found, check.expected);
      case Kind::kType:
        return reinterpret_cast<PyObject*>(Py_TYPE(found)) == check.expected;
      case Kind::kLength:
        return PyObject_Size(found) == check.index;
      case Kind::kKeys:
        return has_keys(found, check.expected);
      case Kind::kValues:
        return has_values(found, check.expected);
      case Kind::kAny:
        return true;
      case Kind::kAnswers:
        return does_answer(found, check.key, check.expected);
      case Kind::kFloat:
        if (!PyFloat_CheckExact(found)) return false;
        look.numbers()[check.to] = PyFloat_AsDouble(found);
        return true;
      default:
        return false;
    }
  }

  // Whether the tensor is the one that stood there, or one that is like it, stands wherever that
  // has stood, and is none of the others.
  bool stands_alike(const Check& check, PyObject* found, Look& look) {
    if (found == kept[static_cast<std::size_t>(check.to)]) return true;
    PyObject* const is_like = PyObject_CallFunctionObjArgs(check.expected, found, nullptr);
    Py_XDECREF(is_like);
    PyObject*& keeps = kept[static_cast<std::size_t>(check.to)];
    if (is_like != Py_True || !is_of_such_a_graph(found, keeps)) return false;
    for (const Check& other : checks) {
      if (other.kind != Kind::kLike || other.to != check.to || &other == &check) continue;
      PyObject* const there = other.find(look.registers());
      Py_XDECREF(there);
      if (there != found) return false;
    }
    PyObject** const registers = look.registers();
    if (std::find(registers, registers + kept.size(), found) != registers + kept.size()) {
      return false;
    }
    if (keeps) replaced_.push_back(keeps);
    Py_INCREF(found);
    keeps = registers[check.to] = found;
    return true;
  }

  // As to autograd.
  static bool is_of_such_a_graph(PyObject* one, PyObject* other) {
    for (PyObject* const name : {kRequiresGrad, kIsLeaf}) {
      PyObject* const of_one = PyObject_GetAttr(one, name);
      PyObject* const of_other = other ? PyObject_GetAttr(other, name) : nullptr;
      Py_XDECREF(of_one);
      Py_XDECREF(of_other);
      if (!of_one || of_one != of_other) return false;
    }
    return true;
  }

  static bool are_gradients(const Check& check, Look& look) {
    Words which;
    if (!which.read(check.key)) return false;
    return are_told(Picked{look.registers(), which}, PyBytes_AsString(check.expected),
                    PyBytes_Size(check.expected));
  }

  static bool are_alike(const Check& check, Look& look) {
    Words which;
    if (!which.read(check.key)) return false;
    PyObject* const some = PyTuple_New(which.size);
    if (!some) return false;
    for (Py_ssize_t i = 0; i < which.size; ++i) {
      PyObject* const one = look.registers()[which[i]];
      Py_INCREF(one);
      PyTuple_SetItem(some, i, one);
    }
    PyObject* const answer = PyObject_Call(check.holder, some, nullptr);
    Py_DECREF(some);
    Py_XDECREF(answer);
    return answer == Py_True;
  }

  // A sequence of numbers for kernels; null where there is none for the numbers of now. They are
  // compared by their bits: -0.0 is not 0.0.
  PyObject* words(Look& look) {
    if (!words_of) return PyTuple_New(0);
    PyObject* const now =
        PyBytes_FromStringAndSize(reinterpret_cast<const char*>(look.numbers()),
                                  static_cast<Py_ssize_t>(numbers * sizeof(double)));
    if (!now) return nullptr;
    PyObject* made = nullptr;
    if (last_numbers && PyObject_RichCompareBool(now, last_numbers, Py_EQ) == 1) {
      made = last_words;
      Py_INCREF(made);
      Py_DECREF(now);
      return made;
    }
    made = PyObject_CallFunctionObjArgs(words_of, now, nullptr);
    if (!made || made == Py_None) {
      Py_DECREF(now);
      Py_XDECREF(made);
      return nullptr;
    }
    Py_XDECREF(last_numbers);
    Py_XDECREF(last_words);
    last_numbers = now;
    last_words = made;
    Py_INCREF(made);
    return made;
  }

  PyObject* launched(Look& look) {
    PyObject* const numbers_as_words = words(look);
    if (!numbers_as_words) return miss();
    Outcome outcome;
    if (is_direct && direct.when->holds_now() == 1)
      outcome = launched_directly(look, numbers_as_words);
    if (!outcome.answer && !outcome.is_queued && is_exception_gone()) {
      outcome.answer = launched_otherwise(look, outcome.code, numbers_as_words);
    }
    Py_DECREF(numbers_as_words);
    if (outcome.answer && outcome.answer != kMissed) count_call();
    return outcome.answer;
  }

  void count_call() const {
    std::uint64_t count = 0;
    if (!calls || PyByteArray_Size(calls) != sizeof count) return;
    std::memcpy(&count, PyByteArray_AsString(calls), sizeof count);
    ++count;
    std::memcpy(PyByteArray_AsString(calls), &count, sizeof count);
  }

  // Whether no error is left once an Exception has been let go of.
  static bool is_exception_gone() {
    PyObject* const told = no();
    Py_XDECREF(told);
    return told != nullptr;
  }

  PyObject* launched_otherwise(Look& look, std::int32_t code, PyObject* as_words) {
    PyObject** const registers = look.registers();
    PyObject* const refused = PyLong_FromLong(code);
    PyObject* const all = refused ? list_of(look, given) : nullptr;
    PyObject* const some = all ? list_of(look, owners) : nullptr;
    PyObject* const answer =
        some ? PyObject_CallFunctionObjArgs(otherwise, refused, registers[0], registers[1], all,
                                            some, as_words, nullptr)
             : nullptr;
    Py_XDECREF(refused);
    Py_XDECREF(all);
    Py_XDECREF(some);
    return answer;
  }

  static PyObject* list_of(Look& look, const OwnWords& which) {
    PyObject* const made = PyList_New(static_cast<Py_ssize_t>(which.size()));
    for (std::size_t i = 0; made && i < which.size(); ++i) {
      PyObject* const one = look.registers()[which[i]];
      Py_INCREF(one);
      PyList_SetItem(made, static_cast<Py_ssize_t>(i), one);
    }
    return made;
  }

  PyObject* bases() const {
    const Items layouts(direct.layouts);
    PyObject* const made = PyList_New(0);
    for (Py_ssize_t i = 0, size = layouts.size(); made && i < size; ++i) {
      PyObject* const base = PyObject_Call(direct.allocate, layouts[i], nullptr);
      const bool is_added = base && PyList_Append(made, base) == 0;
      Py_XDECREF(base);
      if (!is_added) {
        Py_DECREF(made);
        return nullptr;
      }
    }
    return made;
  }

  Outcome launched_directly(Look& look, PyObject* as_words) const {
    const Picked of_given{look.registers(), given.view()},
        of_owners{look.registers(), owners.view()};
    Outcome outcome;
    if (direct.let_go.size() != 0 && !are_let_go(of_owners, direct.let_go.view())) return outcome;
    PyObject* const fresh = bases();
    PyObject* const stream = fresh ? PyObject_Call(direct.stream, direct.device, nullptr) : nullptr;
    if (stream) {
      const Launch& launch = *direct.launch;
      const std::int32_t code =
          launch.queue(of_given, launch.given.view(), direct.offsets.view(), Items(fresh),
                       Items(as_words), direct.before, PyLong_AsVoidPtr(stream));
      outcome.is_queued = code == 0;
      if (code == 0) {
        outcome.answer = answer_of(look, of_given, of_owners, fresh);
      } else if (code != kNotTold) {
        outcome.code = code;
      }
    }
    Py_XDECREF(stream);
    Py_XDECREF(fresh);
    return outcome;
  }

  PyObject* answer_of(Look& look, const Picked& of_given, const Picked& of_owners,
                      PyObject* fresh) const {
    const bool are_counted =
        direct.mutated.size() == 0 || are_incremented(of_given, direct.mutated.view());
    const bool are_there =
        direct.rows.size() == 0 || are_set(of_owners, Items(fresh), direct.rows.view());
    if (direct.answer >= 0 && are_counted && are_there) {
      PyObject* const base = PyList_GetItem(fresh, direct.answer);
      Py_XINCREF(base);
      return base;
    }
    PyObject* const all = list_of(look, given);
    PyObject* const some = all ? list_of(look, owners) : nullptr;
    PyObject* const answer =
        some ? PyObject_CallFunctionObjArgs(direct.finish, all, some, fresh,
                                            are_counted ? Py_True : Py_False,
                                            are_there ? Py_True : Py_False, nullptr)
             : nullptr;
    Py_XDECREF(all);
    Py_XDECREF(some);
    return answer;
  }

  int active_ = 0;  // calls
  bool held_before_ = false;
  std::uint64_t unchanged_since_ = 0;  // this many changes; 0: something may have changed
  Watched::Content held_;              // with which all were as they are to be
  std::vector<std::size_t> others_;    // runs that are not watched
  std::vector<std::pair<PyObject*, std::size_t>> watched_;  // the others, by their dictionaries
  std::vector<PyObject*> replaced_;
};

inline Look::Look(const Plan& plan) : registers_(plan.kept.size()) {
  const std::size_t size = registers_ + plan.found_count;
  if (size > kSmall) large_.resize(size);
  std::copy(plan.kept.begin(), plan.kept.end(), registers());
  numbers_.resize(plan.numbers);
}

}  // namespace anabranch::call
