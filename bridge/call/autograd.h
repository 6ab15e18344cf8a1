// SPDX-License-Identifier: Apache-2.0
// Gradients and versions of tensors, asked of torch's C++ and set by it. For module.cpp, which
// chooses Python's API first.
// Ownership: keeps addresses of torch's functions, which live for ever. A gradient that it sets is
//            owned by the tensor whose it is, as where Python sets it.
// Threads:   any that holds the interpreter's lock.
// Failure:   no, where it cannot be told or done here; that is left to torch's Python.
// Edges:     the package finds functions by their whole names, where it knows what they do, and
//            compares what they say and leave with what torch's Python says. To let go of a
//            gradient may run Python's code: a finalizer's.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ahead.h"
#include "given.h"
#include "tensors.h"

namespace anabranch::call {

// Functions of C++ that the package has found by their whole names. `shared` is that pointer.
using RequiresGrad = bool (*)(const void* shared);  // c10::TensorImpl::requires_grad
using Grad = void* const* (*)(const void* shared);  // c10::TensorImpl::grad, a tensor of C++
using BumpVersion = void (*)(void* const* tensor);  // torch::autograd::impl::bump_version
using MutableGrad = void** (*)(void* shared);       // c10::TensorImpl::mutable_grad
// Of the stable C interface, which a pointer to a tensor of C++ is a handle for.
using Assign = std::int32_t (*)(void* const* from, void** to);  // aoti_torch_assign_tensors
using Delete = std::int32_t (*)(void* handle);                  // aoti_torch_delete_tensor_object
using Reinterpret = std::int32_t (*)(void* const* tensor, std::int64_t dims,  // and _reinterpret_
                                     const std::int64_t* sizes, const std::int64_t* strides,
                                     std::int64_t offset, void** handle);

// Null where torch has no such function, or says something else by it.
struct Autograd {
  RequiresGrad requires_grad = nullptr;
  Grad grad = nullptr;
  void* none = nullptr;  // what grad() answers where there is none
  BumpVersion bump_version = nullptr;
};
inline Autograd autograd;

// What sets gradients. Null as above.
struct Setters {
  MutableGrad mutable_grad = nullptr;
  Assign assign = nullptr;
  Reinterpret reinterpret = nullptr;
  Delete remove = nullptr;

