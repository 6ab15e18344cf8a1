// SPDX-License-Identifier: Apache-2.0
#include "anabranch/experimental/tape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "device/host/tape_data.h"

namespace anabranch::tape {
namespace {

std::uint32_t number_of(Register reg) { return static_cast<std::uint32_t>(reg); }

std::string text_of(Register reg) { return fmt::format("r{}", number_of(reg)); }
std::string text_of(Address at) { return fmt::format("b{}+{}", at.access, at.offset_bytes); }
std::string text_of(std::int64_t value) { return fmt::format("{}", value); }
std::string text_of(double value) { return fmt::format("{:#}", value); }
std::string text_of(DataOf data) { return fmt::format("data({})", text_of(data.from)); }
std::string text_of(HandleOf handle) { return text_of(handle.from); }
std::string text_of(const Integers& numbers) {
  return fmt::format("[{}]", fmt::join(numbers.values, ", "));
}
std::string text_of(const Argument& argument) {
  return std::visit([](const auto& known) { return text_of(known); }, argument);
}
std::string text_of(const Value& value);

template <typename T>
std::string list_of(const std::vector<T>& things) {
  std::vector<std::string> texts;
  for (const T& thing : things) texts.push_back(text_of(thing));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string text_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNone:
      return "none";
    case Value::Kind::kInt:
      return text_of(value.integer);
    case Value::Kind::kDouble:
      return text_of(value.real);
    case Value::Kind::kTensor:
      return text_of(value.tensor);
    case Value::Kind::kList:
      return fmt::format("[{}]", list_of(value.items));
    case Value::Kind::kSome:
      return fmt::format("some({})", list_of(value.items));
  }
  return {};
}

std::string text_of(const Shape& shape) {
  return fmt::format("dtype {}, sizes [{}], strides [{}]", shape.dtype,
                     fmt::join(shape.sizes, ", "), fmt::join(shape.strides, ", "));
}

Shape shape_of(std::int32_t dtype, std::span<const std::int64_t> sizes,
               std::span<const std::int64_t> strides) {
  return {dtype, {sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}};
}

}  // namespace

// ---- the tape

struct Tape::Data : TapeData {
  using TapeData::TapeData;
};

Tape::Tape(std::unique_ptr<Data> data) : data_(std::move(data)) {}
Tape::~Tape() = default;

std::int32_t Tape::run(const RegionCall& call) { return data_->run(call); }

std::int32_t Tape::run_region(void* tape, const RegionCall* call) {
  return static_cast<Tape*>(tape)->run(*call);
}

std::size_t Tape::call_count() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(data_->operations, [](const Operation& operation) {
        return std::holds_alternative<PlainCall>(operation.what) ||
               std::holds_alternative<std::unique_ptr<Dispatch>>(operation.what);
      }));
}

std::string Tape::dump() const {
  return fmt::format("{}{}", fmt::join(data_->lines, "\n"), data_->lines.empty() ? "" : "\n");
}

// ---- the builder

struct TapeBuilder::Data {
  explicit Data(const TensorLibrary& tensors)
      : tape(std::make_unique<Tape::Data>(tensors)), library(tape->library) {}

  // What is known of a register while the tape is built.
  struct Known {
    bool released = false;
    Register base{};  // of view_of; else the register itself
  };

  std::unique_ptr<Tape::Data> tape;
  const TensorLibrary& library;
  std::vector<Known> known;
  std::vector<std::string> errors;

  template <typename... Args>
  void refuse(fmt::format_string<Args...> format, Args&&... args) {
    errors.push_back(
        fmt::format("tape: line {} '{}' ", tape->lines.size() - 1, tape->lines.back()) +
        fmt::format(format, std::forward<Args>(args)...));
  }

  std::uint32_t add_line(std::string line) {
    tape->lines.push_back(std::move(line));
    return static_cast<std::uint32_t>(tape->lines.size() - 1);
  }

  template <typename What>
  void add_operation(What what) {
    tape->operations.push_back(
        {static_cast<std::uint32_t>(tape->lines.size() - 1), std::move(what)});
  }

  Register next_register() const {
    return Register{static_cast<std::uint32_t>(tape->registers.size())};
  }

  Register add_register() {
    const Register reg = next_register();
    tape->registers.push_back(nullptr);
    tape->register_sites.emplace_back();
    known.push_back({.base = reg});
    return reg;
  }

  Register add_passing_register() {
    tape->passing.push_back(next_register());
    return add_register();
  }

  void need(const void* function, std::string_view name) {
    if (function != nullptr) return;
    refuse("needs the tensor library's {}, which is null: give it to the TapeBuilder.", name);
  }

