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
#include "given.h"
#include "modes.h"
#include "standing.h"
#include "tensors.h"

namespace {

using namespace anabranch::quick;  // the headers of this module

PyObject* kCount = nullptr;  // the name of the attribute, for ever

// answers_are(functions, arguments, answers): whether each function, called with its tuple of
// arguments, answers this, or what is equal to it.
PyObject* answers_are(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return no();
  const Items functions(args[0]), arguments(args[1]), answers(args[2]);
  const Py_ssize_t size = answers.size();
  if (size < 0 || functions.size() != size || arguments.size() != size) return no();
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const found = PyObject_Call(functions[i], arguments[i], nullptr);
    const bool is_same =
        found && (found == answers[i] || PyObject_RichCompareBool(found, answers[i], Py_EQ) == 1);
    Py_XDECREF(found);
    if (!is_same) return no();
  }
  Py_RETURN_TRUE;
}

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

// Into 8 bytes for each; false where one cannot be told.
bool write_addresses(const Items& all, Py_ssize_t size, const Words& offsets, const Words* which,
                     char* to) {
  Batch some;
  for (Py_ssize_t begin = 0; begin < size; begin += some.size) {
    some.read(all, begin, size, which);
    some.fetch_behind(kStorage, {0, 64});
    some.fetch_behind(kVersion, {0});  // which is counted behind a launch
    for (Py_ssize_t i = 0; i < some.size; ++i) {
      void* found = nullptr;
      if (!some.shared[i] || tensors.get_data_ptr(&some.shared[i], &found) != 0) return false;
      auto address = reinterpret_cast<std::uint64_t>(found);
      if (offsets.size) address += offsets[begin + i];
      std::memcpy(to, &address, sizeof address);
      to += sizeof address;
    }
  }
  return true;
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

// Tensors, what to add to the address of each of those with the numbers `which`, and these.
struct Gathered {
  PyObject* tensors;
  Words offsets, which;

  bool read(PyObject* some, PyObject* to_add, PyObject* picked) {
    tensors = some;
    return offsets.read(to_add) && which.read(picked) &&
           (offsets.size == 0 || offsets.size == which.size);
  }
  bool write(char* to) const {
    return write_addresses(Items(tensors), which.size, offsets, &which, to);
  }
};

// aoti_torch_cuda_caching_allocator_raw_alloc and _raw_delete of torch's stable C interface: on the
// current device and stream. Not 0: there is no memory.
using Allocate = std::int32_t (*)(std::uint64_t bytes, void** address);
using Free = std::int32_t (*)(void* address);

// Memory for one launch; the allocator knows by the stream when it is free.
class Allocated {
 public:
  Allocated(PyObject* allocate, PyObject* free)
      : allocate_(reinterpret_cast<Allocate>(PyLong_AsVoidPtr(allocate))),
        free_(reinterpret_cast<Free>(PyLong_AsVoidPtr(free))) {}
  Allocated(const Allocated&) = delete;
  Allocated& operator=(const Allocated&) = delete;
  ~Allocated() {
    while (count_ > 0) free_(reinterpret_cast<void*>(addresses_[--count_]));
  }

  // False where one cannot be had.
  bool take(const Words& sizes) {
    if (sizes.size > kMost || (sizes.size > 0 && (!allocate_ || !free_))) return false;
    while (count_ < sizes.size) {
      void* address = nullptr;
      if (allocate_(sizes[count_], &address) != 0 || !address) return false;
      addresses_[count_++] = reinterpret_cast<std::uint64_t>(address);
    }
    return true;
  }
  Py_ssize_t size() const { return count_; }
  void write(char* to) const {
    std::memcpy(to, addresses_, static_cast<std::size_t>(count_) * sizeof addresses_[0]);
  }

 private:
  static constexpr Py_ssize_t kMost = 64;
  Allocate allocate_;
  Free free_;
  std::uint64_t addresses_[kMost];
  Py_ssize_t count_ = 0;
};

// One address for each of what is gathered, and for each part, and the words.
PyObject* what_a_launch_gets(const Gathered& given, const Gathered& bases, const Allocated& parts,
                             const Items& words) {
  const Py_ssize_t first = given.which.size, second = first + bases.which.size;
  const Py_ssize_t third = second + parts.size(), end = third + words.size();
  const auto word = static_cast<Py_ssize_t>(sizeof(std::uint64_t));
  if (words.size() < 0) return nullptr;
  PyObject* const made = PyBytes_FromStringAndSize(nullptr, end * word);
  char* const to = made ? PyBytes_AsString(made) : nullptr;
  bool is_told = made && given.write(to) && bases.write(to + first * word);
  if (is_told) parts.write(to + second * word);
  for (Py_ssize_t i = 0; is_told && i < words.size(); ++i) {
    const std::uint64_t number = PyLong_AsUnsignedLongLong(words[i]);
    std::memcpy(to + (third + i) * word, &number, sizeof number);
    is_told = !PyErr_Occurred();
  }
  if (is_told) return made;
  Py_XDECREF(made);
  return nullptr;
}

// Whether no other thread's capture has swapped the memory of tensors: the count is even. Nothing
// runs between this and the reading of addresses, since this thread holds the lock.
bool is_undisturbed(PyObject* swaps) {
  PyObject* const count = PyObject_GetAttr(swaps, kCount);
  const bool is_even = count && PyLong_AsLong(count) % 2 == 0 && !PyErr_Occurred();
  Py_XDECREF(count);
  return is_even;
}

// anabranch_captured_launch.
using Launch = std::int32_t (*)(void* recording, const void* addresses, std::uint32_t count,
                                void* stream);

// call_launch(address of such a function, recording, stream, swaps, given, offsets, which, bases,
// their offsets, which of them, sizes of parts, addresses of functions that allocate and free
// these, words, before): what it returns. None where an address is not told here, a capture has
// swapped memory, or there is none; nothing has been launched then. Unless it is None, `before` is
// called right before. The lock is free while the function runs.
PyObject* call_launch(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 15) return PyErr_Format(PyExc_TypeError, "call_launch() takes fifteen arguments");
  const auto function = reinterpret_cast<Launch>(PyLong_AsVoidPtr(args[0]));
  void* const recording = PyLong_AsVoidPtr(args[1]);
  void* const stream = PyLong_AsVoidPtr(args[2]);
  Gathered given{}, bases{};
  Words sizes;
  Allocated parts(args[11], args[12]);
  if (PyErr_Occurred() || !given.read(args[4], args[5], args[6]) ||
      !bases.read(args[7], args[8], args[9]) || !sizes.read(args[10])) {
    return nullptr;
  }
  PyObject* const gathered =
      function && tensors.offset && parts.take(sizes) && is_undisturbed(args[3])
          ? what_a_launch_gets(given, bases, parts, Items(args[13]))
          : nullptr;
  if (!gathered) {
    if (PyObject* const told = no()) Py_DECREF(told);
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
  }
  PyObject* const before = args[14] == Py_None ? nullptr : PyObject_CallNoArgs(args[14]);
  Py_XDECREF(before);
  if (PyErr_Occurred()) {
    Py_DECREF(gathered);
    return nullptr;
  }
  const void* const addresses = PyBytes_AsString(gathered);
  const auto size = static_cast<std::uint32_t>(PyBytes_Size(gathered) / 8);
  std::int32_t code = 0;
  Py_BEGIN_ALLOW_THREADS;
  code = function(recording, addresses, size, stream);
  Py_END_ALLOW_THREADS;
  Py_DECREF(gathered);
  return PyLong_FromLong(code);
}

