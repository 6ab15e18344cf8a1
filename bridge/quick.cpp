// SPDX-License-Identifier: Apache-2.0
// What a call of a recorded step looks at before it is launched, for hundreds of tensors at once: a
// module of Python's, against its limited API of 3.11, so that one build serves all later ones.
// The package goes the same ways in Python where the module is missing (python/anabranch/_record/
// quick.py says what each function answers).
// Ownership: keeps the type of torch's tensors and one function of the package for ever.
// Threads:   any that holds the interpreter's lock.
// Failure:   what cannot be told quickly is False, or asked of the package's function; what is not
//            an Exception, such as KeyboardInterrupt, passes through.
// Edges:     torch is not linked. Its function for addresses comes as a pointer. Where an object of
//            Python's keeps its tensor is found out by calibrate(), from tensors that say it.
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

// aoti_torch_get_data_ptr of torch's stable C interface. A handle is the address of a tensor of
// C++, and that is one pointer to what all its copies share.
using GetDataPtr = std::int32_t (*)(void* handle, void** address);

struct Tensors {
  PyTypeObject* type = nullptr;
  PyTypeObject* common = nullptr;  // the class of parameters
  GetDataPtr get_data_ptr = nullptr;
  std::size_t offset = 0;      // of that pointer in an object of Python's; 0 while it is not known
  PyObject* others = nullptr;  // the same as addresses(), of what is told otherwise
};
Tensors tensors;

constexpr std::size_t kFirstWord = 2, kEndWord = 8;  // where it is looked for

// Most are of one class below it, which is found out once.
bool is_tensor(PyObject* thing) {
  if (!thing) return false;
  PyTypeObject* const type = Py_TYPE(thing);
  return type == tensors.type || type == tensors.common || PyType_IsSubtype(type, tensors.type);
}

void* word_at(PyObject* thing, std::size_t offset) {
  void* word = nullptr;
  std::memcpy(&word, reinterpret_cast<const char*>(thing) + offset, sizeof word);
  return word;
}

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

// False instead of an Exception that is set; null for anything else that is.
PyObject* no() {
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
    PyErr_Clear();
  }
  Py_RETURN_FALSE;
}

bool stands(PyObject* holder, PyObject* key, PyObject* thing) {
  if (PyDict_CheckExact(holder)) return PyDict_GetItemWithError(holder, key) == thing;
  if (PyList_CheckExact(holder) && PyLong_CheckExact(key)) {
    return PyList_GetItem(holder, PyLong_AsSsize_t(key)) == thing;
  }
  PyObject* const found = PyObject_GetItem(holder, key);
  Py_XDECREF(found);
  return found == thing;
}

// stand(holders, keys, things): whether the very same thing is still at each key of its holder.
PyObject* stand(PyObject*, PyObject* const* args, Py_ssize_t count) {
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

bool values_are(PyObject* dict, PyObject* values) {
  if (!dict || !values || !PyDict_Check(dict) || !PyTuple_Check(values)) return false;
  const Py_ssize_t size = PyTuple_Size(values);
  if (PyDict_Size(dict) != size) return false;
  PyObject* value = nullptr;
  Py_ssize_t at = 0, i = 0;
  while (PyDict_Next(dict, &at, nullptr, &value)) {
    if (i == size || PyTuple_GetItem(values, i++) != value) return false;
  }
  return i == size;
}

// values_stand(dicts, values): whether each dictionary has these very values, in their order.
PyObject* values_stand(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return no();
  const Items dicts(args[0]), values(args[1]);
  const Py_ssize_t size = dicts.size();
  if (size < 0 || values.size() != size) return no();
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!values_are(dicts[i], values[i])) return no();
  }
  Py_RETURN_TRUE;
}

PyObject* kGrad = nullptr;
PyObject* kRequiresGrad = nullptr;

// Whether an attribute is this object.
bool is_attribute(PyObject* thing, PyObject* name, PyObject* value) {
  PyObject* const found = PyObject_GetAttr(thing, name);
  Py_XDECREF(found);
  return found == value;
}

