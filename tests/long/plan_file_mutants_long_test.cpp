// SPDX-License-Identifier: Apache-2.0
// The promise "a plan file from anywhere cannot make steps race or write elsewhere", on ten million
// broken files, on all cores.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <thread>
#include <vector>

#include "plan/plan_file_mutants.h"

namespace anabranch {
namespace {

TEST(PlanFileMutantsLong, OfTenMillionBrokenFilesNoneIsTakenWithAFault) {
  constexpr std::uint64_t kSeeds = 10'000, kEach = 1'000;
  const std::uint64_t parts = std::max(1u, std::thread::hardware_concurrency());
  std::vector<FileTally> tallies(parts);
  std::vector<std::thread> threads;
  for (std::uint64_t part = 0; part < parts; ++part) {
    const std::uint64_t begin = kSeeds * part / parts;
    const std::uint64_t end = kSeeds * (part + 1) / parts;
    threads.emplace_back([&tallies, part, begin, end] {
      tallies[part] = run_file_mutants(1'000'000 + begin, end - begin, kEach);
    });
  }
  FileTally total;
  for (std::uint64_t part = 0; part < parts; ++part) {
    threads[part].join();
    total.add(tallies[part]);
  }
  std::cout << total;
  EXPECT_EQ(total.mutants, kSeeds * kEach);
  EXPECT_EQ(total.wrong, 0u);
}

}  // namespace
}  // namespace anabranch