// Of each tuple of arguments what the function answers, in a new list; null where it fails.
PyObject* answers_of(PyObject* function, const Items& arguments) {
  PyObject* const made = PyList_New(0);
  for (Py_ssize_t i = 0, size = arguments.size(); made && i < size; ++i) {
    PyObject* const answer = PyObject_Call(function, arguments[i], nullptr);
    const bool is_added = answer && PyList_Append(made, answer) == 0;
    Py_XDECREF(answer);
    if (!is_added) {
      Py_DECREF(made);
      return nullptr;
    }
  }
  return made;
}

// None where an Exception is set, or none is; null for anything else that is.
PyObject* nothing() {
  PyObject* const told = no();
  Py_XDECREF(told);
  if (!told) return nullptr;
  Py_RETURN_NONE;
}

// What is launched by launch_if(), in this order.
enum Launched : Py_ssize_t {
  kAllocator,
  kLayouts,
  kStream,
  kDevice,
  kOfLaunch,
  kMutated,
  kLetGo,
  kFields
};
constexpr Py_ssize_t kOfStream = 2, kOfGiven = 4, kOfBases = 7, kLaunchArguments = 15;

// What call_launch() answers once the bases are there. Null where an error is set.
PyObject* launched_with(PyObject* const* of, PyObject* given, PyObject* bases) {
  if (PyTuple_Size(of[kOfLaunch]) != kLaunchArguments) return nullptr;
  PyObject* const stream = PyObject_Call(of[kStream], of[kDevice], nullptr);
  if (!stream) return nullptr;
  PyObject* arguments[kLaunchArguments];
  for (Py_ssize_t i = 0; i < kLaunchArguments; ++i) {
    arguments[i] = PyTuple_GetItem(of[kOfLaunch], i);
  }
  arguments[kOfStream] = stream, arguments[kOfGiven] = given, arguments[kOfBases] = bases;
  PyObject* const code = call_launch(nullptr, arguments, kLaunchArguments);
  Py_DECREF(stream);
  return code;
}

