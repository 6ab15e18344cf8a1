// SPDX-License-Identifier: Apache-2.0
#include "device/host/tape_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace anabranch::tape {
namespace {

constexpr std::int32_t kFailed = 1;
constexpr int kLineBytes = 120;  // of a line in an error text, so that the reason has room

template <std::size_t size, typename... Args>
std::string_view print(char (&text)[size], fmt::format_string<Args...> format, Args&&... args) {
  const auto end = fmt::format_to_n(text, size, format, std::forward<Args>(args)...);
  return {text, std::min(end.size, size)};
}

}  // namespace

TapeData::~TapeData() {
  for (std::uint32_t i = 0; i < registers.size(); ++i) drop(Register{i});
}

std::int32_t TapeData::run(const RegionCall& call) {
  std::int32_t code = 0;
  why_ = {};
  try {
    code = bind(call);
    if (code == 0) code = replay();
  } catch (const std::exception& error) {
    code = kFailed;
    why_ = print(text_, "it threw: {}", error.what());
  } catch (...) {
    code = kFailed;
    why_ = "it threw something that is no std::exception";
  }
  if (code != 0) tell(call, code);
  for (const Register reg : passing) drop(reg);
  return code;
}

std::int32_t TapeData::bind(const RegionCall& call) {
  line_ = static_cast<std::uint32_t>(lines.size());
  if (call.buffer_count < buffers.size()) {
    why_ = print(text_, "the step has {} buffers, and its calls name {}", call.buffer_count,
                 buffers.size());
    return kFailed;
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto address = reinterpret_cast<Word>(call.buffers[i]);
    if (buffers[i].bound == address) continue;
    if (const std::int32_t code = bind_buffer(buffers[i], address)) return code;
  }
  return 0;
}

std::int32_t TapeData::bind_buffer(BufferSites& buffer, Word address) {
  buffer.bound = ~Word{0};  // a failure half way leaves nothing that looks bound
  for (const AddressSite& site : buffer.addresses) words[site.word] = address + site.offset_bytes;
  for (const BufferView& view : buffer.views) {
    line_ = view.line;
    if (const std::int32_t code = make_view(view.to, view.shape, address + view.offset_bytes)) {
      return code;
    }
  }
  buffer.bound = address;
  return 0;
}

std::int32_t TapeData::replay() {
  for (const Operation& operation : operations) {
    line_ = operation.line;
    std::int32_t code = 0;
    if (const auto* plain = std::get_if<PlainCall>(&operation.what)) {
      code = plain->form(plain->function, &words[plain->first_word],
                         doubles.data() + plain->first_double);
      if (!plain->fallible) continue;
    } else {
      code = perform(operation);
    }
    if (code != 0) return code;
  }
  return 0;
}

std::int32_t TapeData::perform(const Operation& operation) {
  if (const auto* release = std::get_if<Release>(&operation.what)) {
    drop(release->reg);
    return 0;
  }
  if (const auto* view = std::get_if<std::unique_ptr<ViewOf>>(&operation.what)) {
    return perform(**view);
  }
  if (const auto* expect = std::get_if<std::unique_ptr<Expect>>(&operation.what)) {
    return perform(**expect);
  }
  return perform(*std::get<std::unique_ptr<Dispatch>>(operation.what));
}

std::int32_t TapeData::perform(const Dispatch& dispatch) {
  std::int32_t code = boxed.encode(library, dispatch.arguments, registers, stack.data());
  if (code != 0) return code;
  code = library.dispatch(dispatch.op.c_str(), dispatch.overload.c_str(), stack.data(),
                          library.version);
  if (code != 0) return code;  // the library has taken the arguments all the same
  // All results are ours before anything else can fail.
  for (std::size_t i = 0; i < dispatch.results.size(); ++i) {
    tensor(dispatch.results[i]) = reinterpret_cast<Handle>(stack[i]);
  }
  for (const Register result : dispatch.results) {
    if ((code = write_sites(result)) != 0) return code;
  }
  return 0;
}

std::int32_t TapeData::perform(const ViewOf& view) {
  void* data = nullptr;
  if (const std::int32_t code = library.data_pointer(tensor(view.base), &data)) return code;
  return make_view(view.to, view.shape, reinterpret_cast<Word>(data) + view.offset_bytes);
}

std::int32_t TapeData::perform(const Expect& expect) {
  std::int64_t* strides = nullptr;
  if (const std::int32_t code = library.strides(tensor(expect.reg), &strides)) return code;
  const Shape& shape = expect.shape;
  for (std::size_t i = 0; i < shape.sizes.size(); ++i) {
    if (shape.sizes[i] <= 1 || strides[i] == shape.strides[i]) continue;
    why_ = print(text_, "dim {} came with stride {}, and the code after it was compiled for {}", i,
                 strides[i], shape.strides[i]);
    return kFailed;
  }
  return 0;
}

std::int32_t TapeData::make_view(Register to, const Shape& shape, Word address) {
  drop(to);
  const std::int32_t code = library.create_view(
      reinterpret_cast<void*>(address), static_cast<std::int64_t>(shape.sizes.size()),
      shape.sizes.data(), shape.strides.data(), 0, shape.dtype, library.device_type, 0, &tensor(to),
      library.layout, nullptr, 0);
  return code != 0 ? code : write_sites(to);
}

std::int32_t TapeData::write_sites(Register reg) {
  const RegisterSites& sites = register_sites[static_cast<std::uint32_t>(reg)];
  for (const std::uint32_t word : sites.handles) words[word] = reinterpret_cast<Word>(tensor(reg));
  if (sites.data.empty()) return 0;
  void* data = nullptr;
  if (const std::int32_t code = library.data_pointer(tensor(reg), &data)) return code;
  for (const std::uint32_t word : sites.data) words[word] = reinterpret_cast<Word>(data);
  return 0;
}

void TapeData::drop(Register reg) {
  if (Handle& handle = tensor(reg)) library.delete_tensor(std::exchange(handle, nullptr));
}

void TapeData::tell(const RegionCall& call, std::int32_t code) const {
  if (call.error == nullptr || call.error_bytes == 0) return;
  std::string_view why = why_;
  if (why.empty() && library.last_error != nullptr) {
    if (const char* words_of_library = library.last_error()) why = words_of_library;
  }
  const std::string_view line = line_ < lines.size() ? lines[line_] : std::string_view("tape");
  const std::size_t room = call.error_bytes - 1;
  const auto end =
      why.empty()
          ? fmt::format_to_n(call.error, room, "{:.{}}: it answered {}", line, kLineBytes, code)
          : fmt::format_to_n(call.error, room, "{:.{}}: {}", line, kLineBytes, why);
  *end.out = '\0';
}

}  // namespace anabranch::tape
