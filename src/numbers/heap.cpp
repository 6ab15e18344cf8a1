// SPDX-License-Identifier: Apache-2.0
#include "numbers/heap.h"

#include <fstream>
#include <sstream>
#include <string>

namespace anabranch::numbers {

bool is_in_heap(std::uint64_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (!line.ends_with("[heap]")) continue;
    std::uint64_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream range(line);
    range >> std::hex >> begin >> dash >> end;
    return address >= begin && address < end;
  }
  return false;
}

}  // namespace anabranch::numbers
