// SPDX-License-Identifier: Apache-2.0
#include "base/write_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace anabranch {
namespace {

namespace fs = std::filesystem;

Status write_text(const fs::path& path, std::string_view text) {
  return write_file("write", path.string(),
                    {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

mode_t mode_of(const fs::path& path) {
  struct stat there {};
  EXPECT_EQ(::stat(path.c_str(), &there), 0) << path;
  return there.st_mode & 07777;
}

ino_t number_of(const fs::path& path) {
  struct stat there {};
  EXPECT_EQ(::stat(path.c_str(), &there), 0) << path;
  return there.st_ino;
}

class WriteFile : public testing::Test {
 protected:
  WriteFile() {
    std::string name = (fs::path(testing::TempDir()) / "anabranch_write_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~WriteFile() override { fs::remove_all(folder_); }
  std::ptrdiff_t count() const { return std::distance(fs::directory_iterator(folder_), {}); }

  fs::path folder_;
};

TEST_F(WriteFile, MakesANewFileWithTheModeOfTheProcess) {
  const mode_t before = ::umask(027);
  EXPECT_TRUE(write_text(folder_ / "new", "abc").ok());
  ::umask(before);
  EXPECT_EQ(text_of(folder_ / "new"), "abc");
  EXPECT_EQ(mode_of(folder_ / "new"), 0640u);
  EXPECT_EQ(count(), 1);
}

TEST_F(WriteFile, ReplacesAFileAndKeepsItsMode) {
  const fs::path path = folder_ / "kept";
  for (const mode_t mode : {0600u, 0644u, 0666u}) {
    std::ofstream(path) << "what was there before, and longer";
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const ino_t before = number_of(path);
    EXPECT_TRUE(write_text(path, "abc").ok());
    EXPECT_EQ(text_of(path), "abc");
    EXPECT_EQ(mode_of(path), mode);
    EXPECT_NE(number_of(path), before);  // whoever reads the old one still sees all of it
  }
  EXPECT_EQ(count(), 1);
}

TEST_F(WriteFile, FollowsALinkAndLeavesItOne) {
  std::ofstream(folder_ / "target") << "what was there before";
  fs::create_symlink("target", folder_ / "link");
  const ino_t before = number_of(folder_ / "target");
  EXPECT_TRUE(write_text(folder_ / "link", "abc").ok());
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(text_of(folder_ / "target"), "abc");
  EXPECT_EQ(number_of(folder_ / "target"), before);
}

TEST_F(WriteFile, MakesNothingThroughALinkToNothing) {
  fs::create_symlink(folder_ / "nothing", folder_ / "link");
  EXPECT_EQ(write_text(folder_ / "link", "abc").code(), StatusCode::kFileUnreadable);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_FALSE(fs::exists(folder_ / "nothing"));
}

TEST_F(WriteFile, WritesToNoNameThatAnotherCouldForesee) {
  std::ofstream(folder_ / "victim") << "precious";
  for (const char* foreseen : {"x.partial", "x.tmp", ".x.tmp"}) {
    fs::create_symlink("victim", folder_ / foreseen);
  }
  EXPECT_TRUE(write_text(folder_ / "x", "abc").ok());
  EXPECT_EQ(text_of(folder_ / "victim"), "precious");
  EXPECT_EQ(count(), 5);
}

TEST_F(WriteFile, WritesThroughADevice) {
  EXPECT_TRUE(write_text("/dev/null", "abc").ok());
  struct stat there {};
  ASSERT_EQ(::lstat("/dev/null", &there), 0);
  EXPECT_TRUE(S_ISCHR(there.st_mode));
}

TEST_F(WriteFile, SaysThatADeviceIsFull) {
  const Status status = write_text("/dev/full", "abc");
  EXPECT_EQ(status.message(), "write '/dev/full': No space left on device [E0501]");
  struct stat there {};
  ASSERT_EQ(::lstat("/dev/full", &there), 0);
  EXPECT_TRUE(S_ISCHR(there.st_mode));
}

TEST_F(WriteFile, WritesThroughAFifo) {
  const fs::path path = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = text_of(path); });
  EXPECT_TRUE(write_text(path, "abc").ok());
  reader.join();
  EXPECT_EQ(read, "abc");
  EXPECT_TRUE(fs::is_fifo(path));
}

TEST_F(WriteFile, LeavesNothingBehindWhereItCannotWrite) {
  EXPECT_EQ(write_text(folder_ / "no/such", "abc").code(), StatusCode::kFileUnreadable);
  EXPECT_EQ(write_text("", "abc").code(), StatusCode::kFileUnreadable);
  fs::create_directory(folder_ / "sub");
  EXPECT_EQ(write_text(folder_ / "sub", "abc").code(), StatusCode::kFileUnreadable);
  EXPECT_EQ(count(), 1);
}

TEST_F(WriteFile, RefusesAFileThatItsOwnerMayNotWrite) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everything";
  std::ofstream(folder_ / "fixed") << "precious";
  ASSERT_EQ(::chmod((folder_ / "fixed").c_str(), 0400), 0);
  EXPECT_EQ(write_text(folder_ / "fixed", "abc").code(), StatusCode::kFileUnreadable);
  EXPECT_EQ(text_of(folder_ / "fixed"), "precious");
}

TEST_F(WriteFile, LeavesAFileToItsOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root has files of others to write";
  const fs::path path = folder_ / "theirs";
  std::ofstream(path) << "what was there before";
  if (::chown(path.c_str(), 1234, 4321) != 0) GTEST_SKIP() << "this root may give no file away";
  EXPECT_TRUE(write_text(path, "abc").ok());
  struct stat there {};
  ASSERT_EQ(::stat(path.c_str(), &there), 0);
  EXPECT_EQ(there.st_uid, 1234u);
  EXPECT_EQ(there.st_gid, 4321u);
  EXPECT_EQ(text_of(path), "abc");
  EXPECT_EQ(count(), 1);
}

}  // namespace
}  // namespace anabranch
