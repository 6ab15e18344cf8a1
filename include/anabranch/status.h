// SPDX-License-Identifier: Apache-2.0
// Status and Result: how every room says that something went wrong.
// Ownership: values; a Status owns its text.
// Threads:   immutable once made, so free to share.
// Failure:   nothing here throws except when memory for the text runs out.
// Edges:     a default Status is ok; reading the value of a failed Result is a programming error.
#pragma once

#include <cassert>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "anabranch/export.h"

namespace anabranch {

// Every code has a section in docs/errors.md; a test keeps the list and the page in step.
// 01xx program, 02xx plan, 03xx record, 04xx launch, 05xx plan file, 06xx trace.
enum class StatusCode : std::uint16_t {
  kOk = 0,
#define ANABRANCH_CODE(name, number, meaning) name = number,
#include "anabranch/codes.inc"
#undef ANABRANCH_CODE
};

// "E0103", as it stands at the end of each message.
ANABRANCH_API std::string code_text(StatusCode code);
// The one-line meaning from codes.inc; empty for an unknown number.
ANABRANCH_API std::string_view code_meaning(StatusCode code);

// Text from outside, a name in a plan say, as it may stand in one line on a terminal: what would
// steer the terminal, end the line or turn its direction, and bytes that are no UTF-8, as "\x1b",
// "\n",
// "\u202e". Everything that this library writes for people holds names in this form.
ANABRANCH_API std::string printable_text(std::string_view text);

class [[nodiscard]] Status {
 public:
  Status() = default;
  // `message` names the act, the thing, both values and the way out; the code is appended to it.
  // May have several lines; each is kept as printable_text().
  ANABRANCH_API Status(StatusCode code, std::string message);

  bool ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return ok(); }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// The message; "ok" where there is none.
ANABRANCH_API std::ostream& operator<<(std::ostream& out, const Status& status);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status error) : state_(std::in_place_index<1>, std::move(error)) {
    assert(!std::get<1>(state_).ok());
  }

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Status& error() const { return std::get<1>(state_); }
  // The value, or this one if there is an error.
  template <typename U>
  T value_or(U&& other) const& {
    return ok() ? **this : static_cast<T>(std::forward<U>(other));
  }
  template <typename U>
  T value_or(U&& other) && {
    return ok() ? *std::move(*this) : static_cast<T>(std::forward<U>(other));
  }

 private:
  std::variant<T, Status> state_;
};

}  // namespace anabranch
