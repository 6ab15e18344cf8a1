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

// The first of these names that a program on the search path has; empty: none. Where that lies may
// be private, and reports are shown to others.
std::string find_program(const std::vector<std::string>& names) {
  const char* variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "" : variable;
  for (const std::string& name : names) {
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find(':', begin), path.size());
      const auto file = std::filesystem::path(path.substr(begin, end - begin)) / name;
      if (access(file.c_str(), X_OK) == 0) return name;
      begin = end + 1;
    }
  }
  return {};
}

Finding find_compiler() {
  const std::string found = find_program({"c++", "g++", "clang++"});
  if (!found.empty()) return {"compiler", true, found + " on PATH"};
  return {"compiler", false,
          "no c++, g++ or clang++ on PATH: regions of torch programs cannot be compiled"};
}

Finding find_host_device() {
  const unsigned cores = std::thread::hardware_concurrency();
  return {"device host", true, fmt::format("{} cores, device '{}'", cores, Device::host().name())};
}

// "CUDA 13.0; NVIDIA H200, 139 GiB; without edge data (needs a driver for CUDA 12.3, ...)"
std::string describe(const CudaFacts& facts) {
  std::string text =
      fmt::format("CUDA {}.{}", facts.driver_version / 1000, facts.driver_version % 1000 / 10);
  for (const std::string& gpu : facts.gpus) text += "; " + gpu;
  for (const CudaFeature& feature : facts.features) {
    if (!feature.why_off.empty())
      text += fmt::format("; without {} ({})", feature.name, feature.why_off);
  }
  return text;
}

Finding find_cuda_device() {
  const Result<CudaFacts> facts = describe_cuda();
  if (!facts) return {"device cuda", false, facts.error().message()};
  if (!facts->gpus.empty()) return {"device cuda", true, describe(*facts)};
  return {"device cuda", false, describe(*facts) + "; " + facts->why_no_gpus};
}

// Of the first GPU.
Finding find_device_code() {
  const Result<Device> device = Device::cuda();
  if (!device) return {"device code", false, "no CUDA device"};
  const Result<CaptureSupport> support = describe_capture(*device);
  if (!support) return {"device code", false, support.error().message()};
  const std::string& why = support->why_no_device_code;
  return {"device code", why.empty(), why.empty() ? "loaded" : why};
}

std::vector<Finding> find_all() {
  return {{"library", true, fmt::format("anabranch {}, built by {}", kVersion, kBuiltBy)},
          find_compiler(),
          find_host_device(),
          find_cuda_device(),
          find_device_code(),
          {"device sim", false, "for tests: in no library that ships"}};
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
