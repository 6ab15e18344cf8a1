// SPDX-License-Identifier: Apache-2.0
// The header around a plan's FlatBuffer, and the files themselves.
#include "plan/plan_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include <flatbuffers/flatbuffers.h>
#include <fmt/format.h>

#include "base/write_file.h"

namespace anabranch {
namespace {

constexpr std::size_t kVersionAt = 8, kReservedAt = 12, kBytesAt = 16, kChecksumAt = 24;
constexpr std::string_view kAct = "read plan: ";

template <typename T>
T number_at(std::span<const std::uint8_t> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return flatbuffers::EndianScalar(value);
}

template <typename T>
void put_number(std::vector<std::uint8_t>& bytes, T value) {
  value = flatbuffers::EndianScalar(value);
  const auto* first = reinterpret_cast<const std::uint8_t*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof value);
}

Status malformed(const std::string& why) {
  return Status(StatusCode::kFileMalformed, std::string(kAct) + why);
}

Status check_magic_and_version(std::span<const std::uint8_t> file) {
  const auto magic = file.first(std::min(file.size(), kPlanFileMagic.size()));
  if (!std::equal(magic.begin(), magic.end(), kPlanFileMagic.begin())) {
    return malformed(fmt::format("the file begins with '{}', a plan file with '{}'",
                                 printable(magic), printable(kPlanFileMagic)));
  }
  if (file.size() < kPlanHeaderBytes) {
    return malformed(fmt::format("the file has {} bytes, its header alone has {}: it was cut short",
                                 file.size(), kPlanHeaderBytes));
  }
  const auto version = number_at<std::uint32_t>(file, kVersionAt);
  if (version >= kPlanFileVersion && version <= kPlanFileWithSlots) return {};
  return Status(StatusCode::kFileVersion,
                fmt::format("{}the file has format version {}, this library reads versions {} "
                            "to {}. Read it with the library that wrote it, or write the plan "
                            "again.",
                            kAct, version, kPlanFileVersion, kPlanFileWithSlots));
}

Status check_payload(std::span<const std::uint8_t> file) {
  const auto payload = file.subspan(kPlanHeaderBytes);
  const auto said_bytes = number_at<std::uint64_t>(file, kBytesAt);
  if (payload.size() != said_bytes) {
    return malformed(fmt::format("{} bytes follow the header, which says {}: the file was {}",
                                 payload.size(), said_bytes,
                                 payload.size() < said_bytes ? "cut short" : "appended to"));
  }
  const auto reserved = number_at<std::uint32_t>(file, kReservedAt);
  if (reserved != 0) {
    return malformed(fmt::format("bytes 12 to 15 of the header hold {:#x}, not 0", reserved));
  }
  const auto said_sum = number_at<std::uint64_t>(file, kChecksumAt);
  const std::uint64_t sum = checksum_of(payload);
  if (sum == said_sum) return {};
  return malformed(
      fmt::format("the payload's checksum is {:016x}, the header says {:016x}: the "
                  "file was changed. Copy it or write the plan again.",
                  sum, said_sum));
}

// The oldest that can say what the program has.
std::uint32_t version_of(const Program& program) {
  std::uint32_t version = kPlanFileVersion;
  for (const Buffer& buffer : program.buffers()) {
    if (buffer.role == Role::kNumber) version = std::max(version, kPlanFileWithNumbers);
    if (buffer.role == Role::kTable || buffer.role == Role::kGrid)
      version = std::max(version, kPlanFileWithSlots);
  }
  return version;
}

// The same status under the path of the file it is about.
Status about_file(const char* act, const std::string& path, const Status& status) {
  std::string_view message = status.message();
  message = message.substr(0, message.rfind(" [E"));
  if (message.starts_with(kAct)) message.remove_prefix(kAct.size());
  return Status(status.code(), fmt::format("{} '{}': {}", act, printable_text(path), message));
}

Status unreadable(const char* act, const std::string& path, int error) {
  return Status(StatusCode::kFileUnreadable,
                fmt::format("{} '{}': {}", act, printable_text(path), std::strerror(error)));
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// Grows with what is really there: neither a pipe nor a lying size can make it allocate more.
Result<std::vector<std::uint8_t>> read_bytes(const std::string& path) {
  const char* act = "read plan file";
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) return unreadable(act, path, errno);
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> chunk(1 << 16);
  while (const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    bytes.insert(bytes.end(), chunk.data(), chunk.data() + count);
    const Status begin = check_magic_and_version(bytes);
    if (!begin) return about_file(act, path, begin);
    if (bytes.size() > kMaxPlanPayloadBytes + kPlanHeaderBytes) {
      return Status(StatusCode::kFileMalformed,
                    fmt::format("{} '{}': longer than {} bytes", act, printable_text(path),
                                kMaxPlanPayloadBytes + kPlanHeaderBytes));
    }
  }
  if (std::ferror(file.get())) return unreadable(act, path, errno);
  return bytes;
}

}  // namespace