  // Whether a call may name it: it was made before and is not released.
  bool check_register(Register reg) {
    if (number_of(reg) >= known.size()) {
      refuse("names {}, and there are {} registers.", text_of(reg), known.size());
      return false;
    }
    const Known& state = known[number_of(reg)];
    if (!state.released && !known[number_of(state.base)].released) return true;
    const Register gone = state.released ? reg : state.base;
    refuse("names {} after the release of {}: release it later.", text_of(reg), text_of(gone));
    return false;
  }

  void check_shape(const Shape& shape) {
    const auto negative = [](std::int64_t size) { return size < 0; };
    if (shape.sizes.size() != shape.strides.size() || std::ranges::any_of(shape.sizes, negative)) {
      refuse("has {} sizes and {} strides: there must be as many, and no size below 0.",
             shape.sizes.size(), shape.strides.size());
    }
  }

  void check_value(const Value& value) {
    if (value.kind == Value::Kind::kTensor) {
      check_register(value.tensor);
      need(reinterpret_cast<void*>(library.new_handle), "new_handle");
    }
    if (value.kind == Value::Kind::kList) {
      need(reinterpret_cast<void*>(library.new_list), "new_list");
      need(reinterpret_cast<void*>(library.list_push), "list_push");
      need(reinterpret_cast<void*>(library.delete_list), "delete_list");
    }
    if (value.kind == Value::Kind::kSome && value.items.size() != 1) {
      refuse("has an optional of {} values: it holds 1.", value.items.size());
    }
    for (const Value& item : value.items) check_value(item);
  }

  BufferSites* find_buffer(std::uint32_t access) {
    if (access >= kMaxTapeAccesses) {
      refuse("names access {}: a tape serves accesses below {}.", access, kMaxTapeAccesses);
      return nullptr;
    }
    if (access >= tape->buffers.size()) tape->buffers.resize(access + 1);
    return &tape->buffers[access];
  }

  // The word as it stands before a run; what can change is entered as a site of `position`.
  Word add_word(Argument& argument, std::uint32_t position) {
    if (const auto* number = std::get_if<std::int64_t>(&argument)) {
      return static_cast<Word>(*number);
    }
    if (auto* numbers = std::get_if<Integers>(&argument)) {
      tape->integers.push_back(std::move(numbers->values));
      return reinterpret_cast<Word>(tape->integers.back().data());
    }
    if (const auto* at = std::get_if<Address>(&argument)) {
      if (auto* buffer = find_buffer(at->access)) {
        buffer->addresses.push_back({position, at->offset_bytes});
      }
    } else if (const auto* handle = std::get_if<HandleOf>(&argument)) {
      if (check_register(handle->from)) sites_of(handle->from).handles.push_back(position);
    } else if (const auto* data = std::get_if<DataOf>(&argument)) {
      need(reinterpret_cast<void*>(library.data_pointer), "data_pointer");
      if (check_register(data->from)) sites_of(data->from).data.push_back(position);
    }
    return 0;
  }

  RegisterSites& sites_of(Register reg) { return tape->register_sites[number_of(reg)]; }

  void add_call(void* function, std::vector<Argument> arguments, bool fallible) {
    PlainCall call{nullptr, function, static_cast<std::uint32_t>(tape->words.size()),
                   static_cast<std::uint32_t>(tape->doubles.size()), fallible};
    std::size_t words = 0;
    for (Argument& argument : arguments) {
      if (const auto* real = std::get_if<double>(&argument)) {
        tape->doubles.push_back(*real);
        continue;
      }
      const auto position = static_cast<std::uint32_t>(tape->words.size());
      tape->words.push_back(add_word(argument, position));
      ++words;
    }
    const std::size_t doubles = arguments.size() - words;
    if (const CallForm* form = find_call_form(words, doubles)) {
      call.form = form->call;
      tape->words.resize(call.first_word + form->words);
      tape->doubles.resize(call.first_double + form->doubles);
    } else {
      refuse(
          "passes {} words and {} doubles: at most {} words, or {} words with {} doubles, can be "
          "passed whatever the signature.",
          words, doubles, kMaxWordArguments, kRegisterWords, kMaxDoubleArguments);
    }
    if (function == nullptr) refuse("calls a null function.");
    add_operation(call);
  }
};

TapeBuilder::TapeBuilder(TensorLibrary library) : data_(std::make_unique<Data>(library)) {}
TapeBuilder::~TapeBuilder() = default;
TapeBuilder::TapeBuilder(TapeBuilder&&) noexcept = default;