// The bases, and whether versions have been incremented.
PyObject* answer_of_launch(PyObject* const* of, PyObject* given, PyObject* bases) {
  PyObject* const written[] = {given, of[kMutated]};
  PyObject* const are_told = increment_versions(nullptr, written, 2);
  PyObject* const answer = are_told ? PyTuple_Pack(2, bases, are_told) : nullptr;
  Py_XDECREF(are_told);
  return answer;
}

// launch_if(functions, arguments, answers, (allocate, layouts, current_stream, (device,), arguments
// of call_launch() with any stream, given and bases, which are written, which owners), given,
// owners): where answers_are() the answers, lets go of these owners' gradients, allocates a base
// for each layout, launches on that stream, and increments versions. The bases and whether versions
// have been incremented; a number, where the launch was refused with that; None where nothing was
// done, and -1 where it was no more than to let go of gradients.
PyObject* launch_if(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) return PyErr_Format(PyExc_TypeError, "launch_if() takes six arguments");
  PyObject* const is_so = answers_are(nullptr, args, 3);
  Py_XDECREF(is_so);
  if (is_so != Py_True) return is_so ? nothing() : nullptr;
  PyObject* of[kFields];
  for (Py_ssize_t i = 0; i < kFields; ++i) of[i] = PyTuple_GetItem(args[3], i);
  if (PyErr_Occurred()) return nothing();
  const bool lets_go = PyBytes_Size(of[kLetGo]) > 0;
  const bool may_go_on = !lets_go || are_let_go(args[5], of[kLetGo]);
  PyObject* const bases = may_go_on ? answers_of(of[kAllocator], Items(of[kLayouts])) : nullptr;
  PyObject* const code = bases ? launched_with(of, args[4], bases) : nullptr;
  PyObject* answer = code;
  if (!code || code == Py_None) {
    Py_XDECREF(code);
    answer = nothing();
    if (answer && lets_go) {
      Py_DECREF(answer);
      answer = PyLong_FromLong(-1);
    }
  } else if (PyLong_AsLong(code) == 0) {
    answer = answer_of_launch(of, args[4], bases);
    Py_DECREF(code);
  }
  Py_XDECREF(bases);
  return answer;
}

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef kMethods[] = {
    {"stand", as_method(stand), METH_FASTCALL, nullptr},
    {"all_stand", as_method(all_stand), METH_FASTCALL, nullptr},
    {"version_of", as_method(version_of), METH_O, nullptr},
    {"learn_versions", as_method(learn_versions), METH_O, nullptr},
    {"answers_are", as_method(answers_are), METH_FASTCALL, nullptr},
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
    {"call_launch", as_method(call_launch), METH_FASTCALL, nullptr},
    {"launch_if", as_method(launch_if), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "anabranch_quick",
                       nullptr,
                       -1,
                       kMethods,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_anabranch_quick() {
  kCount = PyUnicode_InternFromString("count");
  if (!kCount || !names_of_gradients_are_made() || !names_are_made()) return nullptr;
  PyObject* const made = PyModule_Create(&kModule);
  if (made && PyModule_AddIntConstant(made, "version", 11) != 0) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}
