// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.h"

namespace anabranch::tool {
namespace {

#if defined(__clang__)
constexpr std::string_view kBuiltBy = "clang " __clang_version__;
#else
constexpr std::string_view kBuiltBy = "gcc " __VERSION__;
#endif

struct Finding {
  std::string what;
  bool on = false;
  std::string detail;  // what it is; for what is off, why
};

// The first program of these names on the search path; empty: none.
std::string find_program(const std::vector<std::string>& names) {
  const char* variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "" : variable;
  for (const std::string& name : names) {
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find(':', begin), path.size());
      const auto file = std::filesystem::path(path.substr(begin, end - begin)) / name;
      if (access(file.c_str(), X_OK) == 0) return file.string();
      begin = end + 1;
    }
  }
  return {};
}

Finding find_compiler() {
  const std::string found = find_program({"c++", "g++", "clang++"});
  if (!found.empty()) return {"compiler", true, found};
  return {"compiler", false,
          "no c++, g++ or clang++ on PATH: regions of torch programs cannot be compiled"};
}

Finding find_host_device() {
  const unsigned cores = std::thread::hardware_concurrency();
  return {"device host", true, fmt::format("{} cores, device '{}'", cores, Device::host().name())};
}

std::vector<Finding> find_all() {
  return {{"library", true, fmt::format("anabranch {}, built by {}", ANABRANCH_VERSION, kBuiltBy)},
          find_compiler(),
          find_host_device(),
          {"device cuda", false, "not part of this version"},
          {"device sim", false, "not part of this version"}};
}

}  // namespace

std::string doctor(bool as_json) {
  const std::vector<Finding> findings = find_all();
  if (as_json) {
    nlohmann::ordered_json json;
    for (const Finding& finding : findings) {
      json[finding.what] = {{"on", finding.on}, {"detail", finding.detail}};
    }
    return json.dump(2) + "\n";
  }
  std::string text;
  for (const Finding& finding : findings) {
    fmt::format_to(std::back_inserter(text), "{:<12} {:<4} {}\n", finding.what,
                   finding.on ? "on" : "off", finding.detail);
  }
  return text;
}

}  // namespace anabranch::tool
