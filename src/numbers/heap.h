// SPDX-License-Identifier: Apache-2.0
// Where the system lets this process's heap lie: of a program at fixed addresses that is below
// 4 GiB, where an address is a float's bits with nothing above them.
// Ownership: none.
// Threads:   any.
// Failure:   none; where the system does not tell, nothing is in the heap.
// Source:    proc_pid_maps(5).
#pragma once

#include <cstdint>

namespace anabranch::numbers {

bool is_in_heap(std::uint64_t address);

}  // namespace anabranch::numbers