std::string printable(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes)
    text += byte >= ' ' && byte <= '~' ? static_cast<char>(byte) : '.';
  return text;
}

std::uint64_t checksum_of(std::span<const std::uint8_t> bytes) {
  std::uint64_t sum = 0xcbf2'9ce4'8422'2325;
  for (const std::uint8_t byte : bytes) sum = (sum ^ byte) * 0x100'0000'01b3;
  return sum;
}

std::vector<std::uint8_t> seal_plan_payload(std::span<const std::uint8_t> payload,
                                            std::uint32_t version) {
  std::vector<std::uint8_t> file(kPlanFileMagic.begin(), kPlanFileMagic.end());
  file.reserve(kPlanHeaderBytes + payload.size());
  put_number(file, version);
  put_number(file, std::uint32_t{0});
  put_number(file, std::uint64_t{payload.size()});
  put_number(file, checksum_of(payload));
  file.insert(file.end(), payload.begin(), payload.end());
  return file;
}

Result<std::span<const std::uint8_t>> open_plan_file(std::span<const std::uint8_t> file) {
  if (const Status status = check_magic_and_version(file); !status) return status;
  if (const Status status = check_payload(file); !status) return status;
  return file.subspan(kPlanHeaderBytes);
}

std::vector<std::uint8_t> write_plan(const Plan& plan) {
  const std::vector<std::uint8_t> payload = write_plan_payload(plan);
  return payload.empty() ? payload : seal_plan_payload(payload, version_of(plan.program()));
}

Result<Plan> read_plan(std::span<const std::uint8_t> bytes) {
  Result<std::span<const std::uint8_t>> payload = open_plan_file(bytes);
  if (!payload) return payload.error();
  Result<Plan> plan = read_plan_payload(*payload);
  if (!plan) return plan;
  const auto said = number_at<std::uint32_t>(bytes, kVersionAt);
  if (const std::uint32_t version = version_of(plan->program()); said != version) {
    return Status(StatusCode::kFileVersion,
                  fmt::format("{}the header says format version {}, what follows is of version {}: "
                              "the file was changed. Write the plan again.",
                              kAct, said, version));
  }
  return plan;
}

Status write_plan_file(const Plan& plan, const std::string& path) {
  const std::vector<std::uint8_t> bytes = write_plan(plan);
  if (bytes.empty()) {
    return Status(
        StatusCode::kLimitExceeded,
        fmt::format("write plan file '{}': the plan of {} steps needs more than {} bytes, "
                    "or has a text of more than {}. Split the program or shorten the name.",
                    printable_text(path), plan.order().size(), kMaxPlanPayloadBytes,
                    kMaxFileTextBytes));
  }
  return write_file("write plan file", path, bytes);
}

Result<Plan> read_plan_file(const std::string& path) {
  Result<std::vector<std::uint8_t>> bytes = read_bytes(path);
  if (!bytes) return bytes.error();
  Result<Plan> plan = read_plan(*bytes);
  if (!plan) return about_file("read plan file", path, plan.error());
  return plan;
}

}  // namespace anabranch
