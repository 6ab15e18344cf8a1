// SPDX-License-Identifier: Apache-2.0
#include "anabranch/experimental/tape.h"

#include <algorithm>
#include <utility>

#include "handles.h"

namespace ab = anabranch;

namespace {

template <typename Function>
void resolve(Function& to, void* from) {
  to = reinterpret_cast<Function>(from);
}

ab::tape::TensorLibrary library_of(const AnabranchTensorLibrary& given) {
  ab::tape::TensorLibrary library;
  resolve(library.create_view, given.create_view);
  resolve(library.delete_tensor, given.delete_tensor);
  resolve(library.new_handle, given.new_handle);
  resolve(library.data_pointer, given.data_pointer);
  resolve(library.strides, given.strides);
  resolve(library.copy, given.copy);
  resolve(library.dispatch, given.dispatch);
  resolve(library.new_list, given.new_list);
  resolve(library.list_push, given.list_push);
  resolve(library.delete_list, given.delete_list);
  resolve(library.last_error, given.last_error);
  library.version = given.version;
  library.device_type = given.device_type;
  library.layout = given.layout;
  return library;
}

void add_argument(AnabranchTapeBuilder* tape, ab::tape::Argument argument) {
  ab::bridge::tell(tape, [&] { tape->arguments.push_back(std::move(argument)); });
}

void add_value(AnabranchTapeBuilder* tape, ab::tape::Value value) {
  ab::bridge::tell(tape, [&] { tape->open.back().items.push_back(std::move(value)); });
}

void open_value(AnabranchTapeBuilder* tape, ab::tape::Value::Kind kind) {
  ab::bridge::tell(tape, [&] { tape->open.emplace_back().kind = kind; });
}

uint32_t number_of(ab::tape::Register reg) { return static_cast<uint32_t>(reg); }

int32_t run_region(void* context, const ab::RegionCall* call) {
  return static_cast<AnabranchTape*>(context)->tape->run(*call);
}

}  // namespace

AnabranchTapeBuilder* anabranch_tape_builder_new(const AnabranchTensorLibrary* library) {
  return ab::bridge::guard([&] {
    return new AnabranchTapeBuilder(library ? library_of(*library) : ab::tape::TensorLibrary{});
  });
}

void anabranch_tape_builder_free(AnabranchTapeBuilder* tape) { delete tape; }

uint32_t anabranch_tape_view(AnabranchTapeBuilder* tape, uint32_t access, uint64_t offset_bytes,
                             int32_t dtype, size_t dims, const int64_t* sizes,
                             const int64_t* strides) {
  return ab::bridge::tell(tape, [&] {
    return number_of(
        tape->builder.view({access, offset_bytes}, dtype, {sizes, dims}, {strides, dims}));
  });
}

uint32_t anabranch_tape_view_of(AnabranchTapeBuilder* tape, uint32_t base, uint64_t offset_bytes,
                                int32_t dtype, size_t dims, const int64_t* sizes,
                                const int64_t* strides) {
  return ab::bridge::tell(tape, [&] {
    return number_of(tape->builder.view_of(ab::tape::Register(base), offset_bytes, dtype,
                                           {sizes, dims}, {strides, dims}));
  });
}

void anabranch_tape_add_int(AnabranchTapeBuilder* tape, int64_t value) {
  add_argument(tape, value);
}
void anabranch_tape_add_double(AnabranchTapeBuilder* tape, double value) {
  add_argument(tape, value);
}
void anabranch_tape_add_address(AnabranchTapeBuilder* tape, uint32_t access,
                                uint64_t offset_bytes) {
  add_argument(tape, ab::tape::Address{access, offset_bytes});
}
void anabranch_tape_add_data(AnabranchTapeBuilder* tape, uint32_t from) {
  add_argument(tape, ab::tape::DataOf{ab::tape::Register(from)});
}
void anabranch_tape_add_handle(AnabranchTapeBuilder* tape, uint32_t from) {
  add_argument(tape, ab::tape::HandleOf{ab::tape::Register(from)});
}
void anabranch_tape_add_ints(AnabranchTapeBuilder* tape, const int64_t* values, size_t count) {
  ab::bridge::tell(tape, [&] {
    tape->arguments.push_back(ab::tape::Integers{{values, values + count}});
  });
}

