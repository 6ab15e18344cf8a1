// SPDX-License-Identifier: Apache-2.0
#include "page.h"

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "input.h"

namespace anabranch::tool {
namespace {

constexpr std::string_view kPlace = "@ANABRANCH_DATA@";  // once in page.html

// As JSON; what is no UTF-8 of a path becomes U+FFFD.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// No name can end the element that the data stands in. JSON has this sign in strings alone.
std::string without_tags(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string plan_page(const std::string& title, const Plan& plan) {
  const std::string data = fmt::format(
      R"({{"title":{0},"versions":{{"anabranch":"{1}"}},"graphs":[{{"name":"plan","plan":{2}}}]}})",
      quoted(title), kVersion, dump_plan_json(plan));
  std::string page(page_template());
  return page.replace(page.find(kPlace), kPlace.size(), without_tags(data));
}

Result<std::string> show_page(const std::string& path) {
  const Result<std::string> bytes = read_input(path);
  if (!bytes) return bytes.error();
  if (begins_like_json(*bytes)) {
    return Status(StatusCode::kFileMalformed,
                  fmt::format("'{}' is no plan file, of which pages are made. "
                              "https://ui.perfetto.dev opens traces.",
                              printable_text(path)));
  }
  const Result<Plan> plan = read_plan_bytes(path, *bytes);
  if (!plan) return plan.error();
  return plan_page(path == "-" ? "a plan" : path, *plan);
}

}  // namespace anabranch::tool