// gradients_are(parameters, told): whether each one's byte still says whether it requires a
// gradient (1) and whether it has none (2).
PyObject* gradients_are(PyObject*, PyObject* const* args, Py_ssize_t count) {
  char* told = nullptr;
  Py_ssize_t size = 0;
  if (count != 2 || PyBytes_AsStringAndSize(args[1], &told, &size)) return no();
  const Items parameters(args[0]);
  if (parameters.size() != size) return no();
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const parameter = parameters[i];
    if (!is_attribute(parameter, kRequiresGrad, told[i] & 1 ? Py_True : Py_False) ||
        is_attribute(parameter, kGrad, Py_None) != ((told[i] & 2) != 0) || PyErr_Occurred()) {
      return no();
    }
  }
  Py_RETURN_TRUE;
}

// calibrate(type, a common class of that, tensors, _cdata of each, address of
// aoti_torch_get_data_ptr, others): whether it is known from now on where tensors keep what
// addresses() reads.
PyObject* calibrate(PyObject*, PyObject* args) {
  PyObject *type = nullptr, *common = nullptr, *some = nullptr, *told = nullptr, *others = nullptr;
  unsigned long long get_data_ptr = 0;
  if (!PyArg_ParseTuple(args, "OOOOKO", &type, &common, &some, &told, &get_data_ptr, &others)) {
    return nullptr;
  }
  tensors.offset = 0;
  const Items sample(some), shared_by(told);
  if (!PyType_Check(type) || !PyType_Check(common) || sample.size() < 1 ||
      sample.size() != shared_by.size() ||
      !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(common),
                        reinterpret_cast<PyTypeObject*>(type))) {
    return no();
  }
  std::size_t found = 0;
  for (std::size_t word = kFirstWord; word < kEndWord && !found; ++word) {
    bool is_here = true;
    for (Py_ssize_t i = 0; i < sample.size() && is_here; ++i) {
      void* const shared = PyLong_AsVoidPtr(shared_by[i]);
      is_here = shared && word_at(sample[i], word * sizeof(void*)) == shared;
    }
    if (is_here) found = word * sizeof(void*);
  }
  if (!found || PyErr_Occurred()) return no();
  Py_INCREF(type);
  Py_INCREF(common);
  Py_INCREF(others);
  tensors = {reinterpret_cast<PyTypeObject*>(type), reinterpret_cast<PyTypeObject*>(common),
             reinterpret_cast<GetDataPtr>(get_data_ptr), found, others};
  Py_RETURN_TRUE;
}

bool address_of(PyObject* thing, std::uint64_t* address) {
  if (!is_tensor(thing)) return false;
  void* shared = word_at(thing, tensors.offset);
  void* found = nullptr;
  if (!shared || tensors.get_data_ptr(&shared, &found) != 0) return false;
  *address = reinterpret_cast<std::uint64_t>(found);
  return true;
}

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
};

// Into 8 bytes for each; false where one cannot be told.
bool write_addresses(const Items& some, Py_ssize_t size, const Words& offsets, const Words* which,
                     char* to) {
  for (Py_ssize_t i = 0; i < size; ++i) {
    std::uint64_t address = 0;
    if (!address_of(some[which ? static_cast<Py_ssize_t>((*which)[i]) : i], &address)) return false;
    if (offsets.size) address += offsets[i];
    std::memcpy(to + static_cast<std::size_t>(i) * sizeof address, &address, sizeof address);
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

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef kMethods[] = {{"stand", as_method(stand), METH_FASTCALL, nullptr},
                          {"values_stand", as_method(values_stand), METH_FASTCALL, nullptr},
                          {"gradients_are", as_method(gradients_are), METH_FASTCALL, nullptr},
                          {"calibrate", as_method(calibrate), METH_VARARGS, nullptr},
                          {"addresses", as_method(addresses), METH_FASTCALL, nullptr},
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
  kGrad = PyUnicode_InternFromString("grad");
  kRequiresGrad = PyUnicode_InternFromString("requires_grad");
  if (!kGrad || !kRequiresGrad) return nullptr;
  PyObject* const made = PyModule_Create(&kModule);
  if (made && PyModule_AddIntConstant(made, "version", 3) != 0) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}