  // The gradient that the copies of a tensor share.
  bool set(void* shared, void* const* to) const {
    try {
      return shared && assign(to, mutable_grad(shared)) == 0;
    } catch (...) {  // there is no memory for it
      return false;
    }
  }
};
inline Setters setters;

// Names of attributes, for ever.
inline PyObject* kGrad = nullptr;
inline PyObject* kRequiresGrad = nullptr;
inline PyObject* kIsLeaf = nullptr;

inline bool names_of_gradients_are_made() {
  kGrad = PyUnicode_InternFromString("grad");
  kRequiresGrad = PyUnicode_InternFromString("requires_grad");
  kIsLeaf = PyUnicode_InternFromString("is_leaf");
  return kGrad && kRequiresGrad && kIsLeaf;
}

// Whether an attribute is this object.
inline bool is_attribute(PyObject* thing, PyObject* name, PyObject* value) {
  PyObject* const found = PyObject_GetAttr(thing, name);
  Py_XDECREF(found);
  return found == value;
}

// Whether a tensor requires a gradient, and has none. `shared`: as in a Batch.
inline bool is_told(PyObject* tensor, void* shared, bool requires_grad, bool has_none) {
  if (shared && autograd.grad && is_ordinary(tensor)) {
    return autograd.requires_grad(shared) == requires_grad &&
           (*autograd.grad(shared) == autograd.none) == has_none;
  }
  return is_attribute(tensor, kRequiresGrad, requires_grad ? Py_True : Py_False) &&
         is_attribute(tensor, kGrad, Py_None) == has_none && !PyErr_Occurred();
}

// Whether each one's byte still says whether it requires a gradient (1) and whether it has none
// (2).
template <typename All>
inline bool are_told(const All& parameters, const char* told, Py_ssize_t size) {
  Batch some;
  for (Py_ssize_t begin = 0; begin < size; begin += some.size) {
    some.read(parameters, begin, size, nullptr);
    some.fetch_behind(kAutograd, {0, 128});
    for (Py_ssize_t i = 0; i < some.size; ++i) {
      const char is_so = told[begin + i];
      if (!some.things[i] ||
          !is_told(some.things[i], some.shared[i], (is_so & 1) != 0, (is_so & 2) != 0)) {
        return false;
      }
    }
  }
  return true;
}

// gradients_are(parameters, told): the same.
inline PyObject* gradients_are(PyObject*, PyObject* const* args, Py_ssize_t count) {
  char* told = nullptr;
  Py_ssize_t size = 0;
  if (count != 2 || PyBytes_AsStringAndSize(args[1], &told, &size)) return no();
  const Items parameters(args[0]);
  if (parameters.size() != size || !are_told(parameters, told, size)) return no();
  Py_RETURN_TRUE;
}

// learn_autograd(addresses of requires_grad, grad and bump_version, a tensor with a gradient, its
// gradient, a tensor without): whether gradients and versions are asked of these from now on; else
// of torch's Python. Addresses are all or none. After calibrate().
inline PyObject* learn_autograd(PyObject*, PyObject* args) {
  PyObject *owner = nullptr, *gradient = nullptr, *other = nullptr;
  unsigned long long requires_grad = 0, grad = 0, bump_version = 0;
  if (!PyArg_ParseTuple(args, "(KKK)OOO", &requires_grad, &grad, &bump_version, &owner, &gradient,
                        &other)) {
    return nullptr;
  }
  autograd = {};
  const bool are_there = requires_grad && grad && bump_version && tensors.offset;
  if (!are_there || !is_ordinary(owner) || !is_ordinary(gradient) || !is_ordinary(other)) {
    return no();
  }
  const auto grad_of = reinterpret_cast<Grad>(grad);
  void* const none = *grad_of(word_at(other, tensors.offset));
  void* const there = word_at(gradient, tensors.offset);
  if (none == there || *grad_of(word_at(owner, tensors.offset)) != there) return no();
  autograd = {reinterpret_cast<RequiresGrad>(requires_grad), grad_of, none,
              reinterpret_cast<BumpVersion>(bump_version)};
  Py_RETURN_TRUE;
}

// Whether each of the tensors with the numbers `which` has another version now. Some may have where
// the answer is no.
template <typename All>
inline bool are_incremented(const All& some, const Words& which) {
  if (!autograd.bump_version) return false;
  for (Py_ssize_t i = 0; i < which.size; ++i) {
    PyObject* const tensor = some[static_cast<Py_ssize_t>(which[i])];
    void* shared = is_tensor(tensor) ? word_at(tensor, tensors.offset) : nullptr;
    if (!shared) return false;
    try {
      autograd.bump_version(&shared);
    } catch (...) {  // it was made in inference mode, and has none
      return false;
    }
  }
  return true;
}

// increment_versions(tensors, which): the same; `which` are 8 bytes each.
inline PyObject* increment_versions(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Words which;
  if (count != 2 || !which.read(args[1]) || !are_incremented(Items(args[0]), which)) return no();
  Py_RETURN_TRUE;
}

// learn_setters(addresses of mutable_grad, assign_tensors, reinterpret_tensor and
// delete_tensor_object): gradients are let go of and set by these from now on; by none of them
// where one is 0. After learn_autograd().
inline PyObject* learn_setters(PyObject*, PyObject* args) {
  unsigned long long mutable_grad = 0, assign = 0, reinterpret = 0, remove = 0;
  if (!PyArg_ParseTuple(args, "KKKK", &mutable_grad, &assign, &reinterpret, &remove)) {
    return nullptr;
  }
  setters = {};
  if (!mutable_grad || !assign || !reinterpret || !remove || !autograd.grad) return no();
  setters = {reinterpret_cast<MutableGrad>(mutable_grad), reinterpret_cast<Assign>(assign),
             reinterpret_cast<Reinterpret>(reinterpret), reinterpret_cast<Delete>(remove)};
  Py_RETURN_TRUE;
}

// Whether the owners with these numbers have no gradient any more. Some may have none where the
// answer is no.
template <typename All>
inline bool are_let_go(const All& owners, const Words& which) {
  if (!setters.assign) return false;
  Batch some;
  for (Py_ssize_t begin = 0; begin < which.size; begin += some.size) {
    some.read(owners, begin, which.size, &which);
    some.fetch_behind(kAutograd, {0, 64});
    for (Py_ssize_t i = 0; i < some.size; ++i) {
      if (!is_ordinary(some.things[i]) || !setters.set(some.shared[i], &autograd.none))
        return false;
    }
  }
  return true;
}

// let_go_of_gradients(owners, which): the same; `which` are 8 bytes each.
inline PyObject* let_go_of_gradients(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Words which;
  if (count != 2 || !which.read(args[1]) || !are_let_go(Items(args[0]), which)) return no();
  Py_RETURN_TRUE;
}

// Whose gradient is to be which base, or a view of it: so many sizes, strides behind them, from
// this element on. No sizes: the base itself.
struct GradientRow {
  static constexpr Py_ssize_t kFixed = 4;
  std::int64_t owner, base, dims, offset;
  const std::int64_t* sizes;

  GradientRow(const Words& rows, Py_ssize_t at)
      : owner(static_cast<std::int64_t>(rows[at])),
        base(static_cast<std::int64_t>(rows[at + 1])),
        dims(static_cast<std::int64_t>(rows[at + 2])),
        offset(static_cast<std::int64_t>(rows[at + 3])),
        sizes(reinterpret_cast<const std::int64_t*>(rows.bytes) + at + kFixed) {}
  Py_ssize_t size() const { return kFixed + 2 * std::max<std::int64_t>(dims, 0); }

  template <typename All>
  bool set(const All& owners, const Items& bases) const {
    PyObject* const of = owners[owner];
    PyObject* const whole = bases[base];
    if (!is_ordinary(of) || !is_ordinary(whole)) return false;
    void* const shared = word_at(of, tensors.offset);
    void* const all = word_at(whole, tensors.offset);
    if (!all) return false;
    if (dims < 0) return setters.set(shared, &all);
    void* view = nullptr;  // a handle
    if (setters.reinterpret(&all, dims, sizes, sizes + dims, offset, &view) != 0) return false;
    const bool is_set = setters.set(shared, static_cast<void* const*>(view));
    setters.remove(view);
    return is_set;
  }
};

// Whether the gradients are what the rows say: 8 bytes a number, as in a GradientRow; -1 sizes: the
// base itself. Some may be where the answer is no.
template <typename All>
inline bool are_set(const All& owners, const Items& bases, const Words& rows) {
  if (!setters.assign) return false;
  for (Py_ssize_t at = 0; at < rows.size;) {
    if (rows.size - at < GradientRow::kFixed) return false;
    const GradientRow row(rows, at);
    at += row.size();
    if (at > rows.size || !row.set(owners, bases)) return false;
  }
  return true;
}

// set_gradients(owners, bases, rows): the same.
inline PyObject* set_gradients(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Words rows;
  if (count != 3 || !rows.read(args[2]) || !are_set(Items(args[0]), Items(args[1]), rows)) {
    return no();
  }
  Py_RETURN_TRUE;
}

}  // namespace anabranch::call
