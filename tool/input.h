// SPDX-License-Identifier: Apache-2.0
// What a command is given to read: a file, a pipe, or "-" for standard input.
// Ownership: values.
// Threads:   one thread.
// Failure:   kFileUnreadable; kFileMalformed above the size of the largest plan file; and what
//            read_plan_file() and read_plan() refuse.
// Edges:     everything is opened and read once, so that a pipe serves as well as a file.
#pragma once

#include <string>

#include "anabranch/anabranch.h"

namespace anabranch::tool {

// All bytes. Where they begin neither a plan file nor JSON, only the first of them.
Result<std::string> read_input(const std::string& path);
// Of bytes that were read from `path`; messages name it.
Result<Plan> read_plan_bytes(const std::string& path, const std::string& bytes);
Result<Plan> read_plan_input(const std::string& path);

// The first bytes decide what a file is; a plan file never begins like JSON.
bool begins_like_json(const std::string& bytes);

}  // namespace anabranch::tool
