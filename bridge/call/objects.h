// SPDX-License-Identifier: Apache-2.0
// Launch and CallPlan as classes of Python's, made of what the package says. For module.cpp, which
// chooses Python's API first.
// Ownership: an object owns its Launch or Plan, and takes part in Python's search for garbage.
// Threads:   any that holds the interpreter's lock.
// Failure:   an error of Python's where they are not made of what they should be.
// Edges:     numbers of registers are looked at once, when a plan is made, and never again.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "check.h"
#include "given.h"
#include "launch.h"
#include "plan.h"

namespace anabranch::call {

inline PyTypeObject* kLaunchType = nullptr;  // for ever
inline PyTypeObject* kPlanType = nullptr;

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

template <typename Content>
struct Object {
  PyObject head;
  Content* content;

  static Content*& of(PyObject* self) { return reinterpret_cast<Object*>(self)->content; }

  // A new object with a new content; null with an error.
  static PyObject* make(PyTypeObject* type) {
    PyObject* const self = PyType_GenericAlloc(type, 0);
    if (self && !(of(self) = new (std::nothrow) Content())) {
      Py_DECREF(self);
      return PyErr_NoMemory();
    }
    return self;
  }
  static void free(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    delete of(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
  }
};

// Launch(function, recording, swaps, (given, bases, offsets), (sizes, allocate, free)): what a
// Launch has; numbers are 8 bytes each.
inline PyObject* make_launch(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long function = 0, recording = 0, allocate = 0, free = 0;
  PyObject *swaps = nullptr, *given = nullptr, *bases = nullptr, *offsets = nullptr;
  PyObject* sizes = nullptr;
  if (!PyArg_ParseTuple(args, "KKO(OOO)(OKK)", &function, &recording, &swaps, &given, &bases,
                        &offsets, &sizes, &allocate, &free)) {
    return nullptr;
  }
  PyObject* const self = Object<Launch>::make(type);
  if (!self) return nullptr;
  Launch& made = *Object<Launch>::of(self);
  made.function = reinterpret_cast<LaunchFunction>(function);
  made.recording = reinterpret_cast<void*>(recording);
  made.allocate = reinterpret_cast<Allocate>(allocate);
  made.free = reinterpret_cast<Free>(free);
  made.swaps = swaps;
  Py_INCREF(swaps);
  if (!made.given.read(given) || !made.bases.read(bases) || !made.offsets.read(offsets) ||
      !made.sizes.read(sizes)) {
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

inline void free_launch(PyObject* self) {
  if (const Launch* const launch = Object<Launch>::of(self)) Py_XDECREF(launch->swaps);
  Object<Launch>::free(self);
}

// queue(given, offsets, bases, words, before, stream): launches with the addresses of what is given
// and of the bases, with memory of its own, and with the words. What the function returns; None
// where it has not been called. Unless it is None, `before` is called right before.
inline PyObject* queue(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Words offsets;
  if (count != 6) return PyErr_Format(PyExc_TypeError, "queue() takes six arguments");
  if (!offsets.read(args[1])) return nullptr;
  void* const stream = PyLong_AsVoidPtr(args[5]);
  if (PyErr_Occurred()) return nullptr;
  const Launch& launch = *Object<Launch>::of(self);
  const Words which = launch.given.view();
  const std::int32_t code =
      launch.queue(Items(args[0]), which, offsets, Items(args[2]), Items(args[3]), args[4], stream);
  if (code != kNotTold) return PyLong_FromLong(code);
  PyObject* const told = no();
  Py_XDECREF(told);
  if (!told) return nullptr;
  Py_RETURN_NONE;
}

// Attributes of what a plan is made of.
class Fields {
 public:
  explicit Fields(PyObject* of) : of_(of) {}

  // A new reference; null with an error, and for None without one.
  PyObject* object(const char* name) {
    PyObject* const found = PyObject_GetAttrString(of_, name);
    is_right_ = is_right_ && found;
    if (found != Py_None) return found;
    Py_DECREF(found);
    return nullptr;
  }
  void words(const char* name, OwnWords& to) {
    PyObject* const found = object(name);
    is_right_ = is_right_ && found && to.read(found);
    Py_XDECREF(found);
  }
  Py_ssize_t number(const char* name) {
    PyObject* const found = object(name);
    const Py_ssize_t number = found ? PyLong_AsSsize_t(found) : -1;
    Py_XDECREF(found);
    is_right_ = is_right_ && found && !PyErr_Occurred();
    return number;
  }
  bool is_right() const { return is_right_; }

 private:
  PyObject* of_;
  bool is_right_ = true;
};

inline bool are_below(const OwnWords& some, std::size_t end) {
  for (std::size_t i = 0; i < some.size(); ++i) {
    if (some[i] >= end) return false;
  }
  return true;
}

// Reads one check, as checks.py has them.
inline bool read_check(PyObject* from, Check& to, const Plan& plan) {
  const Items fields(from);
  if (!PyTuple_Check(from) || fields.size() != 8) return false;
  const long kind = PyLong_AsLong(fields[0]), at = PyLong_AsLong(fields[1]);
  const long register_of = PyLong_AsLong(fields[5]), found = PyLong_AsLong(fields[6]);
  const auto end = static_cast<long>(plan.kept.size());
  const auto last = kind == static_cast<long>(Kind::kFloat) ? static_cast<long>(plan.numbers) : end;
  if (PyErr_Occurred() || kind < 0 || kind >= static_cast<long>(Kind::kEnd) || at < 0 ||
      at >= static_cast<long>(At::kEnd) || register_of >= end || found >= last) {
    return false;
  }
  to = {};
  to.kind = static_cast<Kind>(kind), to.at = static_cast<At>(at);
  to.from = static_cast<std::int32_t>(register_of), to.to = static_cast<std::int32_t>(found);
  to.index = -1;
  PyObject* const number = to.kind == Kind::kLength ? fields[4] : fields[3];
  if (PyLong_CheckExact(number)) to.index = PyLong_AsSsize_t(number);
  PyErr_Clear();  // a key that is too large for an index is none
  if (to.from < 0) to.holder = fields[2];
  if (to.at == At::kAttribute && to.holder) {
    const std::size_t offset = functions.offset_of(to.holder, fields[3]);
    if (offset != 0) to.at = At::kWord, to.index = static_cast<Py_ssize_t>(offset);
  }
  to.key = fields[3], to.expected = fields[4], to.name = fields[7];
  for (PyObject* const one : {to.holder, to.key, to.expected, to.name}) Py_XINCREF(one);
  return true;
}

// Whether what its kind needs is there, and within bounds.
inline bool is_sound(const Check& check, const Plan& plan) {
  const auto end = plan.kept.size();
  OwnWords registers;
  switch (check.kind) {
    case Kind::kAlike:
      return registers.read(check.key) && are_below(registers, end);
    case Kind::kGradients:
      return registers.read(check.key) && are_below(registers, end) &&
             PyBytes_Check(check.expected) &&
             static_cast<std::size_t>(PyBytes_Size(check.expected)) == registers.size();
    case Kind::kModes:
      return PyTuple_Check(check.expected);
    case Kind::kAbsent:
      return check.at == At::kItem && check.holder && PyDict_CheckExact(check.holder);
    case Kind::kKeys:
    case Kind::kValues:
      return PyTuple_Check(check.expected);
    case Kind::kAnswers:
      return PyTuple_Check(check.key);
    case Kind::kLike:
      return check.holder && check.to >= 0;
    case Kind::kFloat:
      return check.to >= 0;
    default:
      return true;
  }
}

inline void add(const Check& check, Plan& plan) {
  PyObject* const dict = check.holder && PyDict_CheckExact(check.holder) && check.is_of_content()
                             ? check.holder
                             : nullptr;
  const std::size_t number = plan.checks.size();
  plan.checks.push_back(check);
  if (check.to >= 0 && (check.kind == Kind::kType || check.kind == Kind::kAny)) ++plan.found_count;
  if (!plan.runs.empty() && plan.runs.back().dict == dict) {
    plan.runs.back().end = number + 1;
  } else {
    plan.runs.push_back({dict, 0, number, number + 1});
  }
}

inline bool read_direct(PyObject* from, Plan& plan) {
  Fields fields(from);
  Direct& made = plan.direct;
  made.of_launch = fields.object("launch");
  made.of_when = fields.object("when");
  made.allocate = fields.object("allocate");
  made.layouts = fields.object("layouts");
  made.stream = fields.object("current_stream");
  made.device = fields.object("device");
  made.before = fields.object("before");
  made.finish = fields.object("finish");
  fields.words("offsets", made.offsets);
  fields.words("mutated", made.mutated);
  fields.words("let_go", made.let_go);
  fields.words("rows", made.rows);
  made.answer = fields.number("answer");
  if (!fields.is_right() || !made.of_launch || Py_TYPE(made.of_launch) != kLaunchType ||
      !made.of_when || Py_TYPE(made.of_when) != kPlanType || !made.allocate || !made.layouts ||
      !made.stream || !made.device || !PyTuple_Check(made.device) || !made.finish) {
    return false;
  }
  made.launch = Object<Launch>::of(made.of_launch);
  made.when = Object<Plan>::of(made.of_when);
  plan.is_direct = true;
  return are_below(made.launch->given, plan.given.size()) &&
         are_below(made.mutated, plan.given.size()) && are_below(made.let_go, plan.owners.size()) &&
         (made.offsets.size() == 0 || made.offsets.size() == made.launch->given.size());
}

// Whose gradients the rows set.
inline bool are_rows_sound(const Plan& plan) {
  const Words rows = plan.direct.rows.view();
  for (Py_ssize_t at = 0; at < rows.size;) {
    if (rows.size - at < GradientRow::kFixed) return false;
    const GradientRow row(rows, at);
    if (row.owner < 0 || static_cast<std::size_t>(row.owner) >= plan.owners.size()) return false;
    at += row.size();
  }
  return true;
}

inline bool read_plan(PyObject* checks, PyObject* of, Plan& plan) {
  Fields fields(of);
  PyObject* const kept = fields.object("kept");
  const Items things(kept ? kept : of);
  const Py_ssize_t size = kept ? things.size() : -1;
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const one = things[i] == Py_None ? nullptr : things[i];
    Py_XINCREF(one);
    plan.kept.push_back(one);
  }
  Py_XDECREF(kept);
  if (size < 3) return false;
  fields.words("given", plan.given);
  fields.words("owners", plan.owners);
  plan.numbers = static_cast<std::size_t>(std::max<Py_ssize_t>(fields.number("numbers"), 0));
  plan.words_of = fields.object("words_of");
  plan.otherwise = fields.object("otherwise");
  plan.calls = fields.object("calls");
  const Items all(checks);
  const Py_ssize_t count = all.size();
  for (Py_ssize_t i = 0; i < count; ++i) {
    Check check{};
    if (!read_check(all[i], check, plan)) return false;
    add(check, plan);
    if (!is_sound(check, plan)) return false;
  }
  PyObject* const direct = fields.object("direct");
  const bool is_right =
      count >= 0 && fields.is_right() && are_below(plan.given, plan.kept.size()) &&
      are_below(plan.owners, plan.kept.size()) && (!plan.calls || PyByteArray_Check(plan.calls)) &&
      (!direct || (read_direct(direct, plan) && are_rows_sound(plan)));
  Py_XDECREF(direct);
  return is_right;
}

// CallPlan(checks, of): of Checks, and what a Launched of call_plan.py has.
inline PyObject* make_plan(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *checks = nullptr, *of = nullptr;
  if (!PyArg_ParseTuple(args, "OO", &checks, &of)) return nullptr;
  PyObject* const self = Object<Plan>::make(type);
  if (!self || read_plan(checks, of, *Object<Plan>::of(self))) return self;
  Py_DECREF(self);
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "CallPlan: this is no plan");
  return nullptr;
}

inline int visit_plan(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  const Plan* const plan = Object<Plan>::of(self);
  return plan ? plan->visit_all(visit, arg) : 0;
}

inline int clear_plan(PyObject* self) {
  if (Plan* const plan = Object<Plan>::of(self)) plan->clear();
  return 0;
}

inline void free_plan(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_plan(self);
  Object<Plan>::free(self);
}

// holds(): whether all checks do now.
inline PyObject* holds(PyObject* self, PyObject*) {
  const int is_so = Object<Plan>::of(self)->holds_now();
  return is_so < 0 ? nullptr : PyBool_FromLong(is_so);
}

// missed(): the name of the check that did not hold last; None where there was none.
inline PyObject* missed(PyObject* self, PyObject*) {
  PyObject* const name = Object<Plan>::of(self)->missed;
  if (!name) Py_RETURN_NONE;
  Py_INCREF(name);
  return name;
}

inline void move_to_front(PyObject* plans, Py_ssize_t i, PyObject* plan) {
  if (PyList_GetItem(plans, i) == plan && PyList_SetSlice(plans, i, i + 1, nullptr) == 0) {
    PyList_Insert(plans, 0, plan);
  }
  PyErr_Clear();
}

// call(plans, args, kwargs, guarded): the answer of the first plan in the list whose checks hold,
// which comes first then; MISSED where there is none.
inline PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 || !PyList_Check(args[0])) {
    return PyErr_Format(PyExc_TypeError, "call() takes a list of plans and three arguments");
  }
  for (Py_ssize_t i = 0; i < PyList_Size(args[0]); ++i) {
    PyObject* const plan = PyList_GetItem(args[0], i);
    if (Py_TYPE(plan) != kPlanType) continue;
    Py_INCREF(plan);
    PyObject* const answer = Object<Plan>::of(plan)->call(args[1], args[2], args[3]);
    if (answer && answer != kMissed && i > 0) move_to_front(args[0], i, plan);
    Py_DECREF(plan);
    if (answer != kMissed) return answer;
    Py_DECREF(answer);
  }
  Py_INCREF(kMissed);
  return kMissed;
}

