// SPDX-License-Identifier: Apache-2.0
// Writing a whole file, whatever lies at its path.
// Ownership: borrows path and bytes for the call.
// Threads:   any; of two writers of one path the last one wins, with all its bytes.
// Failure:   kFileUnreadable with `act`, the path and the system's reason. Nothing is left behind.
// Edges:     what is written through below may hold a part of the bytes after a failure.
//
//   at the path                     what happens
//   nothing                         a new file, whole or not there
//   a regular file of the caller's  replaced, whole or as it was; keeps its mode. One that the
//   caller
//                                   may not write is refused, though its folder would allow it
//   one of another owner or group   written through, so that it stays theirs
//   a device, a FIFO                written through: it is no file that could be replaced
//   a link                          its target is written through, and must exist: the system's own
//                                   protection against links of strangers then holds here too
//   a folder                        refused
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "anabranch/status.h"

namespace anabranch {

// `act` begins the message of a failure: "write trace".
Status write_file(std::string_view act, const std::string& path,
                  std::span<const std::uint8_t> bytes);

}  // namespace anabranch