void anabranch_tape_call(AnabranchTapeBuilder* tape, const char* name, void* function,
                         int32_t fallible) {
  ab::bridge::tell(tape, [&] {
    tape->builder.call(name, function, std::exchange(tape->arguments, {}), fallible != 0);
  });
}

void anabranch_tape_value_none(AnabranchTapeBuilder* tape) { add_value(tape, {}); }
void anabranch_tape_value_int(AnabranchTapeBuilder* tape, int64_t value) {
  ab::tape::Value made;
  made.kind = ab::tape::Value::Kind::kInt;
  made.integer = value;
  add_value(tape, std::move(made));
}
void anabranch_tape_value_double(AnabranchTapeBuilder* tape, double value) {
  ab::tape::Value made;
  made.kind = ab::tape::Value::Kind::kDouble;
  made.real = value;
  add_value(tape, std::move(made));
}
void anabranch_tape_value_tensor(AnabranchTapeBuilder* tape, uint32_t reg) {
  ab::tape::Value made;
  made.kind = ab::tape::Value::Kind::kTensor;
  made.tensor = ab::tape::Register(reg);
  add_value(tape, std::move(made));
}

void anabranch_tape_open_list(AnabranchTapeBuilder* tape) {
  open_value(tape, ab::tape::Value::Kind::kList);
}
void anabranch_tape_open_some(AnabranchTapeBuilder* tape) {
  open_value(tape, ab::tape::Value::Kind::kSome);
}
void anabranch_tape_close(AnabranchTapeBuilder* tape) {
  if (tape->open.size() < 2) return;
  ab::tape::Value value = std::move(tape->open.back());
  tape->open.pop_back();
  add_value(tape, std::move(value));
}

void anabranch_tape_dispatch(AnabranchTapeBuilder* tape, const char* op, const char* overload,
                             uint32_t results, uint32_t* out) {
  ab::bridge::tell(tape, [&] {
    auto values = std::exchange(tape->open.front().items, {});
    tape->open.resize(1);
    std::ranges::transform(tape->builder.dispatch(op, overload, std::move(values), results), out,
                           number_of);
  });
}

void anabranch_tape_expect(AnabranchTapeBuilder* tape, uint32_t reg, size_t dims,
                           const int64_t* sizes, const int64_t* strides) {
  ab::bridge::tell(tape, [&] {
    tape->builder.expect(ab::tape::Register(reg), {sizes, dims}, {strides, dims});
  });
}

void anabranch_tape_copy(AnabranchTapeBuilder* tape, uint32_t to, uint32_t from) {
  ab::bridge::tell(tape,
                   [&] { tape->builder.copy(ab::tape::Register(to), ab::tape::Register(from)); });
}

void anabranch_tape_release(AnabranchTapeBuilder* tape, uint32_t reg) {
  ab::bridge::tell(tape, [&] { tape->builder.release(ab::tape::Register(reg)); });
}

AnabranchTape* anabranch_tape_finish(AnabranchTapeBuilder* tape) {
  return ab::bridge::guard([&] {
    if (tape->broken) return ab::bridge::refuse<AnabranchTape>(ab::bridge::broken_builder());
    return ab::bridge::handle_of<AnabranchTape>(tape->builder.finish());
  });
}

void anabranch_tape_free(AnabranchTape* tape) { delete tape; }

const char* anabranch_tape_dump(const AnabranchTape* tape) {
  return ab::bridge::guard([&] { return ab::bridge::keep(tape->tape->dump()); });
}

void* anabranch_tape_region_function(void) { return reinterpret_cast<void*>(&run_region); }

int32_t anabranch_tape_run(AnabranchTape* tape, void* const* buffers, uint32_t count, char* error,
                           uint32_t error_bytes) {
  return tape->tape->run({buffers, count, error, error_bytes});
}