inline PyTypeObject* type_of(const char* name, int size, unsigned flags, PyType_Slot* slots) {
  PyType_Spec spec = {name, size, 0, flags, slots};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

template <typename Function>
void* as_slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

inline bool have_types_been_added(PyObject* module) {
  static PyMethodDef of_launch[] = {{"queue", as_method(queue), METH_FASTCALL, nullptr},
                                    {nullptr, nullptr, 0, nullptr}};
  static PyMethodDef of_plan[] = {{"holds", as_method(holds), METH_NOARGS, nullptr},
                                  {"missed", as_method(missed), METH_NOARGS, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};
  PyType_Slot launch[] = {{Py_tp_new, as_slot(make_launch)},
                          {Py_tp_dealloc, as_slot(free_launch)},
                          {Py_tp_methods, of_launch},
                          {0, nullptr}};
  PyType_Slot plan[] = {{Py_tp_new, as_slot(make_plan)},
                        {Py_tp_dealloc, as_slot(free_plan)},
                        {Py_tp_traverse, as_slot(visit_plan)},
                        {Py_tp_clear, as_slot(clear_plan)},
                        {Py_tp_methods, of_plan},
                        {0, nullptr}};
  kLaunchType =
      type_of("anabranch_call.Launch", sizeof(Object<Launch>), Py_TPFLAGS_DEFAULT, launch);
  kPlanType = type_of("anabranch_call.CallPlan", sizeof(Object<Plan>),
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, plan);
  kMissed = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  return kLaunchType && kPlanType && kMissed &&
         PyModule_AddObjectRef(module, "Launch", reinterpret_cast<PyObject*>(kLaunchType)) == 0 &&
         PyModule_AddObjectRef(module, "CallPlan", reinterpret_cast<PyObject*>(kPlanType)) == 0 &&
         PyModule_AddObjectRef(module, "MISSED", kMissed) == 0;
}

}  // namespace anabranch::call
