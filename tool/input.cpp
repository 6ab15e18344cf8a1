// SPDX-License-Identifier: Apache-2.0
#include "input.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace anabranch::tool {
namespace {

constexpr std::size_t kChunkBytes = 1 << 16;
constexpr std::size_t kMostBytes = std::size_t{1} << 31;
constexpr std::string_view kPlanBegin = "ANBRPLAN";

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

Status unreadable(const std::string& path, int error) {
  return Status(StatusCode::kFileUnreadable,
                fmt::format("read '{}': {}", printable_text(path), std::strerror(error)));
}

}  // namespace

bool begins_like_json(const std::string& bytes) {
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != std::string::npos && (bytes[first] == '{' || bytes[first] == '[');
}

Result<std::string> read_input(const std::string& path) {
  const File file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (!file) return unreadable(path, errno);
  std::string bytes;
  std::vector<char> chunk(kChunkBytes);
  while (const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    bytes.append(chunk.data(), count);
    if (!begins_like_json(bytes) && !bytes.starts_with(kPlanBegin)) return bytes;
    if (bytes.size() <= kMostBytes) continue;
    return Status(StatusCode::kFileMalformed,
                  fmt::format("read '{}': longer than {} bytes", printable_text(path), kMostBytes));
  }
  if (std::ferror(file.get()) != 0) return unreadable(path, errno);
  return bytes;
}

Result<Plan> read_plan_bytes(const std::string& path, const std::string& bytes) {
  Result<Plan> plan =
      read_plan({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
  if (plan) return plan;
  std::string_view message = plan.error().message();
  message = message.substr(0, message.rfind(" [E"));
  return Status(plan.error().code(), fmt::format("'{}': {}", printable_text(path), message));
}

Result<Plan> read_plan_input(const std::string& path) {
  if (path != "-") return read_plan_file(path);
  const Result<std::string> bytes = read_input(path);
  if (!bytes) return bytes.error();
  return read_plan_bytes("standard input", *bytes);
}

}  // namespace anabranch::tool
