// SPDX-License-Identifier: Apache-2.0
#include "base/write_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace anabranch {
namespace {

using Bytes = std::span<const std::uint8_t>;

// Errors are numbers of the system here; 0 is none.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }

  int write(Bytes bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::write(number_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    return 0;
  }
  // Some systems tell only here that the bytes could not be kept.
  int close() { return ::close(std::exchange(number_, -1)) == 0 ? 0 : errno; }

 private:
  int number_;
};

int write_through(const std::string& path, Bytes bytes) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY));
  if (!file.is_open()) return errno;
  if (const int error = file.write(bytes); error != 0) return error;
  return file.close();
}

// A name in the folder of `path` that nobody can foresee.
std::string temporary_beside(const std::string& path) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return {};
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  return fmt::format("{}.anabranch-{:016x}", folder, random);
}

// Writes a file of its own and gives it the name when all bytes are there.
class Replacement {
 public:
  // `old` is null where nothing is at the path yet.
  Replacement(const std::string& path, const struct stat* old)
      : path_(path), old_(old), temporary_(temporary_beside(path)), file_(open()) {
    error_ = file_.is_open() ? 0 : errno;
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement() {
    if (file_was_made_ && !renamed_) ::unlink(temporary_.c_str());
  }

  int error() const { return error_; }
  // Whether the new file has the owner and group of the old one.
  bool keeps_owner() const {
    struct stat made {};
    if (old_ == nullptr) return true;
    return ::fstat(file_.number(), &made) == 0 && made.st_uid == old_->st_uid &&
           made.st_gid == old_->st_gid;
  }
  int write(Bytes bytes) {
    if (const int error = file_.write(bytes); error != 0) return error;
    if (old_ != nullptr && ::fchmod(file_.number(), mode()) != 0) return errno;
    if (const int error = file_.close(); error != 0) return error;
    renamed_ = std::rename(temporary_.c_str(), path_.c_str()) == 0;
    return renamed_ ? 0 : errno;
  }

 private:
  // Of a new file, less the process's mask.
  mode_t mode() const { return old_ == nullptr ? 0666 : old_->st_mode & 0777; }
  int open() {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const int made = ::open(temporary_.c_str(), kFlags, mode());
    file_was_made_ = made >= 0;
    return made;
  }

  const std::string& path_;
  const struct stat* old_;
  std::string temporary_;
  bool file_was_made_ = false;
  bool renamed_ = false;
  int error_ = 0;
  Descriptor file_;
};

int replace(const std::string& path, const struct stat* old, Bytes bytes) {
  if (old != nullptr && ::access(path.c_str(), W_OK) != 0) return errno;
  {
    Replacement replacement(path, old);
    if (replacement.error() != 0) return replacement.error();
    if (replacement.keeps_owner()) return replacement.write(bytes);
  }
  return write_through(path, bytes);
}

int write(const std::string& path, Bytes bytes) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) {
    return errno == ENOENT ? replace(path, nullptr, bytes) : errno;
  }
  return S_ISREG(there.st_mode) ? replace(path, &there, bytes) : write_through(path, bytes);
}

}  // namespace

Status write_file(std::string_view act, const std::string& path, Bytes bytes) {
  const int error = write(path, bytes);
  if (error == 0) return {};
  return Status(StatusCode::kFileUnreadable,
                fmt::format("{} '{}': {}", act, printable_text(path), std::strerror(error)));
}

}  // namespace anabranch
