// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "commands.h"

namespace anabranch::tool {

// From where this program lies, so that a moved installation still answers right.
Result<std::string> find_cmake_folder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto folder = (program.parent_path() / ANABRANCH_BIN_TO_CMAKE_FOLDER).lexically_normal();
  if (!error && std::filesystem::is_regular_file(folder / "anabranchConfig.cmake", error)) {
    return folder.string();
  }
  return Status(StatusCode::kFileUnreadable,
                fmt::format("cmakedir: no anabranchConfig.cmake in '{}': this program came without "
                            "the C++ library. Install that with cmake --install, or with pip "
                            "install --no-binary anabranch anabranch.",
                            folder.string()));
}

}  // namespace anabranch::tool
