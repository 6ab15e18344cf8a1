// SPDX-License-Identifier: Apache-2.0
// What a call of a recorded step looks at before it is launched, for hundreds of tensors at once: a
// module of Python's, against its limited API of 3.11, so that one build serves all later ones.
// The package goes the same ways in Python where the module is missing (python/anabranch/_record/
// quick.py says what each function answers).
// Ownership: keeps the types of torch's tensors and one function of the package for ever.
// Threads:   any that holds the interpreter's lock.
// Failure:   what cannot be told quickly is False, or asked of the package's function; what is not
//            an Exception, such as KeyboardInterrupt, passes through.
// Edges:     torch is not linked. Its functions come as pointers. Where an object of Python's keeps
//            its tensor is found out by calibrate(), from tensors that say it.
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "ahead.h"
#include "autograd.h"
#include "check.h"
#include "given.h"
#include "launch.h"
#include "modes.h"
#include "objects.h"
#include "plan.h"
#include "standing.h"
#include "tensors.h"

namespace {

using namespace anabranch::call;  // the headers of this module

// calibrate(types, tensors, _cdata of each, address of aoti_torch_get_data_ptr, others): whether it
// is known from now on where tensors keep what addresses() reads. The types are the one of all
// tensors and the two ordinary ones below it.
PyObject* calibrate(PyObject*, PyObject* args) {
  PyObject *type = nullptr, *plain = nullptr, *common = nullptr;
  PyObject *some = nullptr, *told = nullptr, *others = nullptr;
  unsigned long long get_data_ptr = 0;
  if (!PyArg_ParseTuple(args, "(O!O!O!)OOKO", &PyType_Type, &type, &PyType_Type, &plain,
                        &PyType_Type, &common, &some, &told, &get_data_ptr, &others)) {
    return nullptr;
  }
  tensors.offset = 0;
  autograd = {};
  const Items sample(some), shared_by(told);
  if (sample.size() < 1 || sample.size() != shared_by.size()) return no();
  const std::size_t found = where_shared(sample, shared_by);
  if (!found || PyErr_Occurred()) return no();
  for (PyObject* const kept : {type, plain, common, others}) Py_INCREF(kept);
  tensors = {reinterpret_cast<PyTypeObject*>(type),
             reinterpret_cast<PyTypeObject*>(plain),
             reinterpret_cast<PyTypeObject*>(common),
             reinterpret_cast<GetDataPtr>(get_data_ptr),
             found,
             others};
  Py_RETURN_TRUE;
}

// learn_functions(functions, names): whether it is known from now on where a function keeps what it
// has by these three names. None of the functions may have in one place what another has elsewhere.
PyObject* learn_functions(PyObject*, PyObject* args) {
  PyObject *some = nullptr, *names = nullptr;
  if (!PyArg_ParseTuple(args, "OO", &some, &names)) return nullptr;
  functions = {};
  const Items sample(some), of(names);
  if (sample.size() < 1 || of.size() != Functions::kParts) return no();
  Functions made;
  made.type = Py_TYPE(sample[0]);
  for (std::size_t i = 0; i < Functions::kParts; ++i) {
    made.names[i] = of[static_cast<Py_ssize_t>(i)];
    made.offsets[i] = where_kept(sample, made.names[i]);
    if (made.offsets[i] == 0) return no();
  }
  for (PyObject* const name : made.names) Py_INCREF(name);
  Py_INCREF(reinterpret_cast<PyObject*>(made.type));
  functions = made;
  Py_RETURN_TRUE;
}

// addresses(tensors, offsets, which): 8 bytes for each of the tensors, or of those with the numbers
// `which` (8 bytes each, or None): its address and what `offsets` (8 bytes each, or none) add. Of
// what is not told here, what the other function answers or raises.
PyObject* addresses(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Words offsets, which;
  if (count != 3) return PyErr_Format(PyExc_TypeError, "addresses() takes three arguments");
  const bool is_picked = args[2] != Py_None;
  if (!offsets.read(args[1]) || (is_picked && !which.read(args[2]))) return nullptr;
  const Items some(args[0]);
  const Py_ssize_t size = is_picked ? which.size : some.size();
  if (size < 0) return nullptr;
  if (!tensors.offset) {
    PyErr_SetString(PyExc_RuntimeError, "calibrate() comes first");
    return nullptr;
  }
  if (offsets.size == 0 || offsets.size == size) {
    const auto bytes = size * static_cast<Py_ssize_t>(sizeof(std::uint64_t));
    PyObject* const made = PyBytes_FromStringAndSize(nullptr, bytes);
    if (!made) return nullptr;
    if (write_addresses(some, size, offsets, is_picked ? &which : nullptr,
                        PyBytes_AsString(made))) {
      return made;
    }
    Py_DECREF(made);
    PyErr_Clear();
  }
  return PyObject_CallFunctionObjArgs(tensors.others, args[0], args[1], args[2], nullptr);
}

PyMethodDef kMethods[] = {
    {"version_of", as_method(version_of), METH_O, nullptr},
    {"learn_versions", as_method(learn_versions), METH_O, nullptr},
    {"learn_functions", as_method(learn_functions), METH_VARARGS, nullptr},
    {"learn_watcher", as_method(learn_watcher), METH_O, nullptr},
    {"watch", as_method(watch), METH_O, nullptr},
    {"changes", as_method(changes), METH_NOARGS, nullptr},
    {"gradients_are", as_method(gradients_are), METH_FASTCALL, nullptr},
    {"let_go_of_gradients", as_method(let_go_of_gradients), METH_FASTCALL, nullptr},
    {"set_gradients", as_method(set_gradients), METH_FASTCALL, nullptr},
    {"increment_versions", as_method(increment_versions), METH_FASTCALL, nullptr},
    {"calibrate", as_method(calibrate), METH_VARARGS, nullptr},
    {"learn_autograd", as_method(learn_autograd), METH_VARARGS, nullptr},
    {"learn_setters", as_method(learn_setters), METH_VARARGS, nullptr},
    {"learn_modes", as_method(learn_modes), METH_FASTCALL, nullptr},
    {"modes_told", as_method(modes_told), METH_NOARGS, nullptr},
    {"modes_are", as_method(modes_are), METH_O, nullptr},
    {"is_intercepted", as_method(is_intercepted), METH_NOARGS, nullptr},
    {"addresses", as_method(addresses), METH_FASTCALL, nullptr},
    {"call", as_method(call), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "anabranch_call",
                       nullptr,
                       -1,
                       kMethods,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_anabranch_call() {
  kCount = PyUnicode_InternFromString("count");
  if (!kCount || !names_of_gradients_are_made() || !names_are_made()) return nullptr;
  PyObject* const made = PyModule_Create(&kModule);
  if (made && (PyModule_AddIntConstant(made, "version", 13) != 0 || !have_types_been_added(made))) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}
