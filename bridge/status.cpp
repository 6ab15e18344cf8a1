// SPDX-License-Identifier: Apache-2.0
#include "anabranch/status.h"

#include "anabranch/version.h"

#include "handles.h"

namespace anabranch::bridge {
namespace {

thread_local std::int32_t last_code = 0;
thread_local std::string last_text;
thread_local std::string kept;

}  // namespace

std::int32_t fail(const Status& status) noexcept {
  last_code = static_cast<std::int32_t>(status.code());
  try {
    last_text = status.message();
  } catch (...) {
    last_text.clear();
  }
  return last_code;
}

const char* keep(std::string text) noexcept {
  kept = std::move(text);
  return kept.c_str();
}

}  // namespace anabranch::bridge

int32_t anabranch_last_error_code(void) { return anabranch::bridge::last_code; }
const char* anabranch_last_error_text(void) { return anabranch::bridge::last_text.c_str(); }
const char* anabranch_version(void) { return anabranch::kVersion.data(); }
