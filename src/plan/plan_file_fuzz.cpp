// SPDX-License-Identifier: Apache-2.0
// Any bytes at all: the reader answers a plan or a Status, and what it takes is a plan that writes
// and reads back to itself. An input is tried as a whole file, and as a payload under a right
// header, since no fuzzer finds its way through a checksum.
// Also run, over the corpus and over mutations, by plan_file_test.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "plan/plan_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace anabranch;
  const auto check = [](const Result<Plan>& plan) {
    if (!plan) {
      if (plan.error().message().empty()) std::abort();
      return;
    }
    const std::vector<std::uint8_t> written = write_plan(*plan);
    const Result<Plan> again = read_plan(written);
    if (!again || write_plan(*again) != written) std::abort();
  };
  const std::span<const std::uint8_t> bytes(data, size);
  check(read_plan(bytes));
  check(read_plan(seal_plan_payload(bytes)));
  return 0;
}
