// SPDX-License-Identifier: Apache-2.0
// The launch of a recording: the addresses that it is given, and memory for as long as it is
// queued. For module.cpp, which chooses Python's API first. Ownership: a Launch copies its numbers;
// memory that it takes it gives back when it has been
//            queued, and the allocator knows by the stream when it is free.
// Threads:   any that holds the interpreter's lock, which is free while the function runs.
// Failure:   a Refusal where nothing was launched.
// Edges:     the count of swaps is read right before the addresses, and nothing of Python's runs
//            in between.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ahead.h"
#include "given.h"
#include "tensors.h"

namespace anabranch::call {

inline PyObject* kCount = nullptr;  // the name of the attribute, for ever

// Into 8 bytes for each; false where one cannot be told.
template <typename All>
inline bool write_addresses(const All& all, Py_ssize_t size, const Words& offsets,
                            const Words* which, char* to) {
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

// aoti_torch_cuda_caching_allocator_raw_alloc and _raw_delete of torch's stable C interface: on the
// current device and stream. Not 0: there is no memory.
using Allocate = std::int32_t (*)(std::uint64_t bytes, void** address);
using Free = std::int32_t (*)(void* address);

// Memory for one launch; the allocator knows by the stream when it is free.
class Allocated {
 public:
  Allocated(Allocate allocate, Free free) : allocate_(allocate), free_(free) {}
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

// Whether no other thread's capture has swapped the memory of tensors: the count is even.
inline bool is_undisturbed(PyObject* swaps) {
  PyObject* const count = PyObject_GetAttr(swaps, kCount);
  const bool is_even = count && PyLong_AsLong(count) % 2 == 0 && !PyErr_Occurred();
  Py_XDECREF(count);
  return is_even;
}

// anabranch_captured_launch.
using LaunchFunction = std::int32_t (*)(void* recording, const void* addresses, std::uint32_t count,
                                        void* stream);

// What a launch answers where nothing has been launched: an address is not told here, a capture has
// swapped memory, there is none, or Python has raised.
inline constexpr std::int32_t kNotTold = -1;

// What is the same in all launches of a recording.
struct Launch {
  LaunchFunction function = nullptr;
  void* recording = nullptr;
  PyObject* swaps = nullptr;  // owned
  OwnWords given;             // of what is given, the numbers of those whose addresses come first
  OwnWords bases, offsets;    // behind them, those of bases, and what is added to each
  OwnWords sizes;             // of memory for as long as it is queued, behind these
  Allocate allocate = nullptr;
  Free free = nullptr;

  // 0, or what the function refuses with, or kNotTold. `which`: the numbers of `given`, among
  // `all`; `added` is added to their addresses, if there is anything. `before` is called when all
  // that can be refused here has been.
  template <typename All>
  std::int32_t queue(const All& all, const Words& which, const Words& added, const Items& fresh,
                     const Items& words, PyObject* before, void* stream) const {
    if (!function || !tensors.offset || words.size() < 0) return kNotTold;
    Allocated parts(allocate, free);
    if (!parts.take(sizes.view()) || !is_undisturbed(swaps)) return kNotTold;
    const std::size_t first = given.size(), second = first + bases.size();
    const std::size_t third = second + static_cast<std::size_t>(parts.size());
    std::vector<std::uint64_t> told(third + static_cast<std::size_t>(words.size()));
    const auto at = [&told](std::size_t i) { return reinterpret_cast<char*>(told.data() + i); };
    const Words of_bases = bases.view();
    if (!write_addresses(all, which.size, added, &which, at(0)) ||
        !write_addresses(fresh, of_bases.size, offsets.view(), &of_bases, at(first))) {
      return kNotTold;
    }
    parts.write(at(second));
    for (Py_ssize_t i = 0; i < words.size(); ++i) {
      told[third + static_cast<std::size_t>(i)] = PyLong_AsUnsignedLongLong(words[i]);
    }
    if (PyErr_Occurred()) return kNotTold;
    if (before && before != Py_None) {
      PyObject* const done = PyObject_CallNoArgs(before);
      Py_XDECREF(done);
      if (!done) return kNotTold;
    }
    std::int32_t code = 0;
    Py_BEGIN_ALLOW_THREADS;
    code = function(recording, told.data(), static_cast<std::uint32_t>(told.size()), stream);
    Py_END_ALLOW_THREADS;
    return code;
  }
};

}  // namespace anabranch::call