Register TapeBuilder::view(Address at, std::int32_t dtype, std::span<const std::int64_t> sizes,
                           std::span<const std::int64_t> strides) {
  BufferView view{0, data_->next_register(), at.offset_bytes, shape_of(dtype, sizes, strides)};
  view.line = data_->add_line(
      fmt::format("{} = view of {}, {}", text_of(view.to), text_of(at), text_of(view.shape)));
  data_->need(reinterpret_cast<void*>(data_->library.create_view), "create_view");
  data_->need(reinterpret_cast<void*>(data_->library.delete_tensor), "delete_tensor");
  data_->check_shape(view.shape);
  if (auto* buffer = data_->find_buffer(at.access)) buffer->views.push_back(std::move(view));
  return data_->add_register();
}

Register TapeBuilder::view_of(Register base, std::uint64_t offset_bytes, std::int32_t dtype,
                              std::span<const std::int64_t> sizes,
                              std::span<const std::int64_t> strides) {
  auto view = std::make_unique<ViewOf>(
      ViewOf{data_->next_register(), base, offset_bytes, shape_of(dtype, sizes, strides)});
  data_->add_line(fmt::format("{} = view of data({})+{}, {}", text_of(view->to), text_of(base),
                              offset_bytes, text_of(view->shape)));
  data_->need(reinterpret_cast<void*>(data_->library.create_view), "create_view");
  data_->need(reinterpret_cast<void*>(data_->library.data_pointer), "data_pointer");
  data_->check_shape(view->shape);
  const bool valid = data_->check_register(base);
  data_->add_operation(std::move(view));
  const Register reg = data_->add_passing_register();
  if (valid) data_->known.back().base = data_->known[number_of(base)].base;
  return reg;
}

void TapeBuilder::call(std::string name, void* function, std::vector<Argument> arguments,
                       bool fallible) {
  data_->add_line(fmt::format("{}({})", name, list_of(arguments)));
  data_->add_call(function, std::move(arguments), fallible);
}

std::vector<Register> TapeBuilder::dispatch(std::string op, std::string overload,
                                            std::vector<Value> arguments, std::uint32_t results) {
  auto dispatch = std::make_unique<Dispatch>();
  for (std::uint32_t i = 0; i < results; ++i) {
    dispatch->results.push_back(Register{number_of(data_->next_register()) + i});
  }
  data_->add_line(fmt::format("{}{}{}{}{}({})", list_of(dispatch->results),
                              results == 0 ? "" : " = ", op, overload.empty() ? "" : ".", overload,
                              list_of(arguments)));
  data_->need(reinterpret_cast<void*>(data_->library.dispatch), "dispatch");
  data_->need(reinterpret_cast<void*>(data_->library.delete_tensor), "delete_tensor");
  for (const Value& value : arguments) data_->check_value(value);
  for (std::uint32_t i = 0; i < results; ++i) data_->add_passing_register();
  auto& stack = data_->tape->stack;
  stack.resize(std::max({stack.size(), arguments.size(), dispatch->results.size()}));
  data_->tape->boxed.reserve(arguments);
  dispatch->op = std::move(op);
  dispatch->overload = std::move(overload);
  dispatch->arguments = std::move(arguments);
  auto registers = dispatch->results;
  data_->add_operation(std::move(dispatch));
  return registers;
}

void TapeBuilder::expect(Register reg, std::span<const std::int64_t> sizes,
                         std::span<const std::int64_t> strides) {
  auto expect = std::make_unique<Expect>(Expect{reg, shape_of(0, sizes, strides)});
  data_->add_line(fmt::format("expect {}: sizes [{}], strides [{}]", text_of(reg),
                              fmt::join(sizes, ", "), fmt::join(strides, ", ")));
  data_->need(reinterpret_cast<void*>(data_->library.strides), "strides");
  data_->check_shape(expect->shape);
  data_->check_register(reg);
  data_->add_operation(std::move(expect));
}

void TapeBuilder::copy(Register to, Register from) {
  data_->add_line(fmt::format("copy({}, {})", text_of(to), text_of(from)));
  data_->add_call(reinterpret_cast<void*>(data_->library.copy),
                  {HandleOf{to}, HandleOf{from}, std::int64_t{0}}, true);
}

void TapeBuilder::release(Register reg) {
  data_->add_line(fmt::format("release {}", text_of(reg)));
  if (!data_->check_register(reg)) return;
  data_->known[number_of(reg)].released = true;
  if (std::ranges::count(data_->tape->passing, reg) != 0) data_->add_operation(Release{reg});
}

Result<std::unique_ptr<Tape>> TapeBuilder::finish() {
  const auto done = std::exchange(data_, std::make_unique<Data>(data_->library));
  if (!done->errors.empty()) {
    return Status(StatusCode::kTapeInvalid, fmt::format("{}", fmt::join(done->errors, "\n")));
  }
  return std::unique_ptr<Tape>(new Tape(std::move(done->tape)));
}

}  // namespace anabranch::tape
